"""The suite `mha`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from ..tensors import Tensors
from .draft import Draft, Other

ALL = ("output", "weights", "lse")


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _shapes()
    yield from _rules()
    yield from _errors()


def layer_inputs(
    name: str,
    B: int,
    Tq: int,
    C: int,
    Hq: int,
    Hkv: int,
    D: int,
    Dv: int,
    out: int,
    context: tuple[int, int] | None = None,
) -> Tensors:
    """x (B, Tq, C), perhaps a context (B, Tk, Cc), and weights of the size that keeps the variance at 1."""
    draw = Draw(name)
    inputs = {"x": draw.normal(B, Tq, C)}
    width = C
    if context is not None:
        inputs["context"] = draw.normal(B, *context)
        width = context[1]
    for weight, rows, columns in (
        ("w_q", Hq * D, C),
        ("w_k", Hkv * D, width),
        ("w_v", Hkv * Dv, width),
        ("w_o", out, Hq * Dv),
    ):
        inputs[weight] = draw.normal(rows, columns) / np.sqrt(max(columns, 1))
    inputs["w_q"] *= 2  # sharper weights
    return inputs


def with_biases(inputs: Tensors, name: str) -> Tensors:
    """The inputs with all four projection biases."""
    draw = Draw(f"{name}/biases")
    return inputs | {f"b_{p}": draw.normal(inputs[f"w_{p}"].shape[0]) for p in ("q", "k", "v", "o")}


def _case(
    name: str, inputs: Tensors, note: str, *flags: str, want: tuple[str, ...] = ALL, **config: Any
) -> Draft:
    return Draft(f"mha/{name}", "mha", inputs, config, want=want, flags=flags, note=note)


def _by_hand() -> Iterator[Draft]:
    # Two heads of two channels, queries and keys 0: every head returns its running block of x, and w_o is the identity.
    x = np.array([[[1.0, 2, 5, 6]], [[3, 4, 7, 8]]])
    zero, one = np.zeros((4, 4)), np.eye(4)
    inputs = {"x": x, "w_q": zero, "w_k": zero, "w_v": one, "w_o": one}
    yield _case(
        "by-hand/identity", inputs, "one token a row: the output is x", "ByHand", "HeadReshape", num_heads=2
    )
    x = np.array([[[1.0, 2, 5, 6], [3, 4, 7, 8]]])
    yield _case(
        "by-hand/merge",
        inputs | {"x": x},
        "causal with uniform weights: [1, 2, 5, 6], [2, 3, 6, 7]",
        "HeadReshape",
        num_heads=2,
        causal=True,
    )
    swap = np.eye(4)[[2, 3, 0, 1]]
    yield _case(
        "by-hand/out-rows",
        inputs | {"x": x, "w_o": swap},
        "w_o is (out, in): heads swapped",
        "HeadReshape",
        "AxisOrder",
        num_heads=2,
        causal=True,
    )
    shear = np.array([[1.0, 2, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    yield _case(
        "by-hand/transpose",
        inputs | {"x": x, "w_v": shear},
        "y = x Wᵀ, not x W: first channel 1 + 2·2 = 5",
        "AxisOrder",
        num_heads=2,
        causal=True,
    )
    biased = inputs | {"x": x, "b_v": np.array([10.0, 20, 30, 40]), "b_o": np.array([1.0, 0, 0, 0])}
    yield _case(
        "by-hand/bias",
        biased,
        "b_v passes through the weights, b_o is added last",
        "ByHand",
        num_heads=2,
        causal=True,
    )


def _shapes() -> Iterator[Draft]:
    for heads, D in ((1, 5), (2, 4), (3, 3), (4, 8), (5, 2), (8, 1), (7, 9)):
        name = f"heads/{heads}x{D}"
        yield _case(
            name,
            layer_inputs(f"mha/{name}", 2, 5, 6, heads, heads, D, D, 6),
            f"{heads} heads of {D} channels",
            "HeadReshape",
            num_heads=heads,
        )
    for Hq, Hkv in ((4, 2), (6, 2), (6, 1), (6, 3)):
        name = f"gqa/{Hq}-{Hkv}"
        yield _case(
            name,
            layer_inputs(f"mha/{name}", 2, 4, 7, Hq, Hkv, 3, 5, 6),
            f"{Hq} query heads on {Hkv}",
            "GqaTile",
            "HeadReshape",
            num_heads=Hq,
            num_kv_heads=Hkv,
        )
    name = "value-dim"
    yield _case(
        name,
        layer_inputs("mha/value-dim", 2, 4, 6, 2, 2, 3, 7, 5),
        "Dv = 7 beside D = 3, width 6 in and 5 out",
        "ValueDim",
        num_heads=2,
    )
    name = "biases"
    yield _case(
        name,
        with_biases(layer_inputs("mha/biases", 2, 4, 6, 3, 3, 4, 4, 6), "mha/biases"),
        "all four projection biases",
        "HeadReshape",
        num_heads=3,
    )
    only_one = layer_inputs("mha/bias-k", 1, 3, 5, 2, 2, 4, 4, 5)
    yield _case(
        "bias-k",
        only_one | {"b_k": Draw("mha/bias-k/b").normal(8)},
        "b_k alone: shifts each row of scores by a constant",
        "Shift",
        num_heads=2,
    )
    for Tk, width in ((7, 6), (3, 9), (1, 4), (0, 6)):
        name = f"context/{Tk}x{width}"
        yield _case(
            name,
            layer_inputs(f"mha/{name}", 2, 4, 6, 2, 2, 3, 3, 6, (Tk, width)),
            f"a context of {Tk} positions and width {width}",
            "CrossAttention",
            num_heads=2,
        )
    for name, sizes in {"no-tokens": (2, 0, 4), "no-rows": (0, 3, 4), "one-token": (1, 1, 4)}.items():
        yield _case(
            f"empty/{name}",
            with_biases(layer_inputs(f"mha/{name}", *sizes, 2, 2, 3, 3, 4), name),
            "sizes of 0 and 1",
            "EmptyKeys",
            num_heads=2,
        )
    yield _case(
        "wide",
        layer_inputs("mha/wide", 1, 17, 65, 4, 2, 16, 17, 33),
        "sizes around the vector widths",
        "VectorTail",
        num_heads=4,
        num_kv_heads=2,
    )
    yield _case(
        "large",
        with_biases(layer_inputs("mha/large", 2, 40, 128, 8, 8, 16, 16, 128), "mha/large"),
        "a layer of an everyday size",
        "VectorTail",
        num_heads=8,
        want=("output",),
    )


def _rules() -> Iterator[Draft]:
    def base(name: str) -> Tensors:
        return with_biases(layer_inputs(f"mha/{name}", 2, 5, 6, 4, 2, 3, 4, 6), f"mha/{name}")

    heads: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2}
    yield _case("causal", base("causal"), "causal self-attention", "CausalAlignment", causal=True, **heads)
    yield _case(
        "offset",
        base("offset"),
        "causal with an offset",
        "CausalAlignment",
        causal=True,
        q_offset=-2,
        **heads,
    )
    yield _case("window", base("window"), "a window", "WindowOffByOne", window=[1, 1], **heads)
    yield _case(
        "softcap",
        base("softcap"),
        "softcap with a causal mask",
        "SoftcapOrder",
        softcap=0.7,
        causal=True,
        **heads,
    )
    yield _case("scale", base("scale"), "a scale of its own", "AbsentIsNotZero", scale=0.1, **heads)
    yield _case(
        "scale-zero", base("scale-zero"), "a scale of 0: uniform weights", "AbsentIsNotZero", scale=0, **heads
    )
    lengths = base("lengths") | {"kv_lengths": np.array([2, 5])}
    yield _case("lengths", lengths, "a padded batch by its lengths", "RowIndependence", **heads)
    padding = base("padding") | {"mask": (np.arange(5) < np.array([[3], [5]]))[:, None, None]}
    yield _case(
        "padding-mask",
        padding,
        "a padded batch by its mask (B, 1, 1, Tk)",
        "MaskBroadcast",
        "RowIndependence",
        **heads,
    )
    left = base("left-padding") | {"mask": (np.arange(5) >= np.array([[2], [0]]))[:, None, None]}
    yield _case(
        "left-padding",
        left,
        "padding on the left: leading rows are empty under causal",
        "LeftPadding",
        "FullyMaskedRow",
        causal=True,
        **heads,
    )
    hidden = base("all-hidden") | {"kv_lengths": np.array([0, 3])}
    yield _case("empty-row", hidden, "a row without keys: output b_o", "FullyMaskedRow", **heads)
    bias = base("bias") | {"bias": Draw("mha/bias/bias").normal(4, 5, 5)}
    yield _case("attention-bias", bias, "a bias a head", "MaskBroadcast", **heads)
    offsets = base("offsets") | {"q_offset": np.array([0, -3])}
    yield _case(
        "offset-per-row",
        offsets,
        "an alignment a row",
        "CausalAlignment",
        "RowIndependence",
        causal=True,
        **heads,
    )
    poisoned = base("poison")
    poisoned["x"][0, 3:] = np.nan
    poisoned |= {"kv_lengths": np.array([3, 5])}
    yield _case("poison", poisoned, "NaN in padded tokens stays in their own rows", "HiddenPoison", **heads)
    crossed = layer_inputs("mha/cross-lengths", 2, 3, 6, 4, 2, 3, 4, 6, (7, 5)) | {
        "kv_lengths": np.array([4, 7])
    }
    yield _case("cross-lengths", crossed, "a padded context", "CrossAttention", "RowIndependence", **heads)


def _errors() -> Iterator[Draft]:
    def refused(
        name: str, error: str, note: str, inputs: dict[str, Any] | None = None, **config: Any
    ) -> Draft:
        base: dict[str, Any] = dict(layer_inputs("mha/error", 2, 3, 6, 4, 2, 3, 5, 7))
        base |= inputs or {}
        base = {key: x for key, x in base.items() if x is not None}
        config = {"num_heads": 4, "num_kv_heads": 2} | config
        return Draft(f"mha/error/{name}", "mha", base, config, flags=("ErrorCode",), note=note, error=error)

    zeros = np.zeros
    yield refused("heads-zero", "invalid_config", "no heads", num_heads=0)
    yield refused("heads-negative", "invalid_config", "fewer than none", num_kv_heads=-1)
    yield refused("groups", "invalid_config", "4 heads on 3", num_kv_heads=3)
    yield refused("heads-fraction", "invalid_config", "half a head", num_heads=2.5)
    yield refused("softcap-zero", "invalid_config", "softcap 0", softcap=0)
    yield refused("rank-x", "shape_mismatch", "x of rank 2", {"x": zeros((3, 6))})
    yield refused("width-x", "shape_mismatch", "x of another width than w_q", {"x": zeros((2, 3, 5))})
    yield refused(
        "rows-q", "shape_mismatch", "rows that are no multiple of the heads", {"w_q": zeros((13, 6))}
    )
    yield refused("rows-k", "shape_mismatch", "another head size in w_k", {"w_k": zeros((8, 6))})
    yield refused("columns-o", "shape_mismatch", "w_o over other heads", {"w_o": zeros((7, 12))})
    yield refused("b-q", "shape_mismatch", "a bias of another size", {"b_q": zeros(5)})
    yield refused(
        "context-batch", "shape_mismatch", "a context of another batch", {"context": zeros((3, 4, 6))}
    )
    yield refused(
        "context-width",
        "shape_mismatch",
        "a context of another width than w_k",
        {"context": zeros((2, 4, 5))},
    )
    yield refused("mask", "shape_mismatch", "a mask over 4 of 3 keys", {"mask": np.ones(4, bool)})
    yield refused(
        "dtype-w", "dtype_mismatch", "a weight of another float type", {"w_v": Other(zeros((10, 6)))}
    )
    yield refused("dtype-b", "dtype_mismatch", "a bias of another float type", {"b_o": Other(zeros(7))})
    yield refused("dtype-x", "dtype_mismatch", "integer tokens", {"x": zeros((2, 3, 6), np.int64)})
    yield refused("missing-w", "invalid_request", "no output projection", {"w_o": None})
