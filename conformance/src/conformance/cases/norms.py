"""The suite `norms`, its first half: layer norm and RMS norm."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from .draft import Draft, Other

ALL = ("output", "mean", "inv_std")
HALF = ("f16", "bf16")
INF, NAN = np.inf, np.nan


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _layer_by_hand()
    yield from _layer_sizes()
    yield from _layer_values()
    yield from _rms_by_hand()
    yield from _rms_sizes()
    yield from _halves()
    yield from _errors()


def _case(op: str, name: str, inputs: dict[str, Any], note: str, *flags: str, **more: Any) -> Draft:
    fields = {"want": ALL if op == "layer_norm" else ("output",), **more}
    arrays = {key: np.array(x, float) for key, x in inputs.items()}
    return Draft(f"norms/{op}/{name}", op, arrays, flags=flags, note=note, **fields)


def _layer(name: str, inputs: dict[str, Any], note: str, *flags: str, **more: Any) -> Draft:
    return _case("layer_norm", name, inputs, note, *flags, **more)


def _rms(name: str, inputs: dict[str, Any], note: str, *flags: str, **more: Any) -> Draft:
    return _case("rms_norm", name, inputs, note, *flags, **more)


def _layer_by_hand() -> Iterator[Draft]:
    zero: dict[str, Any] = {"config": {"eps": 0}}
    yield _layer("by-hand/pair", {"x": [[1, 3]]}, "mean 2, variance 1: [-1, 1]", "ByHand", **zero)
    yield _layer(
        "by-hand/affine",
        {"x": [[1, 3]], "weight": [2, 10], "bias": [100, 1000]},
        "[-1, 1] · [2, 10] + [100, 1000] = [98, 1010]",
        "ByHand",
        **zero,
    )
    yield _layer(
        "by-hand/population",
        {"x": [[0, 0, 0, 4]]},
        "mean 1, variance 3 over n, not 4 over n - 1: the last is sqrt 3",
        "VarianceDivisor",
        **zero,
    )
    yield _layer(
        "by-hand/eps",
        {"x": [[1, 3]]},
        "eps 3 within the root: inv_std 1/2, output [-1/2, 1/2]",
        "VarianceDivisor",
        config={"eps": 3},
    )
    yield _layer(
        "by-hand/rank-1", {"x": [2, 4]}, "rank 1: mean 3 and inv_std 1 have rank 0", "AxisOrder", **zero
    )
    yield _layer(
        "by-hand/last-axis",
        {"x": [[[1, 3], [10, 30]], [[5, 5.5], [-2, 2]]]},
        "over the last axis, and no other: every row is [-1, 1]",
        "AxisOrder",
        **zero,
    )
    yield _layer("by-hand/weight", {"x": [[1, 3]], "weight": [2, 10]}, "[-2, 10]", "ByHand", **zero)
    yield _layer("by-hand/bias", {"x": [[1, 3]], "bias": [5, 7]}, "[4, 8]", "ByHand", **zero)
    yield _layer(
        "by-hand/default-eps",
        {"x": [[0, 0.002]]},
        "variance 1e-6 beside the eps of 1e-5: inv_std 1/sqrt(1.1e-5) = 301.5",
        "AbsentIsNotZero",
    )


def _layer_sizes() -> Iterator[Draft]:
    for n in (1, 2, 3, 5, 8, 15, 16, 17, 33, 63, 64, 65):
        draw = Draw(f"norms/layer_norm/size/{n}")
        x = draw.normal(3, n)
        x[:, -1] += 2
        affine = {"weight": draw.normal(n), "bias": draw.normal(n)}
        yield _layer(f"size/{n}", {"x": x, **affine}, "the largest difference in the last slot", "VectorTail")
    for shape in ((0, 3), (2, 0, 4)):
        name = "x".join(map(str, shape))
        yield _layer(f"empty/{name}", {"x": np.zeros(shape)}, "no rows: empty results", "EmptyKeys")
    draw = Draw("norms/layer_norm/rank-4")
    yield _layer("rank-4", {"x": draw.normal(2, 3, 1, 5)}, "four axes of different sizes", "AxisOrder")


def _layer_values() -> Iterator[Draft]:
    draw = Draw("norms/layer_norm/large-mean")
    x = np.array([[2000.0], [-4095.0], [8191.0]]) + np.round(draw.normal(3, 8) * 64) / 64
    yield _layer("large-mean", {"x": x}, "means of 2000 to 8191 over a spread of 1", "OnePassVariance")
    yield _layer(
        "large-mean/by-hand",
        {"x": [[40000, 40001, 40002, 40003]]},
        "differences -1.5 .. 1.5, variance 1.25",
        "OnePassVariance",
        config={"eps": 0},
    )
    yield _layer(
        "constant",
        {"x": [[7, 7, 7, 7], [0, 0, 0, 0]], "bias": [1, 2, 3, 4]},
        "no variance: the output is the bias, inv_std 1/sqrt(eps)",
        "OnePassVariance",
    )
    yield _layer(
        "constant/eps-0",
        {"x": [[4, 4], [1, 3]]},
        "0 · 1/0: NaN, inv_std is infinite; its neighbour is untouched",
        "AbsentIsNotZero",
        config={"eps": 0},
    )
    yield _layer("nan", {"x": [[1, NAN, 2], [1, 2, 4]]}, "NaN makes its row NaN, and no other", "VisibleNaN")
    yield _layer(
        "infinity",
        {"x": [[1, INF, 2], [1, 2, 4]]},
        "a row with an infinity is NaN",
        "VisibleNaN",
        want=("output",),
    )
    yield _layer("small", {"x": [[1e-4, 3e-4, 2e-4, 9e-4]]}, "eps outweighs the variance", "VarianceDivisor")
    yield _layer(
        "eps-1",
        {"x": Draw("norms/eps-1").normal(2, 6)},
        "an eps of its own",
        "AbsentIsNotZero",
        config={"eps": 1},
    )


def _rms_by_hand() -> Iterator[Draft]:
    zero: dict[str, Any] = {"config": {"eps": 0}}
    yield _rms("by-hand/pair", {"x": [[1, 7]]}, "mean square 25: [1/5, 7/5]", "ByHand", **zero)
    yield _rms("by-hand/weight", {"x": [[1, 7]], "weight": [10, -100]}, "[2, -140]", "ByHand", **zero)
    yield _rms("by-hand/no-mean", {"x": [[5, 5]]}, "the mean is not taken out: [1, 1]", "ByHand", **zero)
    yield _rms(
        "by-hand/eps",
        {"x": [[1, 7]]},
        "eps 75 within the root: [1/10, 7/10]",
        "VarianceDivisor",
        config={"eps": 75},
    )
    yield _rms("by-hand/rank-1", {"x": [3, 3, -3]}, "rank 1: [1, 1, -1]", "AxisOrder", **zero)
    yield _rms(
        "by-hand/default-eps",
        {"x": [[0.001, 0.001]]},
        "mean square 1e-6 beside the eps of 1e-5: 0.3015",
        "AbsentIsNotZero",
    )


def _rms_sizes() -> Iterator[Draft]:
    for n in (1, 2, 3, 7, 8, 9, 16, 17, 33, 64, 65):
        draw = Draw(f"norms/rms_norm/size/{n}")
        x = draw.normal(2, 2, n)
        x[..., -1] += 3
        yield _rms(f"size/{n}", {"x": x, "weight": draw.normal(n)}, "weight in the last slot", "VectorTail")
    yield _rms("empty", {"x": np.zeros((0, 4))}, "no rows", "EmptyKeys")
    yield _rms("zeros", {"x": [[0, 0, 0], [1, 2, 2]]}, "a row of zeros stays 0", "EmptyKeys")
    yield _rms(
        "zeros/eps-0",
        {"x": [[0, 0], [3, -3]]},
        "0 / 0 is NaN, and its neighbour is [1, -1]",
        "AbsentIsNotZero",
        config={"eps": 0},
    )
    yield _rms("nan", {"x": [[1, NAN], [1, 2]]}, "NaN makes its row NaN, and no other", "VisibleNaN")
    yield _rms("tiny", {"x": [[1e-6, -2e-6, 3e-6]]}, "eps outweighs the squares", "VarianceDivisor")
    yield _rms("large", {"x": [[1e9, -2e9, 2e9]]}, "squares of 1e18: [1, -2, 2] / sqrt 3", "Overflow")


def _halves() -> Iterator[Draft]:
    for op, name in (("layer_norm", "layer"), ("rms_norm", "rms")):
        draw = Draw(f"norms/{op}/half")
        weights = {"weight": draw.normal(9), "bias": draw.normal(9)}
        if name == "rms":
            del weights["bias"]
        yield _case(
            op,
            "half/random",
            {"x": draw.normal(4, 9), **weights},
            "rounded once at the end",
            "HalfInside",
            dtypes=HALF,
        )
        yield _case(
            op,
            "half/large",
            {"x": [[300, 400, -300, -400], [30000, 20000, 10000, -10000]]},
            "squares beyond 65504, which f32 holds",
            "HalfInside",
            dtypes=HALF,
            config={"eps": 0},
        )
        yield _case(
            op,
            "half/long",
            {"x": draw.normal(2, 200) + 4},
            "a sum of 200 terms, whose last ones a half type would swallow",
            "HalfInside",
            dtypes=HALF,
        )
        yield _case(
            op,
            "half/eps",
            {"x": [[1e-3, 3e-3]]},
            "an eps below the normal numbers of f16",
            "HalfInside",
            dtypes=HALF,
        )
        yield _case(op, "half/one", {"x": [[2.0], [-8.0]]}, "rows of one element", "HalfInside", dtypes=HALF)


def _errors() -> Iterator[Draft]:
    def refused(
        op: str, name: str, error: str, note: str, inputs: dict[str, Any] | None = None, **config: Any
    ) -> Draft:
        base: dict[str, Any] = {"x": np.ones((2, 3)), "weight": np.ones(3)} | (inputs or {})
        base = {key: x for key, x in base.items() if x is not None}
        return Draft(
            f"norms/{op}/error/{name}", op, base, config, flags=("ErrorCode",), note=note, error=error
        )

    for op in ("layer_norm", "rms_norm"):
        yield refused(op, "rank-0", "shape_mismatch", "a scalar has no last axis", {"x": np.array(1.0)})
        yield refused(
            op,
            "no-channels",
            "shape_mismatch",
            "rows of nothing",
            {"x": np.ones((2, 0)), "weight": np.ones(0)},
        )
        yield refused(op, "weight-size", "shape_mismatch", "a weight too few", {"weight": np.ones(2)})
        yield refused(op, "weight-rank", "shape_mismatch", "a weight of rank 2", {"weight": np.ones((1, 3))})
        yield refused(
            op,
            "dtype-weight",
            "dtype_mismatch",
            "a weight of another float type",
            {"weight": Other(np.ones(3))},
        )
        yield refused(op, "dtype-x", "dtype_mismatch", "integers", {"x": np.ones((2, 3), np.int64)})
        yield refused(op, "eps-negative", "invalid_config", "an eps below 0", eps=-1e-5)
        yield refused(op, "eps-text", "invalid_config", "an eps that is no number", eps="1e-5")
        yield refused(op, "missing-x", "invalid_request", "nothing to norm", {"x": None})
    yield refused("layer_norm", "bias-size", "shape_mismatch", "a bias too many", {"bias": np.ones(4)})
