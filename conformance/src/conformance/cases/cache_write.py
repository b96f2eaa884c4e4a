"""The suite `cache_write`: an update laid over a cache at a row's own index. Everything is exact."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from ..tensors import Tensors
from .draft import Draft, Other

HALF = ("f16", "bf16")
INF, NAN = np.inf, np.nan


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _linear()
    yield from _circular()
    yield from _special()
    yield from _errors()


def _case(
    name: str, inputs: dict[str, Any], note: str, *flags: str, circular: bool = False, **more: Any
) -> Draft:
    config = {"circular": True} if circular else {}
    return Draft(
        f"cache_write/{name}",
        "cache_write",
        inputs,
        config,
        flags=flags,
        note=note,
        exact=("output",),
        **more,
    )


def _buffers(name: str, cache: tuple[int, ...], count: int) -> Tensors:
    """A cache of that shape, and an update of `count` positions."""
    draw = Draw(f"cache_write/{name}")
    return {"cache": draw.normal(*cache), "update": 10 + draw.normal(*cache[:-2], count, cache[-1])}


def _at(*indices: int) -> Tensors:
    return {"write_indices": np.array(indices)}


def _by_hand() -> Iterator[Draft]:
    old = {"cache": np.array([[[1.0], [2], [3], [4]]])}
    new = {"update": np.array([[[10.0], [20]]])}
    yield _case("by-hand/start", old | new, "no index: 10 20 3 4", "ByHand")
    yield _case("by-hand/middle", old | new | _at(1), "1 10 20 4", "ByHand")
    yield _case("by-hand/end", old | new | _at(2), "1 2 10 20: it just fits", "ByHand", "Capacity")
    yield _case("by-hand/wrap", old | new | _at(3), "20 2 3 10", "ByHand", "CircularWrite", circular=True)
    yield _case(
        "by-hand/modulo", old | new | _at(9), "9 mod 4 = 1: 1 10 20 4", "CircularWrite", circular=True
    )
    rows = {
        "cache": np.zeros((5, 4, 1)),
        "update": np.arange(1.0, 6).reshape(5, 1, 1),
        "write_indices": np.zeros(5, np.int64),
    }
    yield _case(
        "by-hand/rows",
        rows,
        "five rows, four slots: row b holds b + 1 in its slot 0, and no other row does",
        "CircularWrite",
        "RowIndependence",
        circular=True,
    )


def _linear() -> Iterator[Draft]:
    yield _case(
        "linear/rank-3",
        _buffers("linear/rank-3", (2, 5, 3), 2) | _at(0, 3),
        "an index a row",
        "RowIndependence",
    )
    yield _case(
        "linear/rank-4",
        _buffers("linear/rank-4", (3, 2, 5, 4), 2) | _at(3, 0, 1),
        "(B, H, L, n)",
        "RowIndependence",
        "AxisOrder",
    )
    yield _case(
        "linear/rank-5",
        _buffers("linear/rank-5", (2, 3, 2, 4, 2), 1) | _at(3, 1),
        "two axes between",
        "AxisOrder",
    )
    yield _case(
        "linear/whole", _buffers("linear/whole", (2, 3, 4, 2), 4), "the update fills the cache", "Capacity"
    )
    yield _case(
        "linear/whole-indices",
        _buffers("linear/whole-indices", (2, 4, 2), 4) | _at(0, 0),
        "the only index at which it fits",
        "Capacity",
    )
    for T in (1, 2, 3, 17):
        yield _case(
            f"linear/length/{T}",
            _buffers(f"linear/length/{T}", (2, 2, 17, 3), T) | _at(0, 17 - T),
            "first and last place",
            "Capacity",
            "VectorTail",
        )
    yield _case(
        "linear/no-positions",
        _buffers("linear/no-positions", (2, 4, 3), 0) | _at(0, 4),
        "nothing to write, at the end too",
        "EmptyKeys",
    )
    yield _case("linear/no-rows", _buffers("linear/no-rows", (0, 4, 3), 2), "no rows", "EmptyKeys")
    yield _case(
        "linear/no-channels",
        _buffers("linear/no-channels", (2, 4, 0), 2) | _at(1, 2),
        "positions of nothing",
        "EmptyKeys",
    )
    yield _case(
        "linear/no-slots",
        _buffers("linear/no-slots", (2, 0, 3), 0),
        "an empty cache, an empty update",
        "EmptyKeys",
    )
    yield _case("linear/one", _buffers("linear/one", (1, 1, 1), 1) | _at(0), "one of everything", "EmptyKeys")


def _circular() -> Iterator[Draft]:
    for start in (0, 3, 4, 5, 7, 10, 1000003):
        yield _case(
            f"circular/start/{start}",
            _buffers(f"circular/start/{start}", (1, 2, 5, 3), 3) | _at(start),
            f"from {start} mod 5 on",
            "CircularWrite",
            circular=True,
        )
    yield _case(
        "circular/rows",
        _buffers("circular/rows", (4, 2, 3, 2), 2) | _at(2, 0, 7, 1),
        "each row wraps by itself",
        "CircularWrite",
        "RowIndependence",
        circular=True,
    )
    yield _case(
        "circular/more-rows",
        _buffers("circular/more-rows", (7, 5, 2, 2), 1) | _at(0, 1, 2, 3, 4, 5, 6),
        "more rows and heads than slots",
        "CircularWrite",
        circular=True,
    )
    yield _case(
        "circular/whole",
        _buffers("circular/whole", (2, 4, 2), 4) | _at(1, 3),
        "the update fills the cache, rotated",
        "CircularWrite",
        circular=True,
    )
    yield _case(
        "circular/absent",
        _buffers("circular/absent", (2, 4, 2), 3),
        "no index: from 0 on",
        "AbsentIsNotZero",
        circular=True,
    )
    yield _case(
        "circular/no-positions",
        _buffers("circular/no-positions", (2, 4, 2), 0) | _at(9, 4),
        "nothing to write",
        "EmptyKeys",
        circular=True,
    )
    yield _case(
        "circular/large",
        _buffers("circular/large", (1, 7, 2), 2) | _at(2**53 - 1),
        "an index beyond 32 bits: 2^53 - 1 mod 7 = 3",
        "CircularWrite",
        circular=True,
    )


def _special() -> Iterator[Draft]:
    odd = _buffers("special", (2, 4, 3), 2) | _at(1, 2)
    odd["cache"][:, 3] = [NAN, -0.0, INF]
    odd["update"][:, 0] = [-INF, NAN, 1e-40]
    yield _case("special", odd, "NaN, infinities, -0 and subnormals are moved as they are", "Subnormal")
    for name, circular in (("linear", False), ("circular", True)):
        start = _at(1, 3) if circular else _at(1, 2)
        yield _case(
            f"half/{name}",
            _buffers(f"half/{name}", (2, 2, 4, 3), 2) | start,
            "halves are moved, not converted",
            "HalfInside",
            circular=circular,
            dtypes=HALF,
        )
    halves = _buffers("half/special", (1, 4, 3), 1) | _at(0)
    halves["cache"][0, 1] = [NAN, INF, 6e-8]
    halves["update"][0, 0] = [-INF, 65504, -0.0]
    yield _case("half/special", halves, "NaN, infinities, subnormals", "HalfInside", dtypes=HALF)


def _errors() -> Iterator[Draft]:
    def refused(
        name: str, error: str, note: str, inputs: dict[str, Any] | None = None, *flags: str, **config: Any
    ) -> Draft:
        base: dict[str, Any] = dict(_buffers("error", (2, 3, 5, 4), 2)) | (inputs or {})
        base = {key: x for key, x in base.items() if x is not None}
        return Draft(
            f"cache_write/error/{name}",
            "cache_write",
            base,
            config,
            flags=("ErrorCode", *flags),
            note=note,
            error=error,
        )

    zeros = np.zeros
    yield refused("beyond", "capacity_exceeded", "one row does not fit", _at(0, 4), "Capacity")
    yield refused(
        "too-long",
        "capacity_exceeded",
        "more positions than slots",
        {"update": zeros((2, 3, 6, 4))},
        "Capacity",
    )
    yield refused(
        "too-long-circular",
        "capacity_exceeded",
        "going round does not help",
        {"update": zeros((2, 3, 6, 4))},
        "Capacity",
        circular=True,
    )
    yield refused("negative", "invalid_config", "-1 is no index", _at(0, -1), "NegativeIndex")
    yield refused(
        "negative-circular",
        "invalid_config",
        "nor is it one modulo 5",
        _at(-1, 0),
        "NegativeIndex",
        circular=True,
    )
    yield refused("circular-number", "invalid_config", "circular is true or false", circular=1)
    yield refused("rank-1", "shape_mismatch", "a cache of rank 1", {"cache": zeros(5), "update": zeros(2)})
    yield refused(
        "rank-2",
        "shape_mismatch",
        "no axis beside batch and channels",
        {"cache": zeros((2, 5)), "update": zeros((2, 2))},
    )
    yield refused("rank", "shape_mismatch", "an update of another rank", {"update": zeros((2, 2, 4))})
    yield refused("batch", "shape_mismatch", "another batch", {"update": zeros((1, 3, 2, 4))})
    yield refused("heads", "shape_mismatch", "other heads", {"update": zeros((2, 1, 2, 4))})
    yield refused("channels", "shape_mismatch", "other channels", {"update": zeros((2, 3, 2, 5))})
    yield refused("indices", "shape_mismatch", "one index for two rows", _at(0))
    yield refused(
        "indices-rank", "shape_mismatch", "indices of rank 2", {"write_indices": np.array([[0, 1]])}
    )
    yield refused(
        "indices-float", "dtype_mismatch", "indices are integers", {"write_indices": np.array([0.0, 1.0])}
    )
    yield refused(
        "dtype", "dtype_mismatch", "an update of another float type", {"update": Other(zeros((2, 3, 2, 4)))}
    )
    yield refused("dtype-cache", "dtype_mismatch", "integers", {"cache": zeros((2, 3, 5, 4), np.int64)})
    yield refused("missing", "invalid_request", "nothing to write", {"update": None})
