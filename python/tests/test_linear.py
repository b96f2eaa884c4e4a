"""Linear attention in three forms, and the gated rules."""

import numpy as np
import pytest

import rosetta_attention as ra

NAN = np.nan
FORMS = (ra.linear_attention, ra.linear_recurrent, lambda *a, **k: ra.linear_chunked(*a, **k, chunk=3))


def arrays(B=2, Hq=4, Hkv=2, Tq=7, Tk=7, D=3, Dv=5, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((B, Hq, Tq, D)),
        rng.standard_normal((B, Hkv, Tk, D)),
        rng.standard_normal((B, Hkv, Tk, Dv)),
    )


def by_loops(q, k, v, causal):
    """The formula, a query at a time."""
    f = lambda x: np.where(x > 0, x + 1, np.exp(x))  # noqa: E731
    output = np.zeros((*q.shape[:3], v.shape[3]))
    group = q.shape[1] // k.shape[1]
    for b, h, i in np.ndindex(q.shape[:3]):
        end = i + 1 if causal else k.shape[2]
        weights = f(k[b, h // group, :end]) @ f(q[b, h, i])
        output[b, h, i] = weights @ v[b, h // group, :end] / weights.sum()
    return output


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [False, True])
def test_every_form_is_the_formula(form, causal):
    q, k, v = arrays()
    output, state = form(q, k, v, causal=causal)
    np.testing.assert_allclose(output, by_loops(q, k, v, causal), rtol=1e-12)
    f = np.where(k > 0, k + 1, np.exp(k))
    np.testing.assert_allclose(state.state, f.swapaxes(2, 3) @ v, rtol=1e-12)
    np.testing.assert_allclose(state.norm, f.sum(axis=2), rtol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cut", [0, 1, 4, 7])
def test_a_state_continues(form, cut):
    q, k, v = arrays()
    whole = form(q, k, v, causal=True)
    first = form(q[:, :, :cut], k[:, :, :cut], v[:, :, :cut], causal=True)
    second = form(q[:, :, cut:], k[:, :, cut:], v[:, :, cut:], causal=True, state=first.state)
    joined = np.concatenate([first.output, second.output], axis=2)
    np.testing.assert_allclose(joined, whole.output, rtol=1e-11)
    np.testing.assert_allclose(second.state.state, whole.state.state, rtol=1e-11)


@pytest.mark.parametrize("form", FORMS)
def test_later_keys_are_not_read(form):
    q, k, v = arrays()
    want = form(q, k, v, causal=True).output
    k[:, :, 5], v[:, :, 6] = NAN, NAN
    got = form(q, k, v, causal=True).output
    np.testing.assert_array_equal(got[:, :, :5], want[:, :, :5])
    assert np.isnan(got[:, :, 5:]).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_denominator_of_zero_gives_zero(form):
    q, k, v = arrays(Tk=0)
    output, state = form(q, k, v)
    np.testing.assert_array_equal(output, np.zeros((2, 4, 7, 5)))
    assert state.state.shape == (2, 2, 3, 5)
    nothing = np.full((1, 1, 1, 2), -np.inf)
    assert form(nothing, nothing, np.ones((1, 1, 1, 3))).output.tolist() == [[[[0, 0, 0]]]]


@pytest.mark.parametrize("sizes", [{"Tq": 0}, {"B": 0}, {"Dv": 0}, {"Tq": 2, "Tk": 5}], ids=str)
def test_sizes(sizes):
    q, k, v = arrays(**sizes)
    for form in FORMS:
        assert form(q, k, v).output.shape == (*q.shape[:3], v.shape[3])


def test_refusals():
    q, k, v = arrays(Tk=6)
    for form in FORMS:
        with pytest.raises(ra.ShapeMismatch, match=": k: expected length 7 as in q when causal, got 6"):
            form(q, k, v, causal=True)
        with pytest.raises(ra.ShapeMismatch, match=": norm: expected"):
            form(q, k, v, state=ra.LinearState(np.zeros((2, 2, 3, 5)), np.zeros((2, 2, 5))))
    with pytest.raises(ra.InvalidConfig, match=": chunk: expected an integer >= 1, got 0"):
        ra.linear_chunked(q, k, v, chunk=0)


class TestGated:
    def steps(self, rule, seed=0, **change):
        q, k, v = arrays(seed=seed)
        rng = np.random.default_rng(seed + 1)
        extra = {}
        if "gated" in rule:
            extra["decay"] = -rng.random((2, 2, 7, 3))
        if "delta" in rule:
            extra["beta"] = rng.random((2, 2, 7, 1))
        return q, k, v, {"rule": rule} | extra | change

    def test_linear_is_attention_without_softmax(self):
        q, k, v, options = self.steps("linear")
        output, state = ra.gated_linear(q, k, v, **options, scale=1)
        scores = q @ np.repeat(k, 2, axis=1).swapaxes(2, 3) * np.tri(7)
        np.testing.assert_allclose(output, scores @ np.repeat(v, 2, axis=1), rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(state, k.swapaxes(2, 3) @ v, rtol=1e-12)

    @pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
    def test_a_state_continues(self, rule):
        q, k, v, options = self.steps(rule)
        whole = ra.gated_linear(q, k, v, **options)
        cut = lambda part: {n: x[:, :, part] if isinstance(x, np.ndarray) else x for n, x in options.items()}  # noqa: E731
        first, second = slice(0, 3), slice(3, 7)
        a = ra.gated_linear(q[:, :, first], k[:, :, first], v[:, :, first], **cut(first))
        b = ra.gated_linear(q[:, :, second], k[:, :, second], v[:, :, second], **cut(second), state=a.state)
        np.testing.assert_array_equal(np.concatenate([a.output, b.output], axis=2), whole.output)
        np.testing.assert_array_equal(b.state, whole.state)

    def test_the_delta_rule_replaces_a_value(self):
        """A key of length 1 that comes again with beta 1: the old value is gone."""
        k = np.array([[1.0, 0], [0, 1], [1, 0]]).reshape(1, 1, 3, 2)
        v = np.array([[3.0], [5], [7]]).reshape(1, 1, 3, 1)
        output, state = ra.gated_linear(k, k, v, rule="delta", beta=np.ones((1, 1, 3, 1)), scale=1)
        assert output.ravel().tolist() == [3, 5, 7]
        assert state.ravel().tolist() == [7, 5]

    def test_the_decay_comes_first(self):
        k, v = np.ones((1, 1, 2, 1)), np.array([8.0, 0]).reshape(1, 1, 2, 1)
        decay = np.log(np.array([0.25, 0.5])).reshape(1, 1, 2, 1)
        output, _ = ra.gated_linear(k, k, v, rule="gated", decay=decay)
        np.testing.assert_allclose(output.ravel(), [8, 4])
        beta = np.ones((1, 1, 2, 1))
        output, _ = ra.gated_linear(k, k, v, rule="gated_delta", decay=decay, beta=beta)
        np.testing.assert_allclose(output.ravel(), [8, 0], atol=1e-15)

    def test_neutral_gates_change_nothing(self):
        q, k, v, options = self.steps("delta")
        want = ra.gated_linear(q, k, v, **options)
        one = options | {"rule": "gated_delta", "decay": np.zeros((2, 2, 7, 1))}
        np.testing.assert_array_equal(ra.gated_linear(q, k, v, **one).output, want.output)
        wide = options | {"beta": np.broadcast_to(options["beta"][:, :1], (2, 1, 7, 1))}
        both = options | {"beta": np.repeat(wide["beta"], 2, axis=1)}
        np.testing.assert_array_equal(
            ra.gated_linear(q, k, v, **wide).output, ra.gated_linear(q, k, v, **both).output
        )

    @pytest.mark.parametrize(
        ("rule", "change", "argument"),
        [
            ("linear", {"decay": np.zeros((2, 2, 7, 1))}, "decay"),
            ("gated", {"decay": None}, "decay"),
            ("gated", {"beta": np.zeros((2, 2, 7, 1))}, "beta"),
            ("delta", {"beta": None}, "beta"),
            ("softmax", {}, "rule"),
        ],
        ids=str,
    )
    def test_what_a_rule_takes(self, rule, change, argument):
        q, k, v, options = self.steps(rule, **change)
        with pytest.raises(ra.InvalidConfig, match=f"gated_linear: {argument}: expected"):
            ra.gated_linear(q, k, v, **{"rule": rule} | options | change)
