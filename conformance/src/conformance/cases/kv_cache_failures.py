"""Scripts with steps that must fail: each changes nothing, and the script goes on. And caches that cannot be made."""

from collections.abc import Iterator

import numpy as np

from .draft import Draft, Other
from .script import Script

NAN = np.nan


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _failures()
    yield from _configurations()


def _failures() -> Iterator[Draft]:
    """A failed step changes nothing, and the script goes on."""
    full = (
        Script("failure/capacity", capacity=4).append(3).append(2, code="capacity_exceeded").read().attend(1)
    )
    yield (
        full.append(1)
        .append(1, code="capacity_exceeded")
        .attend(1)
        .read()
        .draft("one too many is refused whole", "Capacity", "NothingChanged")
    )
    ragged = (
        Script("failure/capacity-row", capacity=4)
        .append(3, [3, 1])
        .append(2, [2, 2], code="capacity_exceeded")
    )
    yield (
        ragged.read()
        .append(2, [1, 2])
        .read()
        .draft("one row without room refuses for all", "Capacity", "NothingChanged", "RowIndependence")
    )
    yield (
        Script("failure/capacity-zero", capacity=0)
        .append(1, code="capacity_exceeded")
        .append(0)
        .attend(1)
        .read()
        .draft("a cache for nothing", "Capacity")
    )
    yield (
        Script("failure/capacity-junk", capacity=4)
        .append(6, [4, 2])
        .attend(1)
        .read()
        .draft("junk beyond the lengths needs no room", "Capacity")
    )
    yield (
        Script("failure/growth")
        .append(1)
        .append(40)
        .append(3)
        .attend(3, causal=True)
        .read()
        .draft("no capacity: grows over any doubling", "Capacity")
    )

    z = np.zeros
    for name, k, v, code in (
        ("rank", z((2, 2, 3)), z((2, 2, 1, 5)), "shape_mismatch"),
        ("batch", z((1, 2, 1, 3)), z((1, 2, 1, 5)), "shape_mismatch"),
        ("heads", z((2, 4, 1, 3)), z((2, 4, 1, 5)), "shape_mismatch"),
        ("head-dim", z((2, 2, 1, 4)), z((2, 2, 1, 5)), "shape_mismatch"),
        ("value-dim", z((2, 2, 1, 3)), z((2, 2, 1, 4)), "shape_mismatch"),
        ("positions", z((2, 2, 2, 3)), z((2, 2, 1, 5)), "shape_mismatch"),
        ("dtype-k", Other(z((2, 2, 1, 3))), z((2, 2, 1, 5)), "dtype_mismatch"),
        ("dtype-v", z((2, 2, 1, 3)), Other(z((2, 2, 1, 5))), "dtype_mismatch"),
    ):
        script = Script(f"failure/append-{name}").append(2).append(1, k=k, v=v, code=code).read().append(1)
        yield script.attend(1).read().draft(f"an append of the wrong {name}", "NothingChanged", "ErrorCode")
    for name, lengths, code in (
        ("beyond", np.array([1, 4]), "invalid_config"),
        ("negative", np.array([-1, 2]), "invalid_config"),
        ("count", np.array([1]), "shape_mismatch"),
        ("float", np.array([1.0, NAN]), "dtype_mismatch"),
    ):
        script = Script(f"failure/lengths-{name}").append(2).append(3, code=code)
        script.steps[-1]["lengths"] = script._tensor("lengths", lengths)
        yield script.read().attend(1).draft(f"append lengths: {name}", "NothingChanged", "ErrorCode")
    for name, cut, code in (
        ("beyond", (4, 2), "invalid_config"),
        ("negative", (-1, 0), "invalid_config"),
        ("count", (1,), "shape_mismatch"),
        ("fraction", (1.5, 1), "invalid_config"),
    ):
        yield (
            Script(f"failure/truncate-{name}")
            .append(3)
            .truncate(*cut, code=code)
            .read()
            .attend(1)
            .draft(f"truncate: {name}", "NothingChanged", "ErrorCode")
        )
    for name, options, code in (
        ("heads", {"q": z((2, 3, 1, 3))}, "shape_mismatch"),
        ("head-dim", {"q": z((2, 4, 1, 2))}, "shape_mismatch"),
        ("batch", {"q": z((1, 4, 1, 3))}, "shape_mismatch"),
        ("rank", {"q": z((4, 1, 3))}, "shape_mismatch"),
        ("dtype", {"q": Other(z((2, 4, 1, 3)))}, "dtype_mismatch"),
        ("mask", {"mask": np.ones(4, bool)}, "shape_mismatch"),
        ("softcap", {"softcap": 0}, "invalid_config"),
        ("window", {"window": [-1, 0]}, "invalid_config"),
        ("mask-float", {"mask": np.ones(3)}, "dtype_mismatch"),
    ):
        yield (
            Script(f"failure/attend-{name}")
            .append(3)
            .attend(1, code=code, **options)
            .attend(1)
            .draft(f"attend: a wrong {name}; the next one works", "ErrorCode", "NothingChanged")
        )
    missing = Script("failure/missing-tensor").append(2).append(1, code="invalid_request").read()
    missing.steps[1]["k"] = "nowhere"
    yield missing.draft("a step that names no tensor", "ErrorCode", "NothingChanged")


def _configurations() -> Iterator[Draft]:
    """Bad configurations of the cache itself: an error of the whole call."""
    for name, changes in (
        ("batch", {"batch": -1}),
        ("heads", {"num_kv_heads": 0}),
        ("head-dim", {"head_dim": 0}),
        ("value-dim", {"value_dim": -2}),
        ("capacity", {"capacity": -1}),
        ("capacity-fraction", {"capacity": 2.5}),
    ):
        draft = Script(f"error/{name}").append(1).draft("", "ErrorCode")
        yield Draft(
            draft.id,
            "kv_cache",
            draft.inputs,
            draft.config | changes,
            want=(),
            flags=("ErrorCode",),
            note=f"a cache of {changes}",
            error="invalid_config",
        )
