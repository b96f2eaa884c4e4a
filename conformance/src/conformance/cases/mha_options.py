"""The suite `mha`, second part: rotation, norms of queries and keys, packed projections, dropout, pruned heads."""

from collections.abc import Iterator
from math import log
from typing import Any

import numpy as np

from ..inputs import Draw
from ..tensors import Tensors
from .draft import Draft, Other
from .mha import layer_inputs, with_biases

ALL = ("output", "weights", "lse", "mean_weights")
NAN = np.nan
GROUPED = {"num_heads": 4, "num_kv_heads": 2}


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _rotated()
    yield from _normalised()
    yield from _packed()
    yield from _dropped()
    yield from _halves()
    yield from _errors()


def _case(name: str, inputs: Any, note: str, *flags: str, **config: Any) -> Draft:
    dtypes = config.pop("dtypes", ("f32", "f64"))
    return Draft(f"mha/{name}", "mha", inputs, config, ALL, flags, note, dtypes=dtypes)


def _base(name: str, T: int = 5, Dv: int = 4) -> Tensors:
    """Two rows of T tokens, four heads of four channels on two."""
    return layer_inputs(f"mha/{name}", 2, T, 6, 4, 2, 4, Dv, 5)


def pack(inputs: Tensors, packing: str, Hq: int, Hkv: int) -> Tensors:
    """The same layer with its three projections, and their biases, in one."""
    packed = {name: x for name, x in inputs.items() if name[-2:] not in ("_q", "_k", "_v")}
    for kind in "wb":
        if f"{kind}_q" not in inputs:
            continue
        heads = {name: inputs[f"{kind}_{name}"] for name in "qkv"}
        split = {name: np.split(x, Hq if name == "q" else Hkv) for name, x in heads.items()}
        order = [*split["q"], *split["k"], *split["v"]]
        if packing == "heads":
            G = Hq // Hkv
            order = []
            for n in range(Hkv):
                order += [*split["q"][n * G : (n + 1) * G], split["k"][n], split["v"][n]]
        packed[f"{kind}_qkv"] = np.concatenate(order)
    return packed


def _by_hand() -> Iterator[Draft]:
    x = np.array([[[1.0, 1], [1, 2], [1, 4]]])
    turned = {
        "x": x,
        "w_q": np.array([[1.0, 0], [0, 0]]),
        "w_k": np.array([[1.0, 0], [0, 0]]),
        "w_v": np.array([[0.0, 1]]),
        "w_o": np.ones((1, 1)),
    }
    note = "queries and keys [1, 0], V = [1, 2, 4]: scores of the last row cos 2, cos 1, 1; output 2.937694"
    options: dict[str, Any] = {"num_heads": 1, "rope": {}, "scale": 1}
    yield _case("by-hand/rope", turned, note, "ByHand", "RopePosition", causal=True, **options)
    x = np.array([[[1.0], [3]]])
    plain = {
        "x": x,
        "w_q": np.zeros((1, 1)),
        "w_k": np.zeros((1, 1)),
        "w_v": np.ones((1, 1)),
        "w_o": np.ones((1, 1)),
    }
    mask = {"mask": np.array([[True, False], [True, True]])}
    yield _case(
        "by-hand/polarity", plain | mask, "true = attend: [1, 2]", "ByHand", "MaskPolarity", num_heads=1
    )
    # Rows of the packed weight: with D = 1 and x = [1, 0, ..., 0] each row's first number is what that head gets.
    rows = np.array([[0.0], [0], [log(2)], [0], [10], [20]])
    packed = {"x": np.ones((1, 1, 1)), "w_qkv": rows, "w_o": np.eye(2)}
    note = "q 0 0, k ln 2 and 0, v 10 20: output [10, 20]"
    yield _case("by-hand/blocks", packed, note, "ByHand", "PackedLayout", num_heads=2)
    note = "the same rows as (q 0, k 0, v ln 2) and (q 0, k 10, v 20): output [ln 2, 20]"
    yield _case("by-hand/heads", packed, note, "ByHand", "PackedLayout", num_heads=2, packing="heads")
    two = {"x": np.array([[[1.0, 2, 5, 6]]]), "w_q": np.zeros((4, 4)), "w_k": np.zeros((4, 4))}
    two |= {"w_v": np.eye(4), "w_o": np.eye(4), "head_mask": np.array([False, True])}
    yield _case(
        "by-hand/head-mask", two, "the first head is silent: [0, 0, 5, 6]", "ByHand", "HeadMask", num_heads=2
    )


