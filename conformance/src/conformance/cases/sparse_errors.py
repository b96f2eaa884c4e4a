"""sparse calls that must be refused, each with exactly one fault."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .draft import Draft, Other
from .sparse import SEVEN, Pattern, bigbird, blocks, dilated, fixed, global_, sparse_inputs, strided, window


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""

    def refused(
        name: str, error: str, note: str, pattern: Any, inputs: dict[str, Any] | None = None, **config: Any
    ) -> Draft:
        base = sparse_inputs("sparse/error", window(1, 1), 2, 4, 2, 5, 5, 3, 4) | (inputs or {})
        base = {key: x for key, x in base.items() if x is not None}
        given = {} if pattern is None else {"pattern": pattern}
        return Draft(
            f"sparse/error/{name}",
            "sparse",
            base,
            given | config,
            flags=("ErrorCode",),
            note=note,
            error=error,
        )

    def config(name: str, note: str, pattern: Any, **more: Any) -> Draft:
        return refused(name, "invalid_config", note, pattern, **more)

    def without(pattern: Pattern, field: str) -> Pattern:
        return {key: x for key, x in pattern.items() if key != field}

    good = SEVEN
    yield config("type", "an unknown pattern", {"type": "butterfly"})
    yield config("no-type", "a pattern of no type", {"left": 1, "right": 1})
    yield config("number", "a number where a pattern is due", 3)
    yield refused("missing", "invalid_request", "no pattern at all", None)
    for kind, field in (
        ("window", "left"),
        ("dilated", "dilation"),
        ("strided", "stride"),
        ("fixed", "summary"),
        ("global", "tokens"),
        ("bigbird", "seed"),
        ("blocks", "block"),
    ):
        inputs = {"block_mask": np.ones((3, 3), bool)} if kind == "blocks" else {}
        yield config(
            f"lacks/{kind}-{field}", f"{kind} without {field}", without(good[kind], field), inputs=inputs
        )
    for name, pattern in {
        "window-left": window(-1, 0),
        "window-right": window(0, -1),
        "dilated-zero": dilated(1, 1, 0),
        "dilated-left": dilated(-1, 1, 2),
        "strided-zero": strided(0),
        "fixed-zero": fixed(0, 0),
        "fixed-summary": fixed(3, 4),
        "fixed-summary-negative": fixed(3, -1),
        "global-token": global_(1, 1, [-1]),
        "global-left": global_(-2, 1, [0]),
        "bigbird-block": bigbird(0, 1, 1, 1, 0),
        "bigbird-window": bigbird(2, -1, 1, 1, 0),
        "bigbird-global": bigbird(2, 1, -1, 1, 0),
        "bigbird-random": bigbird(2, 1, 1, -1, 0),
        "bigbird-seed": bigbird(2, 1, 1, 1, -1),
        "bigbird-seed-large": bigbird(2, 1, 1, 1, 2**53),
        "window-fraction": {"type": "window", "left": 0.5, "right": 1},
        "window-text": {"type": "window", "left": "1", "right": 1},
        "window-open": {"type": "window", "left": None, "right": 1},
        "global-number": {"type": "global", "left": 1, "right": 1, "tokens": 0},
    }.items():
        yield config(f"range/{name}", "a size that no pattern has", pattern)
    yield config(
        "range/blocks-zero", "blocks of nothing", blocks(0), inputs={"block_mask": np.ones((5, 5), bool)}
    )
    yield refused("block-mask-missing", "invalid_request", "blocks without their mask", blocks(2))
    yield refused(
        "block-mask-shape",
        "shape_mismatch",
        "2 blocks of 3",
        blocks(2),
        {"block_mask": np.ones((3, 2), bool)},
    )
    yield refused(
        "block-mask-rank", "shape_mismatch", "a mask of rank 1", blocks(2), {"block_mask": np.ones(3, bool)}
    )
    yield refused(
        "block-mask-dtype", "dtype_mismatch", "a float mask", blocks(2), {"block_mask": np.ones((3, 3))}
    )
    zeros = np.zeros
    yield refused("rank-q", "shape_mismatch", "q of rank 3", window(1, 1), {"q": zeros((4, 5, 3))})
    yield refused(
        "head-size", "shape_mismatch", "another head size in k", window(1, 1), {"k": zeros((2, 2, 5, 4))}
    )
    yield refused(
        "values", "shape_mismatch", "fewer values than keys", window(1, 1), {"v": zeros((2, 2, 4, 4))}
    )
    yield refused(
        "groups",
        "shape_mismatch",
        "4 heads on 3",
        window(1, 1),
        {"k": zeros((2, 3, 5, 3)), "v": zeros((2, 3, 5, 4))},
    )
    yield refused(
        "dtype-v",
        "dtype_mismatch",
        "v of another float type",
        window(1, 1),
        {"v": Other(zeros((2, 2, 5, 4)))},
    )
    yield refused("causal-number", "invalid_config", "causal is true or false", window(1, 1), causal=1)
    yield refused("scale-text", "invalid_config", "a scale that is no number", window(1, 1), scale="1")
    yield refused("missing-k", "invalid_request", "no keys", window(1, 1), {"k": None})
