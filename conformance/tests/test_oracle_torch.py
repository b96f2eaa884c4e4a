"""The oracle against torch in float64: its attention function, and its multi-head layer."""

import numpy as np
import pytest

from conformance import cases
from conformance.bounds import derive
from conformance.cases.draft import Draft
from conformance.realise import realise

torch = pytest.importorskip("torch", reason="left out by PORTS")

ATTENTION = [d for d in cases.drafts("sdpa") if d.error is None]


def expressible(draft: Draft) -> bool:
    """What torch's own function can say; NaN in hidden slots leaks there, and nothing is said about infinities."""
    plain = set(draft.config) <= {"scale", "causal", "q_offset", "window"}
    names = set(draft.inputs) <= {"q", "k", "v", "mask", "bias", "kv_lengths", "q_offset"}
    finite = all(np.isfinite(x).all() for n, x in draft.inputs.items() if n != "bias" and x.dtype.kind == "f")
    bias = draft.inputs.get("bias", np.zeros(1))
    return plain and names and finite and not np.isnan(bias).any() and not (bias == np.inf).any()


EXPRESSIBLE = [d for d in ATTENTION if expressible(d)]


@pytest.mark.parametrize("draft", EXPRESSIBLE, ids=lambda d: d.id)
def test_sdpa_against_torch(draft: Draft) -> None:
    """torch's scaled_dot_product_attention in float64, within the bound of float64."""
    inputs, expected = realise(draft, "f64")
    assert expected is not None
    q, k, v = (torch.tensor(inputs[name]) for name in ("q", "k", "v"))
    B, Hq, Tq, _ = q.shape
    Tk = k.shape[2]
    p = np.arange(Tq)[:, None] + inputs.get(
        "q_offset", np.array([draft.config.get("q_offset") or 0])
    ).reshape(-1, 1, 1, 1)
    j = np.arange(Tk)
    left, right = draft.config.get("window") or (None, None)
    shown = np.ones((B, Hq, Tq, Tk), dtype=bool)
    shown &= (j <= p) | (not draft.config.get("causal"))
    shown &= (p - j <= left) if left is not None else True
    shown &= (j - p <= right) if right is not None else True
    shown &= (j < inputs["kv_lengths"].reshape(-1, 1, 1, 1)) if "kv_lengths" in inputs else True
    shown &= inputs.get("mask", np.array(True))
    additive = np.where(shown, inputs.get("bias", np.array(0.0)), -np.inf)
    output = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.tensor(additive), scale=draft.config.get("scale"), enable_gqa=True
    ).numpy()
    bound = derive("sdpa", draft.config, inputs, "f64")["output"]
    assert output.shape == expected["output"].shape
    assert (np.abs(output - expected["output"]) <= bound).all()


def test_enough_cases_are_expressible() -> None:
    assert len(EXPRESSIBLE) >= 150


def test_mha_against_torch() -> None:
    """torch.nn.MultiheadAttention with the same weights; its boolean padding mask means ignore."""
    draft = next(d for d in cases.drafts("mha") if d.id == "mha/biases")
    inputs, expected = realise(draft, "f64")
    assert expected is not None
    x = torch.tensor(inputs["x"])
    C, heads = x.shape[2], draft.config["num_heads"]
    layer = torch.nn.MultiheadAttention(12, heads, kdim=C, vdim=C, batch_first=True, dtype=torch.float64)
    q = x @ torch.tensor(inputs["w_q"]).T + torch.tensor(inputs["b_q"])
    with torch.no_grad():
        # torch ties the query width to the output width: the outer projections are done outside, its own are 1.
        for name in ("q", "k", "v"):
            getattr(layer, f"{name}_proj_weight").copy_(
                torch.eye(12) if name == "q" else torch.tensor(inputs[f"w_{name}"])
            )
        layer.in_proj_bias.copy_(
            torch.cat([torch.zeros(12), torch.tensor(inputs["b_k"]), torch.tensor(inputs["b_v"])])
        )
        layer.out_proj.weight.copy_(torch.eye(12))
        layer.out_proj.bias.zero_()
        merged, weights = layer(q, x, x, average_attn_weights=False)
    output = merged.numpy() @ inputs["w_o"].T + inputs["b_o"]
    bounds = derive("mha", draft.config, inputs, "f64")
    assert (np.abs(output - expected["output"]) <= bounds["output"]).all()
    assert (np.abs(weights.numpy() - expected["weights"]) <= bounds["weights"]).all()