def _rotated() -> Iterator[Draft]:
    plain: dict[str, Any] = {**GROUPED, "rope": {}}
    yield _case("rope/plain", _base("rope"), "queries and keys, not values", "RopePairing", **plain)
    yield _case("rope/causal", _base("rope"), "with a causal mask", "RopePosition", causal=True, **plain)
    options: dict[str, Any] = {"interleaved": True, "base": 500.0}
    note = "interleaved, with a base of its own"
    yield _case("rope/interleaved", _base("rope"), note, "RopePairing", **{**plain, "rope": options})
    partial = {"rotary_dim": 2}
    yield _case(
        "rope/partial", _base("rope"), "two of four channels", "RopePartial", **{**plain, "rope": partial}
    )
    moved = {"offset": 1000}
    note = "all positions moved: the weights are those without"
    yield _case("rope/offset", _base("rope"), note, "RopePosition", **{**plain, "rope": moved})
    rows = {"positions": np.array([[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]])}
    note = "a left-padded row"
    lengths: dict[str, Any] = {"mask": np.array([True] * 5 + [False] * 2 + [True] * 3).reshape(2, 1, 1, 5)}
    yield _case(
        "rope/positions", _base("rope") | rows | lengths, note, "RopePosition", "LeftPadding", **plain
    )
    scaled = {"scaling": {"type": "dynamic", "factor": 2, "original_length": 4}}
    far = {"positions": np.array([[0, 1, 2, 3, 9], [0, 1, 2, 3, 3]])}
    note = "one long row, one short"
    yield _case(
        "rope/scaling",
        _base("rope") | far,
        note,
        "RopeScaling",
        "RowIndependence",
        **{**plain, "rope": scaled},
    )
    long = {"scaling": {"type": "yarn", "factor": 4, "original_length": 16}}
    note = "the attention factor comes in twice"
    yield _case("rope/yarn", _base("rope"), note, "RopeScaling", **{**plain, "rope": long})
    yield _case(
        "rope/value-dim", _base("rope/value-dim", Dv=3), "values of another size", "ValueDim", **plain
    )
    yield _case("rope/empty", _base("rope/empty", T=0), "no tokens", "EmptyKeys", **plain)


def _normalised() -> Iterator[Draft]:
    draw = Draw("mha/qk-norm/weights")
    q_norm, k_norm = 1 + draw.normal(4) / 2, 1 + draw.normal(4) / 2
    both = {"q_norm": q_norm, "k_norm": k_norm}
    yield _case("qk-norm/both", _base("qk-norm") | both, "a weight for each", "QkNorm", **GROUPED)
    yield _case("qk-norm/queries", _base("qk-norm") | {"q_norm": q_norm}, "queries only", "QkNorm", **GROUPED)
    yield _case("qk-norm/keys", _base("qk-norm") | {"k_norm": k_norm}, "keys only", "QkNorm", **GROUPED)
    note = "before the rotation: the weights differ from channel to channel"
    yield _case("qk-norm/rope", _base("qk-norm") | both, note, "QkNorm", "RopePairing", rope={}, **GROUPED)
    yield _case(
        "qk-norm/eps",
        _base("qk-norm") | both,
        "a large eps",
        "QkNorm",
        "AbsentIsNotZero",
        qk_norm_eps=0.5,
        **GROUPED,
    )
    zero = _base("qk-norm") | both
    zero["x"][0, 2] = 0
    yield _case("qk-norm/zero", zero, "a token of 0: 0 over sqrt(eps), not 0/0", "QkNorm", **GROUPED)
    large = _base("qk-norm") | both
    large["x"] = large["x"] * 1e4
    yield _case("qk-norm/large", large, "scores that no longer grow with x", "QkNorm", "Overflow", **GROUPED)
    crossed = layer_inputs("mha/qk-norm/context", 2, 3, 6, 4, 2, 4, 4, 5, (7, 5)) | both
    yield _case("qk-norm/context", crossed, "keys of a context", "QkNorm", "CrossAttention", **GROUPED)


