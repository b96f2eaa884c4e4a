"""The suite `positions`, last part: biases that depend on the distance, ALiBi and the buckets of T5."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from .draft import Draft, Other

SLOPES = ("output", "slopes", "bias")
BUCKETS = ("output", "buckets")
HALVES = ("f16", "bf16")


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _alibi()
    yield from _alibi_errors()
    yield from _relative_bias()
    yield from _relative_errors()


def _alibi() -> Iterator[Draft]:
    def case(name: str, shape: Any, note: str, *flags: str, **config: Any) -> Draft:
        dtypes = config.pop("dtypes", ("f32", "f64"))
        scores = Draw(f"alibi/{name}").normal(*shape) if isinstance(shape, tuple) else shape
        return Draft(
            f"positions/alibi/{name}", "alibi", {"scores": scores}, config, SLOPES, flags, note, dtypes=dtypes
        )

    zeros = np.zeros((1, 2, 2, 3))
    yield case(
        "by-hand/two", zeros, "slopes 1/16 and 1/256: row 0 is 0, -1/16, -2/16", "ByHand", "AlibiSlopes"
    )
    yield case("by-hand/three", np.zeros((1, 3, 1, 2)), "slopes 2^-4, 2^-8, 2^-2", "ByHand", "AlibiSlopes")
    for H in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 20, 33):
        yield case(f"heads/{H}", (1, H, 2, 3), f"{H} heads", "AlibiSlopes")
    for Tq, Tk in ((1, 1), (1, 17), (7, 7), (16, 5), (3, 65)):
        yield case(f"lengths/{Tq}-{Tk}", (2, 2, Tq, Tk), "distances both ways", "VectorTail", "AxisOrder")
    yield case("q-offset", (2, 3, 2, 6), "queries 4 and 5", "CausalAlignment", q_offset=4)
    yield case("q-offset-zero", (1, 2, 2, 3), "an explicit 0", "AbsentIsNotZero", q_offset=0)
    yield case(
        "q-offset-negative", (1, 2, 3, 3), "a query before the first key", "CausalAlignment", q_offset=-2
    )
    special = np.array([np.inf, -np.inf, np.nan, 1.0]).reshape(1, 1, 1, 4)
    yield case("special", special, "-inf stays hidden, NaN stays NaN", "VisibleNaN")
    for name, shape in {"rows": (0, 2, 3, 4), "queries": (2, 3, 0, 4), "keys": (2, 3, 4, 0)}.items():
        yield case(f"empty/{name}", shape, "an empty result; the slopes are there", "EmptyKeys")
    yield case("half/plain", (2, 6, 3, 9), "slope times distance in f32", "HalfInside", dtypes=HALVES)
    yield case(
        "half/far",
        (1, 3, 2, 3),
        "a distance no half type holds",
        "AnglePrecision",
        q_offset=4097,
        dtypes=HALVES,
    )
    yield case(
        "half/heads", (1, 12, 2, 5), "slopes that are no powers of two whole", "AlibiSlopes", dtypes=HALVES
    )


def _alibi_errors() -> Iterator[Draft]:
    def refused(name: str, error: str, note: str, scores: Any, **config: Any) -> Draft:
        inputs = {} if scores is None else {"scores": scores}
        inputs = inputs or {"x": np.zeros((1, 2, 3, 4))}
        return Draft(
            f"positions/alibi/error/{name}",
            "alibi",
            inputs,
            config,
            flags=("ErrorCode",),
            note=note,
            error=error,
        )

    scores = np.zeros((1, 2, 3, 4))
    yield refused("rank", "shape_mismatch", "scores of rank 3", scores[0])
    yield refused("integers", "dtype_mismatch", "integers are no scores", scores.astype(np.int64))
    yield refused("offset-fraction", "invalid_config", "a position between positions", scores, q_offset=1.5)
    yield refused("missing", "invalid_request", "no scores", None)


def _relative_bias() -> Iterator[Draft]:
    def case(
        name: str, sizes: tuple[int, int, int, int], rows: int, note: str, *flags: str, **config: Any
    ) -> Draft:
        dtypes = config.pop("dtypes", ("f32", "f64"))
        draw = Draw(f"relative_bias/{name}")
        inputs = {"scores": draw.normal(*sizes), "table": draw.normal(rows, sizes[1])}
        return Draft(
            f"positions/relative_bias/{name}",
            "relative_bias",
            inputs,
            config,
            BUCKETS,
            flags or ("RelativeBuckets",),
            note,
            dtypes=dtypes,
        )

    table = np.arange(8.0).reshape(8, 1)
    hand = {"scores": np.zeros((1, 1, 3, 3)), "table": table}
    note = "keys after the query are in the upper half: rows [0, 5, 6], [1, 0, 5], [2, 1, 0]"
    flags = ("ByHand", "RelativeBuckets")
    yield Draft(
        "positions/relative_bias/by-hand/both",
        "relative_bias",
        hand,
        {"max_distance": 16},
        BUCKETS,
        flags,
        note,
    )
    one_way = {"bidirectional": False, "max_distance": 16}
    note = "keys after the query are all bucket 0: rows [0, 0, 0], [1, 0, 0], [2, 1, 0]"
    yield Draft(
        "positions/relative_bias/by-hand/one-way", "relative_bias", hand, one_way, BUCKETS, flags, note
    )
    long = (1, 2, 1, 300)
    yield case("distances/both", long, 32, "distances to 299 on one side", q_offset=0)
    yield case("distances/behind", long, 32, "and on the other", q_offset=299)
    yield case(
        "distances/one-way", long, 32, "32 buckets for one direction", bidirectional=False, q_offset=299
    )
    note = "e = 8, longest 128: distances 16, 32 and 64 are whole quotients"
    yield case("distances/whole", (1, 1, 1, 140), 32, note, q_offset=135)
    note = "e = 4, longest 4 · 3^4: quotients that are whole, and not powers of two"
    yield case(
        "distances/thirds", (1, 1, 1, 340), 8, note, bidirectional=False, max_distance=324, q_offset=335
    )
    for rows, longest in ((2, 4), (3, 8), (5, 9), (7, 50), (33, 100)):
        note = f"{rows} buckets to {longest}"
        yield case(
            f"one-way/{rows}-{longest}",
            (1, 2, 9, 12),
            rows,
            note,
            bidirectional=False,
            max_distance=longest,
            q_offset=3,
        )
    for rows, longest in ((4, 2), (6, 5), (8, 20), (10, 3), (64, 500)):
        yield case(
            f"both/{rows}-{longest}",
            (2, 3, 8, 11),
            rows,
            f"{rows} buckets to {longest}",
            max_distance=longest,
        )
    yield case("axes", (2, 3, 4, 5), 8, "a column a head", "AxisOrder", max_distance=10)
    yield case("q-offset", (1, 2, 2, 9), 8, "queries 6 and 7", "CausalAlignment", max_distance=10, q_offset=6)
    none = {"max_distance": None, "q_offset": None, "bidirectional": None}
    yield case("null", (1, 2, 3, 4), 8, "null is absent", "AbsentIsNotZero", **none)
    for name, sizes in {"rows": (0, 2, 3, 4), "queries": (2, 3, 0, 4), "keys": (2, 3, 4, 0)}.items():
        yield case(f"empty/{name}", sizes, 8, "an empty result", "EmptyKeys")
    yield case("one", (1, 1, 1, 1), 4, "all sizes 1", "EmptyKeys", max_distance=9)
    yield case("half/plain", (2, 3, 4, 9), 8, "added in f32", "HalfInside", max_distance=10, dtypes=HALVES)
    yield case(
        "half/one-way",
        (1, 2, 3, 40),
        32,
        "the same",
        "HalfInside",
        bidirectional=False,
        q_offset=37,
        dtypes=HALVES,
    )


def _relative_errors() -> Iterator[Draft]:
    def refused(name: str, error: str, note: str, inputs: Any = None, **config: Any) -> Draft:
        inputs = {"scores": np.zeros((1, 2, 3, 4)), "table": np.zeros((8, 2))} | (inputs or {})
        inputs = {key: value for key, value in inputs.items() if value is not None}
        return Draft(
            f"positions/relative_bias/error/{name}",
            "relative_bias",
            inputs,
            config,
            flags=("ErrorCode",),
            note=note,
            error=error,
        )

    shape, config = "shape_mismatch", "invalid_config"
    yield refused("rank", shape, "scores of rank 3", {"scores": np.zeros((2, 3, 4))})
    yield refused("table-rank", shape, "a table of rank 1", {"table": np.zeros(8)})
    yield refused("heads", shape, "a table of three heads", {"table": np.zeros((8, 3))})
    yield refused("odd", shape, "nine buckets in two halves", {"table": np.zeros((9, 2))})
    yield refused("few", shape, "one bucket a direction", {"table": np.zeros((2, 2))})
    yield refused("few-one-way", shape, "one bucket", {"table": np.zeros((1, 2))}, bidirectional=False)
    yield refused(
        "table-dtype", "dtype_mismatch", "a table of another float type", {"table": Other(np.zeros((8, 2)))}
    )
    yield refused("max-distance", config, "no room above e = 2", max_distance=2)
    yield refused("max-distance-fraction", config, "a distance is whole", max_distance=10.5)
    yield refused("bidirectional-number", config, "true or false", bidirectional=0)
    yield refused("offset-text", config, "a position is a number", q_offset="1")
    yield refused("missing-table", "invalid_request", "no table", {"table": None})
