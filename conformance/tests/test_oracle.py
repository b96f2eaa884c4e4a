"""The oracle against what it does not share a line with: mpmath at 50 digits, and closed forms."""

import math

import mpmath
import numpy as np
import pytest

from conformance import cases
from conformance.bounds import derive
from conformance.cases.draft import Draft
from conformance.oracle import answer
from conformance.realise import realise

EXACT_DIGITS = 50
ATTENTION = [d for d in cases.drafts("sdpa") if d.error is None]


def test_softmax_row_against_mpmath() -> None:
    mpmath.mp.dps = EXACT_DIGITS
    x = np.array([[0.3, -2.5, 7.25, 7.0], [800.0, 799.5, -1e5, 0.0]])
    result = answer("softmax", {}, {"x": x})
    bounds = derive("softmax", {}, {"x": x}, "f64")
    for i, row in enumerate(x.tolist()):
        total = mpmath.fsum(mpmath.exp(mpmath.mpf(z)) for z in row)
        for j, z in enumerate(row):
            exact = float(mpmath.exp(mpmath.mpf(z)) / total)
            assert abs(result["output"][i, j] - exact) <= bounds["output"][i, j]
        assert abs(result["lse"][i] - float(mpmath.log(total))) <= bounds["lse"][i]


@pytest.mark.parametrize(
    "draft", [d for d in ATTENTION if "by-hand" in d.id or "steps/" in d.id], ids=lambda d: d.id
)
def test_sdpa_against_mpmath(draft: Draft) -> None:
    """Every element of a small case, by the formula at 50 digits, within the bound of float64."""
    mpmath.mp.dps = EXACT_DIGITS
    inputs, _ = realise(draft, "f64")
    got = answer("sdpa", draft.config, inputs)
    bounds = derive("sdpa", draft.config, inputs, "f64")
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    group = q.shape[1] // k.shape[1]
    scale = draft.config.get("scale")
    scale = 1 / mpmath.sqrt(q.shape[3]) if scale is None else mpmath.mpf(scale)
    cap = draft.config.get("softcap")
    for b, h, i in np.ndindex(q.shape[:3]):
        terms = []
        for j in range(k.shape[2]):
            s = scale * mpmath.fsum(
                mpmath.mpf(x) * mpmath.mpf(y)
                for x, y in zip(q[b, h, i].tolist(), k[b, h // group, j].tolist(), strict=True)
            )
            s = s if cap is None else cap * mpmath.tanh(s / cap)
            s += (
                mpmath.mpf(float(np.broadcast_to(inputs["bias"], got["scores"].shape)[b, h, i, j]))
                if "bias" in inputs
                else 0
            )
            terms.append(s)
        shown = [j for j in range(k.shape[2]) if got["weights"][b, h, i, j] > 0]
        total = mpmath.fsum(mpmath.exp(terms[j]) for j in shown)
        total += mpmath.exp(mpmath.mpf(float(inputs["sinks"][h]))) if "sinks" in inputs else 0
        for d in range(v.shape[3]):
            exact = mpmath.fsum(
                mpmath.exp(terms[j]) / total * mpmath.mpf(float(v[b, h // group, j, d])) for j in shown
            )
            assert abs(got["output"][b, h, i, d] - float(exact)) <= bounds["output"][b, h, i, d]
        assert abs(got["lse"][b, h, i] - float(mpmath.log(total))) <= bounds["lse"][b, h, i]


def test_cache_script_is_one_prefill() -> None:
    """Closed form: every split of the same 13 positions gives the rows of one causal prefill."""
    rows = {}
    for draft in (d for d in cases.drafts("kv_cache") if d.id.startswith("kv_cache/chunks/")):
        _, expected = realise(draft, "f64")
        assert expected is not None
        outputs = [
            expected[f"out{n}"] for n in range(sum(s["do"] == "attend" for s in draft.config["steps"]) // 2)
        ]
        rows[draft.id] = np.concatenate(outputs, axis=2)
    whole = rows["kv_cache/chunks/13"]
    assert len(rows) == 8
    assert all(np.array_equal(whole, x) for x in rows.values())


def test_closed_forms() -> None:
    ln2 = math.log(2)
    one = answer(
        "sdpa",
        {"scale": 1},
        {
            "q": np.ones((1, 1, 1, 1)),
            "k": np.array([0, ln2]).reshape(1, 1, 2, 1),
            "v": np.array([3.0, 6]).reshape(1, 1, 2, 1),
        },
    )
    assert one["output"].item() == pytest.approx(5, abs=1e-15)
    assert one["lse"].item() == pytest.approx(math.log(3), abs=1e-15)
    gqa = {
        "q": np.zeros((1, 6, 1, 1)),
        "k": np.ones((1, 2, 1, 1)),
        "v": np.array([10.0, 20]).reshape(1, 2, 1, 1),
    }
    assert answer("sdpa", {}, gqa)["output"].ravel().tolist() == [10, 10, 10, 20, 20, 20]


def test_unknown_op() -> None:
    with pytest.raises(ValueError, match="op: expected"):
        answer("attend", {}, {})
