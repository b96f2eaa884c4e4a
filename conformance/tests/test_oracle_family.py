"""The oracle of linear, sparse and latent attention, norms, activations, blocks and stacks, held against torch.

In float64 every answer is within the bound of float64; in float32 torch is a port like any other.
"""

import math
from collections.abc import Iterator

import mpmath
import numpy as np
import pytest

from conformance import cases
from conformance.bounds import derive
from conformance.bounds.arithmetic import ELEMENTARY_ULP
from conformance.cases.block_weights import block_weights
from conformance.cases.draft import Draft
from conformance.cases.linear_attention import linear_inputs
from conformance.inputs import Draw
from conformance.oracle import answer
from conformance.realise import realise

torch = pytest.importorskip("torch", reason="left out by PORTS")
answer_in_torch = pytest.importorskip("family_references").answer_in_torch

SUITES = ("norms", "linear", "sparse", "structured", "mla", "block", "cache_write")
OPS = (
    *("layer_norm", "rms_norm", "gelu", "swiglu", "linear_attention", "gated_linear", "sparse", "structured"),
    *("mla", "block", "transformer", "cache_write"),
)


def answered() -> Iterator[Draft]:
    """All cases with a result in f32 and f64 that a formula over whole arrays can answer too."""
    for suite in SUITES:
        for draft in cases.drafts(suite):
            if draft.error is not None or "f32" not in draft.dtypes:
                continue
            finite = all(np.isfinite(x).all() for x in draft.inputs.values())
            drawn = draft.config.get("pattern", {}).get("random", 0) > 0
            scaled = (draft.config.get("rope") or {}).get("scaling") is not None
            if finite and not drawn and not scaled:
                yield draft


ANSWERED = list(answered())


def worst_share(draft: Draft, dtype: str, **more: bool) -> float:
    """The largest share of a bound that torch uses; it fails where it is more than all."""
    inputs, expected = realise(draft, dtype)
    assert expected is not None
    with np.errstate(all="ignore"):
        got = answer_in_torch(draft.op, draft.config, inputs, **more)
    bounds = derive(draft.op, draft.config, inputs, dtype)
    worst = 0.0
    for name, x in expected.items():
        y = got[name]
        assert x.shape == y.shape, name
        if x.dtype.kind in "bi":
            assert np.array_equal(x, y), name
            continue
        assert np.array_equal(np.isfinite(x), np.isfinite(y)), name
        finite = np.isfinite(x)
        error = np.abs(x[finite] - y[finite].astype(np.float64))
        bound = np.broadcast_to(bounds[name], x.shape)[finite]
        assert np.isfinite(bound).all(), name
        with np.errstate(divide="ignore", invalid="ignore"):
            worst = max(worst, float(np.where(error == 0, 0, error / bound).max(initial=0)))
    assert worst <= 1
    return worst


# The numbers that the notes of the cases promise, worked out on paper.
BY_HAND: dict[str, list[float]] = {
    "norms/layer_norm/by-hand/affine": [98, 1010],
    "norms/layer_norm/by-hand/population": [-1 / math.sqrt(3)] * 3 + [math.sqrt(3)],
    "norms/layer_norm/by-hand/eps": [-1 / 2, 1 / 2],
    "norms/rms_norm/by-hand/weight": [2, -140],
    "norms/rms_norm/by-hand/eps": [1 / 10, 7 / 10],
    "norms/swiglu/by-hand/ln-3": [3 * math.log(3), -math.log(3), 0],
    "linear/attention/by-hand/negative": [5],
    "linear/attention/by-hand/causal": [1, 2, 4],
    "linear/attention/by-hand/state": [3],
    "linear/attention/by-hand/two-channels": [36 / 13],
    "linear/gated/by-hand/gated": [1, 5 / 2, 21 / 4],
    "linear/gated/by-hand/delta": [1, 3 / 2, 4],
    "linear/gated/by-hand/gated-delta": [8, 3],
    "linear/gated/by-hand/scale": [6],
    "sparse/by-hand/dilated": [5 / 2, 5, 5 / 2, 5],
    "sparse/by-hand/strided": [1, 3 / 2, 7 / 3, 14 / 3, 29 / 4, 29 / 2],
    "sparse/by-hand/fixed": [1, 3 / 2, 3, 14 / 3, 26 / 3, 58 / 4],
    "sparse/by-hand/global": [3 / 2, 15 / 4, 3, 5],
    "sparse/by-hand/bigbird": [15 / 4, 3 / 2, 5 / 2, 9 / 2],
    "sparse/by-hand/blocks": [6, 6, 3 / 2, 3 / 2],
    "sparse/by-hand/two-lengths": [1, 3 / 2, 3, 4, 0],
    "structured/by-hand/one-third": [40 / 3],
    "mla/by-hand/turned": [1, 1.612942, 2.937694],
    "mla/by-hand/scale": [0, 2],
    "mla/by-hand/kv-norm": [2, 0],
    "block/block/by-hand/attention": [0, 4, 9, 31],
    "block/block/by-hand/feed-forward": [11, 3, 20, 30],
    "block/block/by-hand/rms": [8.4, 1.2],
    "block/transformer/by-hand/segments": [3, 10, 1, 5],
    "cache_write/by-hand/wrap": [20, 2, 3, 10],
}


