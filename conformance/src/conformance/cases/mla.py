"""The suite `mla`: multi-head latent attention, expanded or absorbed; both answer the same cases."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from ..tensors import Tensors
from .draft import Draft, Other

ALL = ("output", "weights", "lse", "latent", "rope_key")
HALF = ("f16", "bf16")
NAN = np.nan


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _by_hand()
    yield from _sizes()
    yield from _options()
    yield from _halves()
    yield from _errors()


def mla_inputs(
    name: str,
    B: int = 2,
    T: int = 5,
    C: int = 6,
    H: int = 2,
    Dn: int = 3,
    Dr: int = 4,
    R: int = 5,
    Dv: int = 3,
    out: int = 7,
    query_latent: int | None = None,
) -> Tensors:
    """x and weights of the size that keeps the variance at 1."""
    draw = Draw(name)
    source = C if query_latent is None else query_latent
    inputs = {"x": draw.normal(B, T, C)}
    shapes = {
        "w_dq": (query_latent, C),
        "w_q": (H * (Dn + Dr), source),
        "w_dkv": (R, C),
        "w_kr": (Dr, C),
        "w_uk": (H * Dn, R),
        "w_uv": (H * Dv, R),
        "w_o": (out, H * Dv),
    }
    for weight, (rows, columns) in shapes.items():
        if rows is not None:
            inputs[weight] = draw.normal(rows, columns) / np.sqrt(columns)
    inputs["w_q"] *= 2  # sharper weights
    return inputs


def _case(
    name: str, inputs: dict[str, Any], note: str, *flags: str, dtypes: Any = None, **config: Any
) -> Draft:
    more = {} if dtypes is None else {"dtypes": dtypes}
    return Draft(
        f"mla/{name}", "mla", inputs, {"num_heads": 2} | config, want=ALL, flags=flags, note=note, **more
    )


def _norms(inputs: Tensors, name: str, *names: str) -> Tensors:
    """The inputs with these norms; their sizes are those of the latents."""
    size = {"kv_norm": "w_dkv", "q_norm": "w_dq"}
    draw = Draw(f"{name}/norms")
    return inputs | {norm: 1 + 0.5 * draw.normal(inputs[size[norm]].shape[0]) for norm in names}


def _by_hand() -> Iterator[Draft]:
    x = np.array([[[1.0, 1], [1, 2], [1, 4]]])  # a constant, and the value
    one_head: dict[str, Any] = {
        "x": x,
        "w_q": np.array([[0.0, 0], [1, 0], [0, 0]]),
        "w_dkv": np.array([[0.0, 1]]),
        "w_kr": np.array([[1.0, 0], [0, 0]]),
        "w_uk": np.array([[0.0]]),
        "w_uv": np.array([[1.0]]),
        "w_o": np.array([[1.0]]),
    }
    yield _case(
        "by-hand/turned",
        one_head,
        "one frequency: scores cos 2, cos 1, 1 in the last row, and 2.937694 there",
        "ByHand",
        "SharedRopeKey",
        num_heads=1,
        scale=1,
        causal=True,
    )
    flat = one_head | {"w_q": np.zeros((3, 2))}
    yield _case("by-hand/uniform", flat, "equal weights: 1, 3/2, 7/3", "ByHand", num_heads=1, causal=True)
    lifted = flat | {"w_uv": np.array([[1.0], [10], [100]]), "w_o": np.array([[1.0, 0, 0], [0, 0, 1]])}
    yield _case(
        "by-hand/lift",
        lifted,
        "Dv = 3 from one latent: 7/3 and 700/3 in the last row",
        "ValueDim",
        num_heads=1,
        causal=True,
    )
    ln2 = float(np.log(2))
    plain = one_head | {
        "x": np.array([[[1.0, 0], [1, ln2]]]),
        "w_q": np.array([[1.0, 0], [0, 0], [0, 0]]),
        "w_uk": np.array([[1.0]]),
        "w_uv": np.array([[3 / ln2]]),
    }
    yield _case(
        "by-hand/plain",
        plain,
        "scores 0 and ln 2 by the plain part alone: 0, then 2/3 of 3 = 2",
        "ByHand",
        num_heads=1,
        scale=1,
        causal=True,
    )
    scaled = plain | {
        "w_q": np.concatenate([[[4.0, 0]], np.zeros((15, 2))]),
        "w_kr": np.zeros((14, 2)),
        "w_uk": np.array([[1.0], [0]]),
    }
    yield _case(
        "by-hand/scale",
        scaled,
        "Dn + Dr = 16: 4 ln 2 / 4, whatever R = 1 is",
        "AbsorbedScale",
        num_heads=1,
        causal=True,
    )
    normed = flat | {"x": np.array([[[1.0, 5], [1, -3]]]), "kv_norm": np.array([2.0])}
    yield _case(
        "by-hand/kv-norm",
        normed,
        "a latent of one channel becomes ±2: 2, 0",
        "ByHand",
        num_heads=1,
        causal=True,
        eps=0,
    )


def _sizes() -> Iterator[Draft]:
    for name, sizes in {
        "heads/1": {"H": 1},
        "heads/3": {"H": 3},
        "heads/5": {"H": 5, "Dn": 2, "Dr": 2},
        "latent/1": {"R": 1},
        "latent/wide": {"R": 17},
        "rope/2": {"Dr": 2},
        "rope/8": {"Dr": 8, "Dn": 1},
        "value-dim/1": {"Dv": 1},
        "value-dim/8": {"Dv": 8},
        "out/1": {"out": 1},
        "width/1": {"C": 1},
        "tokens/1": {"T": 1},
        "tokens/17": {"T": 17, "B": 1},
        "tokens/33": {"T": 33, "B": 1, "Dn": 2, "Dr": 2},
        "tokens/65": {"T": 65, "B": 1, "Dn": 2, "Dr": 2, "R": 3, "C": 3, "out": 2},
        "empty/no-tokens": {"T": 0},
        "empty/no-rows": {"B": 0},
    }.items():
        flag = "EmptyKeys" if name.startswith("empty") else "AbsorbedScale"
        inputs = mla_inputs(f"mla/{name}", **sizes)
        yield _case(name, inputs, f"{sizes}", flag, "HeadReshape", num_heads=sizes.get("H", 2), causal=True)


def _options() -> Iterator[Draft]:
    yield _case("whole", mla_inputs("mla/whole"), "not causal", "MaskComposition")
    for name, rows in (("query-latent", 4), ("query-latent-wide", 9)):
        yield _case(
            name,
            mla_inputs(f"mla/{name}", query_latent=rows),
            "queries through a latent of their own",
            "HeadReshape",
            causal=True,
        )
    name = "norms/kv"
    yield _case(
        name,
        _norms(mla_inputs(f"mla/{name}"), name, "kv_norm"),
        "the latent is normed",
        "ByHand",
        causal=True,
    )
    name = "norms/q"
    inputs = _norms(mla_inputs(f"mla/{name}", query_latent=4), name, "q_norm")
    yield _case(name, inputs, "the latent of the queries is normed", "ByHand", causal=True)
    name = "norms/both"
    inputs = _norms(mla_inputs(f"mla/{name}", query_latent=4), name, "kv_norm", "q_norm")
    yield _case(name, inputs, "both are", "ByHand", causal=True)
    yield _case("norms/eps", inputs, "an eps of its own", "AbsentIsNotZero", causal=True, eps=0.5)
    yield _case(
        "scale", mla_inputs("mla/scale"), "a scale of its own", "AbsentIsNotZero", causal=True, scale=0.75
    )
    yield _case(
        "scale-zero",
        mla_inputs("mla/scale-zero"),
        "scale 0: uniform weights",
        "AbsentIsNotZero",
        causal=True,
        scale=0,
    )
    for name, rope in {
        "rope/interleaved": {"interleaved": True},
        "rope/base": {"base": 100},
        "rope/offset": {"offset": 7},
        "rope/partial": {"rotary_dim": 2},
        "rope/defaults": {},
        "rope/linear": {"scaling": {"type": "linear", "factor": 4}},
    }.items():
        yield _case(name, mla_inputs(f"mla/{name}"), f"rope {rope}", "SharedRopeKey", causal=True, rope=rope)
    lengths = mla_inputs("mla/lengths", B=3) | {"kv_lengths": np.array([5, 2, 1])}
    yield _case("lengths/mixed", lengths, "padding is not attended to", "RowIndependence")
    yield _case(
        "lengths/causal",
        lengths,
        "nor with a causal order",
        "RowIndependence",
        "MaskComposition",
        causal=True,
    )
    nothing = mla_inputs("mla/lengths-empty") | {"kv_lengths": np.array([0, 3])}
    yield _case("lengths/empty", nothing, "a row without keys: 0, lse -inf", "FullyMaskedRow")
    poisoned = mla_inputs("mla/poison")
    poisoned["x"][0, 3:] = NAN
    yield _case(
        "poison",
        poisoned | {"kv_lengths": np.array([3, 5])},
        "NaN in padded tokens stays in their own rows",
        "HiddenPoison",
    )
    future = mla_inputs("mla/future", B=1)
    future["x"][0, 3] = NAN
    yield _case(
        "poison-causal",
        future,
        "NaN in a later token leaves the rows before it alone",
        "HiddenPoison",
        causal=True,
    )


def _halves() -> Iterator[Draft]:
    for name, sizes, config in (
        ("plain", {}, {"causal": True}),
        ("query-latent", {"query_latent": 4}, {"causal": True}),
        ("tokens", {"T": 17, "B": 1}, {"causal": True}),
        ("rope", {}, {"rope": {"interleaved": True, "offset": 300}}),
    ):
        inputs = mla_inputs(f"mla/half/{name}", **sizes)
        inputs = _norms(inputs, name, "kv_norm", *(["q_norm"] if "w_dq" in inputs else []))
        yield _case(
            f"half/{name}", inputs, "nothing is rounded in between", "HalfInside", dtypes=HALF, **config
        )
    lengths = mla_inputs("mla/half/lengths") | {"kv_lengths": np.array([0, 3])}
    yield _case("half/lengths", lengths, "a row without keys", "HalfInside", "FullyMaskedRow", dtypes=HALF)


def _errors() -> Iterator[Draft]:
    def refused(
        name: str, error: str, note: str, inputs: dict[str, Any] | None = None, **config: Any
    ) -> Draft:
        base: dict[str, Any] = dict(mla_inputs("mla/error", query_latent=4)) | (inputs or {})
        base = {key: x for key, x in base.items() if x is not None}
        config = {key: x for key, x in ({"num_heads": 2} | config).items() if x is not ...}
        return Draft(f"mla/error/{name}", "mla", base, config, flags=("ErrorCode",), note=note, error=error)

    zeros = np.zeros
    yield refused("heads-zero", "invalid_config", "no heads", num_heads=0)
    yield refused("heads-fraction", "invalid_config", "half a head", num_heads=1.5)
    yield refused("heads-missing", "invalid_request", "no number of heads", num_heads=...)
    yield refused("eps", "invalid_config", "an eps below 0", eps=-1)
    yield refused("scale-text", "invalid_config", "a scale that is no number", scale="1")
    yield refused("causal-number", "invalid_config", "causal is true or false", causal=1)
    yield refused("rope-number", "invalid_config", "a number where a rope is due", rope=3)
    yield refused("rope-odd", "invalid_config", "an odd rotary_dim", rope={"rotary_dim": 3})
    yield refused(
        "rope-beyond", "invalid_config", "more channels turned than there are", rope={"rotary_dim": 6}
    )
    yield refused("rank-x", "shape_mismatch", "x of rank 2", {"x": zeros((5, 6))})
    yield refused("width-dkv", "shape_mismatch", "w_dkv over other channels", {"w_dkv": zeros((5, 7))})
    yield refused("width-kr", "shape_mismatch", "w_kr over other channels", {"w_kr": zeros((4, 5))})
    yield refused(
        "odd-kr",
        "shape_mismatch",
        "a rotary key of 3 channels",
        {"w_kr": zeros((3, 6)), "w_q": zeros((12, 4))},
    )
    yield refused("rows-q", "shape_mismatch", "w_q of no whole heads", {"w_q": zeros((13, 4))})
    yield refused("source-q", "shape_mismatch", "w_q over x beside a query latent", {"w_q": zeros((14, 6))})
    yield refused("latent-uk", "shape_mismatch", "w_uk over another latent", {"w_uk": zeros((6, 4))})
    yield refused("rows-uk", "shape_mismatch", "w_uk of no whole heads", {"w_uk": zeros((5, 5))})
    yield refused("latent-uv", "shape_mismatch", "w_uv over another latent", {"w_uv": zeros((6, 4))})
    yield refused("columns-o", "shape_mismatch", "w_o over other heads", {"w_o": zeros((7, 5))})
    yield refused("kv-norm", "shape_mismatch", "a norm of another size", {"kv_norm": np.ones(4)})
    yield refused("q-norm", "shape_mismatch", "a norm of another size", {"q_norm": np.ones(6)})
    yield refused("lengths", "shape_mismatch", "one length for two rows", {"kv_lengths": np.array([3])})
    yield refused(
        "lengths-beyond", "invalid_config", "more tokens than there are", {"kv_lengths": np.array([3, 6])}
    )
    yield refused(
        "lengths-float", "dtype_mismatch", "lengths are integers", {"kv_lengths": np.array([3.0, 4.0])}
    )
    yield refused(
        "dtype-w", "dtype_mismatch", "a weight of another float type", {"w_uv": Other(zeros((6, 5)))}
    )
    yield refused("dtype-x", "dtype_mismatch", "integer tokens", {"x": zeros((2, 5, 6), np.int64)})
    yield refused("missing-w", "invalid_request", "no output projection", {"w_o": None})
