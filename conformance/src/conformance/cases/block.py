"""The suite `block`, its first half: one block with all that it may have."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from ..tensors import Tensors
from .block_weights import block_weights
from .draft import Draft, Other

HALF = ("f16", "bf16")
NAN = np.nan
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "swiglu")
HEADS: dict[str, Any] = {"num_heads": 2}


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _kinds()
    yield from _options()
    yield from _cross()
    yield from _halves()
    yield from _errors()


def _tokens(name: str, B: int = 2, T: int = 4, C: int = 6) -> Tensors:
    return {"x": Draw(f"{name}/x").normal(B, T, C)}


def _case(
    name: str, inputs: dict[str, Any], note: str, *flags: str, dtypes: Any = None, **config: Any
) -> Draft:
    more = {} if dtypes is None else {"dtypes": dtypes}
    return Draft(f"block/block/{name}", "block", inputs, HEADS | config, flags=flags, note=note, **more)


def _by_hand() -> Iterator[Draft]:
    zeros: dict[str, Any] = {f"attention.w_{name}": np.zeros((2, 2)) for name in "qkvo"}
    zeros |= {f"norm_{n}.weight": np.ones(2) for n in (1, 2)}
    zeros |= {"ff.w_1": np.zeros((3, 2)), "ff.w_2": np.zeros((2, 3))}
    x = {"x": np.array([[[1.0, 3], [10, 30]]])}
    config: dict[str, Any] = {"num_heads": 1, "eps": 0}
    yield _case(
        "by-hand/pre", x | zeros, "weights of 0: pre-norm gives x back", "ByHand", "ResidualOrder", **config
    )
    yield _case(
        "by-hand/post",
        x | zeros,
        "post-norm gives the norm of x: [-1, 1]",
        "ByHand",
        "ResidualOrder",
        norm_first=False,
        **config,
    )
    mean = zeros | {"attention.w_v": np.eye(2), "attention.w_o": np.eye(2)}
    yield _case(
        "by-hand/attention",
        x | mean,
        "the mean of the normed rows, [-1, 1], is added: [0, 4], [9, 31]",
        "ByHand",
        "ResidualOrder",
        **config,
    )
    relu = zeros | {
        "ff.w_1": np.array([[1.0, 0], [0, 1], [0, 0]]),
        "ff.w_2": np.array([[0.0, 10, 0], [10, 0, 0]]),
    }
    yield _case(
        "by-hand/feed-forward",
        x | relu,
        "relu of [-1, 1] is [0, 1], and the rows of w_2 swap: [11, 3], [20, 30]",
        "ByHand",
        activation="relu",
        **config,
    )
    biased = zeros | {
        "ff.b_1": np.array([2.0, -2, 0]),
        "ff.b_2": np.array([0.5, 0]),
        "ff.w_2": np.array([[1.0, 1, 1], [0, 0, 0]]),
    }
    yield _case(
        "by-hand/biases",
        x | biased,
        "relu of the bias is [2, 0, 0]: 2.5 is added to the first channel",
        "ByHand",
        activation="relu",
        **config,
    )
    rms = zeros | {"attention.w_v": np.eye(2), "attention.w_o": np.eye(2)}
    yield _case(
        "by-hand/rms",
        {"x": np.array([[[7.0, 1]]])} | rms,
        "RMS 5: [7, 1] + [7/5, 1/5]",
        "ByHand",
        norm="rms",
        **config,
    )


def _kinds() -> Iterator[Draft]:
    for activation in ACTIVATIONS:
        for norm in ("layer", "rms"):
            for first in (True, False):
                name = f"{activation}/{norm}/{'pre' if first else 'post'}"
                inputs = _tokens(name) | block_weights(f"block/{name}", norm=norm, activation=activation)
                flags = ("GeluForm",) if "gelu" in activation else ("GateOrder",)
                yield _case(
                    name,
                    inputs,
                    f"{activation}, {norm} norm, {'pre' if first else 'post'}-norm",
                    "ResidualOrder",
                    *flags,
                    activation=activation,
                    norm=norm,
                    norm_first=first,
                )
    plain = _tokens("plain") | block_weights("block/plain", biases=False)
    yield _case("plain", plain, "no biases, and every default", "AbsentIsNotZero")


def _options() -> Iterator[Draft]:
    def inputs(name: str, **more: Any) -> Tensors:
        return _tokens(name) | block_weights(f"block/{name}", **more)

    yield _case("causal", inputs("causal"), "a decoder's block", "CausalAlignment", causal=True)
    yield _case("rope", inputs("rope"), "turned queries and keys", "SharedRopeKey", causal=True, rope={})
    yield _case(
        "rope-options",
        inputs("rope-options"),
        "by neighbours, base 100, 2 of 4 channels",
        "SharedRopeKey",
        rope={"interleaved": True, "base": 100, "rotary_dim": 2},
    )
    yield _case(
        "gqa", inputs("gqa", H=4, Hkv=2, D=2), "4 query heads on 2", "GqaTile", num_heads=4, num_kv_heads=2
    )
    yield _case("qk-norm", inputs("qk-norm", qk_norm=True), "queries and keys normed", "HeadReshape")
    yield _case(
        "qk-norm-eps",
        inputs("qk-norm-eps", qk_norm=True),
        "with an eps of its own",
        "AbsentIsNotZero",
        qk_norm_eps=0.5,
    )
    yield _case("eps", inputs("eps"), "an eps of the norms", "VarianceDivisor", eps=0.5)
    llama = inputs("llama", H=4, Hkv=2, D=4, norm="rms", activation="swiglu", biases=False, qk_norm=True)
    yield _case(
        "llama",
        llama,
        "RMS norm, rope, grouped heads, qk-norm, SwiGLU",
        "ResidualOrder",
        num_heads=4,
        num_kv_heads=2,
        norm="rms",
        activation="swiglu",
        causal=True,
        rope={"base": 500000},
    )
    lengths = inputs("lengths") | {"kv_lengths": np.array([2, 4])}
    yield _case("lengths", lengths, "a padded batch", "RowIndependence")
    nothing = inputs("lengths-empty") | {"kv_lengths": np.array([0, 3])}
    yield _case(
        "lengths-empty", nothing, "a row without keys: the attention adds its bias alone", "FullyMaskedRow"
    )
    poisoned = inputs("poison") | {"kv_lengths": np.array([2, 4])}
    poisoned["x"][0, 2:] = NAN
    yield _case("poison", poisoned, "NaN in padded tokens stays in their own rows", "HiddenPoison")
    for name, B, T in (("no-tokens", 2, 0), ("no-rows", 0, 3), ("one-token", 1, 1)):
        yield _case(
            f"empty/{name}",
            _tokens(name, B, T) | block_weights(f"block/{name}"),
            "sizes of 0 and 1",
            "EmptyKeys",
        )
    wide = _tokens("wide", 1, 9, 17) | block_weights("block/wide", C=17, F=33, H=2, D=9)
    yield _case("wide", wide, "sizes around the vector widths", "VectorTail", causal=True)
    narrow = _tokens("narrow", 1, 3, 2) | block_weights("block/narrow", C=2, F=1, H=1, Hkv=1, D=2)
    yield _case("narrow", narrow, "one hidden unit", "VectorTail", num_heads=1)


def _cross() -> Iterator[Draft]:
    def inputs(name: str, Tk: int = 5, Cc: int = 7, **more: Any) -> Tensors:
        context = {"context": Draw(f"{name}/context").normal(2, Tk, Cc)}
        return _tokens(name) | context | block_weights(f"block/{name}", Cc=Cc, **more)

    yield _case(
        "cross/pre",
        inputs("cross/pre"),
        "a decoder's block over a context",
        "CrossAttention",
        "ResidualOrder",
        causal=True,
    )
    yield _case(
        "cross/post",
        inputs("cross/post"),
        "post-norm: three norms in their order",
        "CrossAttention",
        "ResidualOrder",
        causal=True,
        norm_first=False,
    )
    yield _case(
        "cross/rms",
        inputs("cross/rms", norm="rms", activation="swiglu"),
        "RMS norm and SwiGLU",
        "CrossAttention",
        norm="rms",
        activation="swiglu",
    )
    yield _case(
        "cross/rope",
        inputs("cross/rope"),
        "only the self-attention is turned, and only it is causal",
        "CrossAttention",
        causal=True,
        rope={},
    )
    yield _case(
        "cross/gqa",
        inputs("cross/gqa", H=4, Hkv=2, D=2),
        "grouped heads in both",
        "GqaTile",
        num_heads=4,
        num_kv_heads=2,
    )
    normed = inputs("cross/qk-norm", qk_norm=True)
    yield _case("cross/qk-norm", normed, "queries and keys normed in both", "CrossAttention", "HeadReshape")
    lengths = inputs("cross/lengths") | {"kv_lengths": np.array([3, 4]), "context_lengths": np.array([5, 2])}
    yield _case(
        "cross/lengths", lengths, "lengths of their own for both", "CrossAttention", "RowIndependence"
    )
    hidden = inputs("cross/empty") | {"context_lengths": np.array([0, 5])}
    yield _case("cross/empty", hidden, "a row without a context", "FullyMaskedRow")
    poisoned = inputs("cross/poison") | {"context_lengths": np.array([3, 5])}
    poisoned["context"][0, 3:] = NAN
    yield _case("cross/poison", poisoned, "NaN in a padded context changes nothing", "HiddenPoison")
    yield _case(
        "cross/one", inputs("cross/one", Tk=1, Cc=1), "a context of one position and one channel", "EmptyKeys"
    )
    yield _case("cross/none", inputs("cross/none", Tk=0), "a context of no positions", "EmptyKeys")


def _halves() -> Iterator[Draft]:
    for name, weights, config in (
        ("pre", {}, {}),
        ("post", {}, {"norm_first": False, "activation": "relu"}),
        (
            "rms",
            {"norm": "rms", "activation": "swiglu"},
            {"norm": "rms", "activation": "swiglu", "causal": True},
        ),
        ("rope", {"qk_norm": True}, {"rope": {}, "causal": True, "activation": "gelu_tanh"}),
    ):
        inputs = _tokens(f"half/{name}") | block_weights(f"block/half/{name}", **weights)
        yield _case(
            f"half/{name}", inputs, "nothing is rounded in between", "HalfInside", dtypes=HALF, **config
        )
    context = {"context": Draw("block/half/context").normal(2, 3, 5)}
    inputs = _tokens("half/cross") | context | block_weights("block/half/cross", Cc=5)
    yield _case("half/cross", inputs, "nor over a context", "HalfInside", "CrossAttention", dtypes=HALF)


def _errors() -> Iterator[Draft]:
    def refused(
        name: str,
        error: str,
        note: str,
        inputs: dict[str, Any] | None = None,
        *,
        cross: bool = False,
        **config: Any,
    ) -> Draft:
        base: dict[str, Any] = _tokens("error") | block_weights("block/error", Cc=5 if cross else None)
        base |= {"context": np.zeros((2, 3, 5))} if cross else {}
        base = {key: x for key, x in (base | (inputs or {})).items() if x is not None}
        config = {key: x for key, x in (HEADS | config).items() if x is not ...}
        return Draft(
            f"block/block/error/{name}",
            "block",
            base,
            config,
            flags=("ErrorCode",),
            note=note,
            error=error,
            dtypes=("f32",),
        )

    zeros = np.zeros
    yield refused("activation", "invalid_config", "an unknown activation", activation="tanh")
    yield refused("norm", "invalid_config", "an unknown norm", norm="batch")
    yield refused("norm-first", "invalid_config", "norm_first is true or false", norm_first=1)
    yield refused("eps", "invalid_config", "an eps below 0", eps=-1)
    yield refused("heads", "invalid_config", "no heads", num_heads=0)
    yield refused("heads-missing", "invalid_request", "no number of heads", num_heads=...)
    yield refused("rope-number", "invalid_config", "a number where a rope is due", rope=2)
    yield refused("causal-number", "invalid_config", "causal is true or false", causal=1)
    yield refused("rank-x", "shape_mismatch", "x of rank 2", {"x": zeros((4, 6))})
    yield refused("width-x", "shape_mismatch", "x of another width", {"x": zeros((2, 4, 5))})
    yield refused("norm-size", "shape_mismatch", "a norm over 5 of 6 channels", {"norm_1.weight": np.ones(5)})
    yield refused("ff-in", "shape_mismatch", "w_1 over other channels", {"ff.w_1": zeros((9, 5))})
    yield refused("ff-hidden", "shape_mismatch", "w_2 over another hidden size", {"ff.w_2": zeros((6, 8))})
    yield refused(
        "ff-out", "shape_mismatch", "w_2 onto other channels", {"ff.w_2": zeros((5, 9)), "ff.b_2": zeros(5)}
    )
    yield refused("ff-bias", "shape_mismatch", "b_1 of another size", {"ff.b_1": zeros(8)})
    yield refused(
        "out-width",
        "shape_mismatch",
        "an attention onto other channels",
        {"attention.w_o": zeros((5, 8)), "attention.b_o": zeros(5)},
    )
    yield refused(
        "lengths-beyond", "invalid_config", "more tokens than there are", {"kv_lengths": np.array([5, 4])}
    )
    yield refused(
        "context-lengths",
        "invalid_config",
        "more positions than there are",
        {"context_lengths": np.array([4, 3])},
        cross=True,
    )
    yield refused(
        "context-width",
        "shape_mismatch",
        "a context of another width",
        {"context": zeros((2, 3, 6))},
        cross=True,
    )
    yield refused(
        "context-batch",
        "shape_mismatch",
        "a context of another batch",
        {"context": zeros((1, 3, 5))},
        cross=True,
    )
    yield refused(
        "context-alone", "invalid_request", "a context without its weights", {"context": zeros((2, 3, 6))}
    )
    yield refused(
        "cross-alone", "invalid_request", "weights for a context, and none", {"context": None}, cross=True
    )
    yield refused(
        "dtype-w", "dtype_mismatch", "a weight of another float type", {"ff.w_1": Other(zeros((9, 6)))}
    )
    yield refused(
        "dtype-norm", "dtype_mismatch", "a norm of another float type", {"norm_2.weight": Other(np.ones(6))}
    )
    yield refused("dtype-x", "dtype_mismatch", "integer tokens", {"x": zeros((2, 4, 6), np.int64)})
    yield refused("missing-w3", "invalid_request", "SwiGLU without w_3", activation="swiglu")
    yield refused(
        "missing-norm", "invalid_request", "no second norm", {"norm_2.weight": None, "norm_2.bias": None}
    )
    yield refused("missing-w", "invalid_request", "no output projection", {"attention.w_o": None})