@pytest.mark.parametrize("case", BY_HAND)
def test_by_hand(case: str) -> None:
    draft = next(d for d in cases.drafts(case.split("/")[0]) if d.id == case)
    _, expected = realise(draft, "f64")
    assert expected is not None
    assert expected["output"].ravel() == pytest.approx(BY_HAND[case], rel=0, abs=5e-7)  # of six digits


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["f64", "f32"])
def test_torch_is_within_the_bounds(op: str, dtype: str) -> None:
    drafts = [draft for draft in ANSWERED if draft.op == op]
    assert len(drafts) >= 10
    shares = {}
    for draft in drafts:
        try:
            shares[draft.id] = worst_share(draft, dtype)
        except AssertionError as error:
            raise AssertionError(f"{draft.id}: {error}") from None
    assert max(shares.values()) <= 1


@pytest.mark.parametrize("dtype", ["f64", "f32"])
def test_absorbed_weights_are_within_the_same_bounds(dtype: str) -> None:
    for draft in (d for d in ANSWERED if d.op == "mla"):
        worst_share(draft, dtype, absorbed=True)


@pytest.mark.parametrize("first", [True, False], ids=["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("context", [False, True], ids=["encoder", "decoder"])
def test_a_block_is_torchs_layer(first: bool, activation: str, context: bool) -> None:
    """torch.nn.TransformerEncoderLayer and TransformerDecoderLayer with the same weights."""
    C, F, H, T, Tk = 6, 9, 2, 4, 5
    weights = block_weights(f"layer/{activation}", C, F, H, H, C // H, C if context else None)
    draw = Draw("layer/x")
    inputs = weights | {"x": draw.normal(2, T, C)} | ({"context": draw.normal(2, Tk, C)} if context else {})
    config = {"num_heads": H, "activation": activation, "norm_first": first, "causal": context}
    options = {"dim_feedforward": F, "dropout": 0.0, "activation": activation, "batch_first": True}
    kind = torch.nn.TransformerDecoderLayer if context else torch.nn.TransformerEncoderLayer
    layer = kind(C, H, norm_first=first, dtype=torch.float64, **options)
    state = {}
    for ours, theirs in (("attention", "self_attn"), ("cross", "multihead_attn")):
        if f"{ours}.w_q" in weights:
            for part, name in (("w", "weight"), ("b", "bias")):
                packed = [weights[f"{ours}.{part}_{n}"] for n in "qkv"]
                state[f"{theirs}.in_proj_{name}"] = np.concatenate(packed)
                state[f"{theirs}.out_proj.{name}"] = weights[f"{ours}.{part}_o"]
    for n in (1, 2, 3) if context else (1, 2):
        state |= {f"norm{n}.{name}": weights[f"norm_{n}.{name}"] for name in ("weight", "bias")}
    for n in (1, 2):
        state |= {f"linear{n}.weight": weights[f"ff.w_{n}"], f"linear{n}.bias": weights[f"ff.b_{n}"]}
    layer.load_state_dict({name: torch.tensor(x) for name, x in state.items()})
    x = torch.tensor(inputs["x"])
    with torch.no_grad():
        if context:
            hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
            theirs = layer(x, torch.tensor(inputs["context"]), tgt_mask=hidden)
        else:
            theirs = layer(x)
    ours = answer("block", config, inputs)["output"]
    assert (np.abs(theirs.numpy() - ours) <= derive("block", config, inputs, "f64")["output"]).all()


def test_gelu_and_swiglu_against_mpmath() -> None:
    """Within what the roundings of the argument do to a function, and the roundings after it.

    n roundings of its argument move erfc(t) by n times |t erfc'(t) / erfc(t)| <= 2 t² + 1 (at t = x / √2: x² + 1), and
    a sigmoid by n times its |argument|. √2 and the quotient are 2 roundings; √(2/π) is 2, x³ and its factor 3, the sum
    and the product 2; alpha x is 1. The function itself may err by ELEMENTARY_ULP, of two roundings each; after it come
    2 of a sigmoid and 2 products, and 2 more stand for what all these gain from each other.
    """
    x = np.concatenate([np.linspace(-9, 9, 37), [1e-8, -1e-8]])
    exact = answer("gelu", {}, {"x": x})["output"]
    by_tanh = answer("gelu", {"approximate": "tanh"}, {"x": x})["output"]
    gated = answer("swiglu", {"alpha": 1.7}, {"a": x, "b": x[::-1].copy()})["output"]
    after = 2 * ELEMENTARY_ULP + 6
    with mpmath.workdps(50):
        for n, z in enumerate(mpmath.mpf(float(y)) for y in x):
            inner = mpmath.sqrt(2 / mpmath.pi) * (z + mpmath.mpf(0.044715) * z**3)
            gate = mpmath.mpf(1.7) * z
            for got, want, roundings in (
                (exact[n], z / 2 * mpmath.erfc(-z / mpmath.sqrt(2)), 2 * (z**2 + 1)),
                (by_tanh[n], z / 2 * (1 + mpmath.tanh(inner)), 7 * abs(2 * inner)),
                (gated[n], z / (1 + mpmath.exp(-gate)) * mpmath.mpf(float(x[-1 - n])), abs(gate)),
            ):
                assert abs(mpmath.mpf(float(got)) - want) <= (roundings + after) * mpmath.mpf(2) ** -53 * abs(
                    want
                )


def test_layer_norm_loses_nothing_to_a_large_mean() -> None:
    """Known numbers of pytorch/pytorch#51102 and microsoft/onnxruntime#28463: a spread of 1 on a mean of thousands."""
    shifted = answer("layer_norm", {"eps": 0}, {"x": np.array([[40000.0, 40001, 40002, 40003]])})
    assert shifted["output"][0] == pytest.approx(
        np.array([-1.5, -0.5, 0.5, 1.5]) / math.sqrt(1.25), rel=1e-15
    )


def test_linear_attention_in_parts_is_the_whole() -> None:
    """Property: the second half from the first one's state gives the rows of the whole."""
    inputs = linear_inputs("parts", 2, 4, 2, 9, 9, 3, 5)
    whole = answer("linear_attention", {"causal": True}, inputs)
    bounds = derive("linear_attention", {"causal": True}, inputs, "f64")
    for cut in range(10):
        first = answer("linear_attention", {"causal": True}, {n: x[:, :, :cut] for n, x in inputs.items()})
        rest = {n: x[:, :, cut:] for n, x in inputs.items()}
        rest |= {"state": first["state"], "norm": first["norm"]}
        second = answer("linear_attention", {"causal": True}, rest)
        output = np.concatenate([first["output"], second["output"]], axis=2)
        assert (np.abs(output - whole["output"]) <= bounds["output"]).all()
        assert (np.abs(second["state"] - whole["state"]) <= bounds["state"]).all()


def test_the_gated_rules_without_gates_are_the_plain_one() -> None:
    draw = Draw("gates")
    q, k, v = (draw.normal(1, 2, 6, 3) for _ in range(3))
    plain = answer("gated_linear", {}, {"q": q, "k": k, "v": v})
    still = answer(
        "gated_linear", {"rule": "gated"}, {"q": q, "k": k, "v": v, "decay": np.zeros((1, 2, 6, 1))}
    )
    assert np.array_equal(plain["output"], still["output"])
    ones = {"q": q, "k": k, "v": v, "beta": draw.uniform(1, 1, 6, 1)}
    delta = answer("gated_linear", {"rule": "delta"}, ones)
    gated = ones | {"decay": np.zeros((1, 2, 6, 3))}
    both = answer("gated_linear", {"rule": "gated_delta"}, gated)
    bounds = derive("gated_linear", {"rule": "gated_delta"}, gated, "f64")
    assert (np.abs(delta["output"] - both["output"]) <= bounds["output"]).all()


def test_a_key_that_is_written_twice_is_replaced() -> None:
    """The delta rule with beta 1 and |k| = 1: what is read at a key is what was written last."""
    k = np.array([1.0, 0, 0, 1, 1, 0]).reshape(1, 1, 3, 2)
    inputs = {"q": k, "k": k, "v": np.array([5.0, 7, 9]).reshape(1, 1, 3, 1), "beta": np.ones((1, 1, 3, 1))}
    result = answer("gated_linear", {"rule": "delta", "scale": 1}, inputs)
    assert result["output"].ravel().tolist() == [5, 7, 9]
    assert result["state"].ravel().tolist() == [9, 7]


def test_random_blocks_are_drawn_without_replacement_from_the_hidden_ones() -> None:
    base = {"type": "bigbird", "block": 2, "window": 0, "global": 1, "seed": 11}
    x = np.zeros((1, 1, 16, 1))
    inputs = {"q": x, "k": x, "v": x}
    few = answer("sparse", {"pattern": base | {"random": 0}}, inputs)["mask"][::2, ::2]
    for count in (1, 3, 20):
        mask = answer("sparse", {"pattern": base | {"random": count}}, inputs)["mask"][::2, ::2]
        assert mask[few].all()
        added = (mask & ~few).sum(axis=1)
        assert added.tolist() == [min(count, 8 - int(row.sum())) for row in few]
    seen = np.zeros(8, int)
    for seed in range(400):
        mask = answer("sparse", {"pattern": base | {"random": 1, "seed": seed}}, inputs)["mask"][::2, ::2]
        seen += mask[7] & ~few[7]
    assert (seen[1:7] > 40).all(), "each of the six hidden blocks is drawn now and then"
    assert seen[0] == seen[7] == 0
