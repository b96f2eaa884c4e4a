"""The suite `kv_cache`: reorder, fork, drop, append_attend and stats, on the plain cache and on others."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from .cache_script import ONE, CacheScript, contiguous, cross, paged, quantised, rotating
from .draft import Draft, Other

NAN = np.nan
ALL = ("f32", "f64", "f16", "bf16")


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _reorder()
    yield from _fork()
    yield from _append_attend()
    yield from _padding()
    yield from _stats()
    yield from _configurations()


def _every_kind(name: str, **sizes: int) -> Iterator[CacheScript]:
    yield contiguous(f"{name}/contiguous", **sizes)
    yield rotating(f"{name}/rotating", 3, 1, **sizes)
    yield paged(f"{name}/paged", 3, 40, **sizes)
    yield quantised(f"{name}/quantised", "int8", **sizes)


def _reorder() -> Iterator[Draft]:
    swap = contiguous("reorder/by-hand/swap", batch=2, Hq=1, Hkv=1, D=1, Dv=1)
    swap.append(1, k=np.ones((2, 1, 1, 1)), v=np.array([3.0, 5.0]).reshape(2, 1, 1, 1)).reorder(1, 0)
    yield swap.attend_uniform().draft(
        "5 and 3: a copy in place would give 5 and 5", "ByHand", "BeamReorder", dtypes=ALL
    )
    for script in _every_kind("reorder/repeats", batch=4):
        script.append(5, [5, 1, 3, 0]).reorder(3, 0, 0, 1).attend(2, causal=True).append(2, [1, 2, 0, 2])
        script.attend(2, causal=True).reorder(1, 2, 3, 0).read(positions=True).append(1).attend(1)
        script.truncate(8, 5, 3, 1)
        yield script.read().draft(
            "rows dropped, doubled, moved; each goes on alone", "BeamReorder", "RowIndependence"
        )
    for name, index, code in (
        ("count", (0,), "shape_mismatch"),
        ("many", (0, 1, 1), "shape_mismatch"),
        ("beyond", (0, 2), "invalid_config"),
        ("negative", (0, -1), "invalid_config"),
        ("fraction", (0.5, 1), "invalid_config"),
    ):
        script = (
            contiguous(f"reorder/failure/{name}")
            .append(3, [3, 2])
            .reorder(*index, code=code)
            .read()
            .attend(1)
        )
        yield script.draft(f"reorder: {name}", "ErrorCode", "NothingChanged", "NegativeIndex")
    whole = contiguous("reorder/whole-number").append(2, [2, 1]).reorder(1.0, 0).read()
    yield whole.draft("1.0 is a whole number", "BeamReorder")
    yield contiguous("reorder/no-rows", batch=0).append(1).reorder().read().draft("no rows", "EmptyKeys")


def _fork() -> Iterator[Draft]:
    prefix = contiguous("fork/by-hand/two-continuations", **ONE).append_values(1, 2).fork("a").fork("b")
    prefix.append_values(9).on("a").append_values(21).on("b").attend_uniform(cache="a").attend_uniform(
        cache="b"
    )
    yield (
        prefix.attend_uniform()
        .read()
        .draft(
            "one prefix, two continuations: 4, 8, and the prefix is still 1.5",
            "ByHand",
            "CacheAliasing",
            dtypes=ALL,
        )
    )
    for script in _every_kind("fork/independent"):
        script.append(4, [4, 2]).fork("b").append(2).attend(2, causal=True).truncate(3, 1).on("b")
        script.append(1).on("b").attend(1, cache="b").read(positions=True).fork("c", cache="b").reset().on(
            "b"
        )
        script.read(cache="c").read(cache="b").append(2, [0, 2]).on("b").drop("c").attend(1)
        yield (
            script.read()
            .attend(2, cache="b")
            .draft("what one does the others do not see", "CacheAliasing", "StaleReset")
        )
    names = contiguous("fork/failure/names").append(2).fork("main", code="invalid_config").fork("b")
    names.fork("b", code="invalid_config").fork("c", code="invalid_config", cache="nobody").read(cache="b")
    for step in ("attend", "append", "truncate", "drop"):
        if step == "attend":
            names.attend(1, code="invalid_config", cache="c")
        elif step == "append":
            names.append(1, code="invalid_config", cache="c")
        elif step == "truncate":
            names.truncate(1, 1, code="invalid_config").on("c")
        else:
            names.drop("c", code="invalid_config")
    yield (
        names.drop("b")
        .attend(1, code="invalid_config", cache="b")
        .read()
        .draft("names that exist, and names that do not", "ErrorCode", "NothingChanged")
    )
    back = contiguous("fork/main-again").append(3).fork("b").drop("main").append(1, code="invalid_config")
    yield (
        back.append(1)
        .on("b")
        .fork("main", cache="b")
        .append(1)
        .read()
        .read(cache="b")
        .draft("main is a name like any other", "CacheAliasing")
    )


def _append_attend() -> Iterator[Draft]:
    hand = contiguous("append-attend/by-hand", **ONE).append_values(1)
    v = np.array([3.0, 8.0]).reshape(1, 1, 2, 1)
    hand.append_attend(2, 2, k=np.ones_like(v), v=v, q=np.zeros((1, 1, 2, 1)), causal=True)
    yield hand.read().draft("2, then 4", "ByHand", "ChunkedPrefill", dtypes=ALL)
    for script in _every_kind("append-attend/decode"):
        script.append_attend(3, 3, causal=True).append_attend(1).append_attend(
            2, 2, lengths=[1, 2], padding="left"
        )
        script.append_attend(2, 1, lengths=[0, 2], causal=True, window=[2, None], lse=False)
        yield script.read(positions=True).draft("both steps in one", "ChunkedPrefill", "LeftPadding")
    z = np.zeros
    for script in _every_kind("append-attend/failure", batch=2):
        script.append(5)
        script.append_attend(2, 1, q=z((2, 3, 1, 3)), code="shape_mismatch").read(positions=True)
        script.append_attend(2, 1, q=Other(z((2, 4, 1, 3))), code="dtype_mismatch")
        script.append_attend(2, 1, softcap=0, code="invalid_config")
        script.append_attend(2, 1, mask=np.ones(4, np.bool_), code="shape_mismatch")
        script.append_attend(2, 1, k=z((2, 2, 2, 4)), code="shape_mismatch").stats().attend(2, causal=True)
        script.append_attend(1, 1).read(positions=True).stats()
        yield script.draft("where the attend fails nothing was appended", "NothingChanged", "ErrorCode")
    full = (
        contiguous("append-attend/capacity", capacity=4).append(3).append_attend(2, code="capacity_exceeded")
    )
    yield full.read().append_attend(1).read().draft("where the append fails nothing is attended", "Capacity")
    pool = paged("append-attend/pool", 2, 4).append(3).append_attend(2, code="capacity_exceeded").stats()
    pool.append_attend(1, 1, window=[-1, 0], code="invalid_config").stats().append_attend(1).stats()
    yield pool.read().draft(
        "pages taken for an append that is undone are free again", "PageCount", "NothingChanged"
    )
    first = contiguous("append-attend/first").append_attend(2, 1, softcap=-1, code="invalid_config")
    yield (
        first.append_attend(2, 2).read().draft("a failed first step leaves an empty cache", "NothingChanged")
    )


def _padding() -> Iterator[Draft]:
    hand = contiguous("padding/by-hand/left", batch=2, Hq=1, Hkv=1, D=1, Dv=1)
    v = np.array([[NAN, NAN, 4.0], [1.0, 2.0, 3.0]]).reshape(2, 1, 3, 1)
    hand.append(3, [1, 3], k=np.ones((2, 1, 3, 1)), v=v, padding="left").attend_uniform(3, causal=True)
    yield hand.read(positions=True).draft(
        "the last counts: 4 alone, and 1, 1.5, 2; two leading queries see nothing",
        "ByHand",
        "LeftPadding",
        dtypes=ALL,
    )
    for script in _every_kind("padding/left", batch=3):
        script.append(4, [4, 0, 1], padding="left").attend(4, causal=True).append(
            3, [2, 3, 0], padding="right"
        )
        script.attend(2, causal=True).append(2, padding="left")
        yield script.read(positions=True).draft("left, right, none", "LeftPadding", "RowIndependence")
    for name, options, code in (
        ("unknown", {"padding": "middle"}, "invalid_config"),
        ("beyond", {"padding": "left", "lengths": [3, 1]}, "invalid_config"),
    ):
        script = contiguous(f"padding/failure/{name}").append(2).append(2, code=code, **options).read()
        yield script.draft(f"padding: {name}", "ErrorCode", "NothingChanged")


def _stats() -> Iterator[Draft]:
    for script in _every_kind("stats"):
        script.append(5, [5, 3]).stats().append(2, [0, 2]).stats().truncate(4, 4).stats().reset().stats()
        yield script.draft("slots and bytes", "PageCount", dtypes=ALL)
    for name in ("f16", "bf16", "fp8_e4m3", "int8", "int4"):
        plain = quantised(f"stats/{name}", name, D=7, Dv=3).append(5).stats()
        yield plain.draft("bytes of codes and scales", "PageCount", dtypes=ALL)
        if name.startswith("int"):
            zero = (
                quantised(f"stats/{name}-zero", name, D=7, Dv=3, zero_point=True, group=2).append(5).stats()
            )
            yield zero.draft("bytes of codes, scales and zeros in groups of 2", "PageCount", dtypes=ALL)
    yield cross("stats/cross").append(4, [4, 2]).stats().draft("slots and bytes", "PageCount", dtypes=ALL)
    held = rotating("stats/rotating-chunk", 3).append(8).stats().append(1).stats()
    yield held.draft("a long chunk is held whole until the next one comes", "RingWrap", "PageCount")


def _configurations() -> Iterator[Draft]:
    """Bad configurations: an error of the whole call."""
    base: dict[str, dict[str, Any]] = {
        "rotating": {"kind": "rotating", "window": 3},
        "paged": {"kind": "paged", "page_size": 2, "num_pages": 3},
        "quantised": {"kind": "quantised", "format": "int8"},
        "latent": {"kind": "latent", "latent_dim": 4, "rope_dim": 2},
        "cross": {"kind": "cross"},
    }
    for kind, name, changes, code in (
        ("rotating", "no-window", {"window": None}, "invalid_request"),
        ("rotating", "window-0", {"window": 0}, "invalid_config"),
        ("rotating", "window-fraction", {"window": 1.5}, "invalid_config"),
        ("rotating", "keep-negative", {"keep": -1}, "invalid_config"),
        ("paged", "no-page-size", {"page_size": None}, "invalid_request"),
        ("paged", "page-size-0", {"page_size": 0}, "invalid_config"),
        ("paged", "no-num-pages", {"num_pages": None}, "invalid_request"),
        ("paged", "num-pages-negative", {"num_pages": -1}, "invalid_config"),
        ("quantised", "no-format", {"format": None}, "invalid_request"),
        ("quantised", "group-0", {"group": 0}, "invalid_config"),
        ("quantised", "zero-point-float", {"format": "f16", "zero_point": True}, "invalid_config"),
        ("latent", "no-latent-dim", {"latent_dim": None}, "invalid_request"),
        ("latent", "latent-dim-0", {"latent_dim": 0}, "invalid_config"),
        ("latent", "rope-dim-negative", {"rope_dim": -1}, "invalid_config"),
        ("cross", "heads", {"num_kv_heads": 0}, "invalid_config"),
    ):
        sizes: dict[str, Any] = {} if kind == "latent" else {"num_kv_heads": 2, "head_dim": 3, "value_dim": 5}
        config = {"batch": 2, **sizes, **base[kind], "steps": [{"do": "reset"}]} | changes
        yield Draft(
            f"kv_cache/error/{kind}-{name}",
            "kv_cache",
            {"k": Draw("kv_cache/error").normal(2, 2, 1, 3)},
            {name: x for name, x in config.items() if x is not None},
            want=(),
            flags=("ErrorCode",),
            note=f"a {kind} cache of {changes}",
            error=code,
        )