def _packed() -> Iterator[Draft]:
    for packing in ("blocks", "heads"):
        for Hq, Hkv in ((3, 3), (4, 2), (6, 2), (4, 1)):
            name = f"packed/{packing}-{Hq}-{Hkv}"
            inputs = pack(layer_inputs("mha/packed", 2, 4, 6, Hq, Hkv, 3, 3, 5), packing, Hq, Hkv)
            note = f"{Hq} query heads on {Hkv}"
            flags = ("PackedLayout", "HeadReshape", "GqaTile")
            yield _case(name, inputs, note, *flags, num_heads=Hq, num_kv_heads=Hkv, packing=packing)
        biased = pack(with_biases(_base("packed"), "mha/packed"), packing, 4, 2)
        yield _case(
            f"packed/{packing}-biases",
            biased,
            "biases packed alike",
            "PackedLayout",
            packing=packing,
            **GROUPED,
        )
        both = pack(_base("packed"), packing, 4, 2) | {
            "q_norm": np.array([1, 2, 0.5, 1]),
            "k_norm": np.ones(4),
        }
        note = "with norms, rotation and a causal mask"
        more: dict[str, Any] = {"packing": packing, "rope": {}, "causal": True}
        yield _case(
            f"packed/{packing}-all", both, note, "PackedLayout", "QkNorm", "RopePairing", **more, **GROUPED
        )
    default = pack(_base("packed"), "blocks", 4, 2)
    yield _case(
        "packed/default",
        default,
        "blocks, where nothing is said",
        "PackedLayout",
        "AbsentIsNotZero",
        **GROUPED,
    )
    one = {"w_qkv": default["w_qkv"], "w_o": default["w_o"], "x": np.zeros((0, 3, 6))}
    yield _case("packed/empty", one, "no rows", "EmptyKeys", **GROUPED)


def _dropped() -> Iterator[Draft]:
    drop = {"dropout": {"p": 0.4, "seed": 17}}
    yield _case(
        "dropout/plain",
        _base("dropout"),
        "of the weights, after the softmax",
        "DropoutMask",
        **drop,
        **GROUPED,
    )
    yield _case(
        "dropout/causal",
        _base("dropout"),
        "with a causal mask",
        "DropoutMask",
        causal=True,
        **drop,
        **GROUPED,
    )
    none = {"dropout": {"p": 0, "seed": 17}}
    yield _case("dropout/none", _base("dropout"), "p = 0 is no dropout", "DropoutScale", **none, **GROUPED)
    biased = with_biases(_base("dropout"), "mha/dropout")
    every = {"dropout": {"p": 1, "seed": 17}}
    yield _case("dropout/all", biased, "p = 1 leaves b_o", "DropoutScale", **every, **GROUPED)
    for name, kept in {"some": [True, False, False, True], "none": [False] * 4, "all": [True] * 4}.items():
        masked = biased | {"head_mask": np.array(kept)}
        note = "pruned heads add nothing, b_o stays; their weights are given all the same"
        yield _case(f"head-mask/{name}", masked, note, "HeadMask", **GROUPED)
    poisoned = layer_inputs("mha/head-mask/poison", 2, 4, 6, 3, 3, 4, 4, 5)
    poisoned["w_v"][4:8] = NAN
    poisoned |= {"head_mask": np.array([True, False, True])}
    yield _case(
        "head-mask/poison",
        poisoned,
        "NaN in the values of a pruned head",
        "HeadMask",
        "HiddenPoison",
        num_heads=3,
    )
    hidden = _base("mean-weights") | {"kv_lengths": np.array([0, 3])}
    yield _case(
        "mean-weights/empty-row", hidden, "a row without keys: a mean of zeros", "FullyMaskedRow", **GROUPED
    )
    single = layer_inputs("mha/mean-weights/one", 2, 3, 6, 1, 1, 4, 4, 5)
    yield _case(
        "mean-weights/one-head", single, "the mean of one head is that head", "HeadReshape", num_heads=1
    )


def _halves() -> Iterator[Draft]:
    halves: dict[str, Any] = {"dtypes": ("f16", "bf16")}
    yield _case(
        "half/plain",
        _base("half"),
        "no rounding between projection and attention",
        "HalfInside",
        **halves,
        **GROUPED,
    )
    biased = with_biases(_base("half"), "mha/half")
    yield _case("half/biases", biased, "with biases, causal", "HalfInside", causal=True, **halves, **GROUPED)
    yield _case(
        "half/rope",
        _base("half"),
        "turned in f32",
        "HalfInside",
        "AnglePrecision",
        rope={"offset": 300},
        **halves,
        **GROUPED,
    )
    both = _base("half") | {"q_norm": np.array([1, 2, 0.5, 1]), "k_norm": np.ones(4)}
    yield _case("half/qk-norm", both, "normed in f32", "HalfInside", "QkNorm", **halves, **GROUPED)
    packed = pack(biased, "heads", 4, 2)
    yield _case(
        "half/packed",
        packed,
        "packed, with biases",
        "HalfInside",
        "PackedLayout",
        packing="heads",
        **halves,
        **GROUPED,
    )
    drop = {"dropout": {"p": 0.3, "seed": 5}}
    yield _case(
        "half/dropout",
        _base("half"),
        "a factor of f32",
        "HalfInside",
        "DropoutScale",
        **drop,
        **halves,
        **GROUPED,
    )
    crossed = layer_inputs("mha/half/context", 2, 3, 6, 4, 2, 4, 3, 5, (7, 5))
    crossed |= {"kv_lengths": np.array([0, 5]), "bias": Draw("mha/half/bias").normal(4, 3, 7)}
    yield _case(
        "half/context",
        crossed,
        "a padded context and a bias",
        "HalfInside",
        "CrossAttention",
        **halves,
        **GROUPED,
    )
    long = layer_inputs("mha/half/long", 1, 17, 33, 2, 2, 8, 8, 16)
    yield _case(
        "half/long", long, "longer sums", "HalfInside", "VectorTail", num_heads=2, softcap=3.0, **halves
    )


def _errors() -> Iterator[Draft]:
    def refused(
        name: str, error: str, note: str, inputs: Any = None, packed: bool = False, **config: Any
    ) -> Draft:
        base: dict[str, Any] = dict(_base("options-error", 3))
        base = pack(base, "blocks", 4, 2) if packed else base
        base = {key: x for key, x in (base | (inputs or {})).items() if x is not None}
        config = {**GROUPED, **config}
        return Draft(f"mha/error/{name}", "mha", base, config, flags=("ErrorCode",), note=note, error=error)

    zeros, ones = np.zeros, np.ones
    shape, dtype, config = "shape_mismatch", "dtype_mismatch", "invalid_config"
    context, positions = {"context": zeros((2, 4, 6))}, zeros((2, 3), np.int64)
    yield refused("rope-context", config, "rotation of what stands elsewhere", context, rope={})
    yield refused("rope-number", config, "a rope is an object", rope=10000)
    yield refused("rope-rotary", config, "more channels than there are", rope={"rotary_dim": 6})
    yield refused("rope-scaling", config, "an unknown scaling", rope={"scaling": {"type": "ntk"}})
    odd = {"w_q": zeros((12, 6)), "w_k": zeros((6, 6)), "w_v": zeros((6, 6)), "w_o": zeros((5, 12))}
    yield refused("rope-odd", shape, "an odd head size", odd, rope={})
    yield refused("positions-shape", shape, "positions of one row", {"positions": positions[:1]}, rope={})
    yield refused("positions-float", dtype, "positions are whole", {"positions": zeros((2, 3))}, rope={})
    yield refused(
        "positions-twice", config, "positions and an offset", {"positions": positions}, rope={"offset": 2}
    )
    yield refused("q-norm-size", shape, "a norm over all heads", {"q_norm": ones(16)})
    yield refused("k-norm-rank", shape, "a norm of rank 2", {"k_norm": ones((2, 4))})
    yield refused("q-norm-dtype", dtype, "a norm of another float type", {"q_norm": Other(ones(4))})
    yield refused("qk-norm-eps", config, "a negative eps", {"q_norm": ones(4)}, qk_norm_eps=-1e-6)
    yield refused("packed-and-w-q", config, "queries twice", {"w_q": zeros((16, 6))}, True)
    yield refused("packed-context", config, "one projection for two sources", context, True)
    yield refused(
        "packed-rows", shape, "rows that are no multiple of eight heads", {"w_qkv": zeros((33, 6))}, True
    )
    yield refused("packed-width", shape, "x of another width", {"w_qkv": zeros((32, 5))}, True)
    yield refused("packed-bias", shape, "a bias of another size", {"b_qkv": zeros(31)}, True)
    yield refused(
        "packed-dtype", dtype, "weights of another float type", {"w_qkv": Other(zeros((32, 6)))}, True
    )
    yield refused("packing", config, "an unknown packing", None, True, packing="interleaved")
    yield refused("head-mask-size", shape, "a mask of KV heads", {"head_mask": ones(2, bool)})
    yield refused("head-mask-dtype", dtype, "a float mask", {"head_mask": ones(4)})
    yield refused("dropout-number", config, "dropout is p and a seed", dropout=0.1)
    yield refused("dropout-p", config, "more than all", dropout={"p": 1.1, "seed": 0})
    yield refused("missing-w-k", "invalid_request", "no projection of keys", {"w_k": None})
