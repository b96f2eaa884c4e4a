"""Score functions, structured self-attention, latent attention."""

import math

import numpy as np
import pytest
from values import normal

import rosetta_attention as ra

INF, NAN = np.inf, np.nan


# The weights of each form: A 7, Dq and Dk 4.
FORMS = {
    "additive": {"w_q": normal(7, 4), "w_k": normal(7, 4, seed=3), "w_v": normal(7, seed=4)},
    "general": {"w": normal(4, 4)},
    "dot": {},
    "scaled": {},
}


class TestScoring:
    Q, K, V = normal(2, 3, 4), normal(2, 5, 4, seed=1), normal(2, 5, 6, seed=2)

    @pytest.mark.parametrize("form", FORMS)
    def test_the_formula(self, form):
        w = FORMS[form]
        steps = ra.scoring_steps(form, self.Q, self.K, self.V, **w, kv_lengths=np.array([5, 2]))
        score = {
            "additive": lambda q, k: w["w_v"] @ np.tanh(w["w_q"] @ q + w["w_k"] @ k),
            "general": lambda q, k: q @ w["w"] @ k,
            "dot": lambda q, k: q @ k,
            "scaled": lambda q, k: q @ k / 2,
        }[form]
        for b, i, j in np.ndindex(2, 3, 5):
            np.testing.assert_allclose(steps.scores[b, i, j], score(self.Q[b, i], self.K[b, j]), rtol=1e-11)
        for b, length in enumerate((5, 2)):
            weights = ra.softmax(steps.scores[b, :, :length])
            np.testing.assert_allclose(steps.output[b], weights @ self.V[b, :length], rtol=1e-11)
            assert not steps.weights[b, :, length:].any()

    def test_scaled_is_sdpa_with_one_head(self):
        want = ra.sdpa(self.Q[:, None], self.K[:, None], self.V[:, None])[:, 0]
        np.testing.assert_allclose(ra.scoring("scaled", self.Q, self.K, self.V), want, rtol=1e-12)

    def test_sizes_of_query_and_key_may_differ(self):
        k = normal(2, 5, 3)
        ra.scoring("general", self.Q, k, self.V, w=normal(4, 3))
        ra.scoring("additive", self.Q, k, self.V, w_q=normal(7, 4), w_k=normal(7, 3), w_v=normal(7))
        with pytest.raises(ra.ShapeMismatch, match="scoring: k: expected size 4 as in q, got 3"):
            ra.scoring("dot", self.Q, k, self.V)

    def test_hidden_keys_are_not_read(self):
        k, v = self.K.copy(), self.V.copy()
        k[:, 4], v[:, 3:] = NAN, INF
        for form, w in FORMS.items():
            got = ra.scoring(form, self.Q, k, v, **w, kv_lengths=np.array([3, 0]))
            assert np.isfinite(got[0]).all()
            assert not got[1].any()

    @pytest.mark.parametrize(
        ("argument", "form", "weights"),
        [
            ("form", "cosine", {}),
            ("w", "general", {}),
            ("w_k", "additive", {"w_q": normal(7, 4)}),
            ("w", "dot", {"w": normal(4, 4)}),
        ],
    )
    def test_refusals(self, argument, form, weights):
        with pytest.raises(ra.InvalidConfig, match=f"scoring: {argument}: expected"):
            ra.scoring(form, self.Q, self.K, self.V, **weights)


class TestStructured:
    H, W1, W2 = normal(2, 4, 3), normal(5, 3, seed=1), normal(6, 5, seed=2)

    def test_the_formula(self):
        steps = ra.structured_steps(self.H, self.W1, self.W2, kv_lengths=np.array([4, 2]))
        for b, length in enumerate((4, 2)):
            h = self.H[b, :length]
            a = ra.softmax(self.W2 @ np.tanh(self.W1 @ h.T))
            np.testing.assert_allclose(steps.weights[b, :, :length], a, rtol=1e-12)
            np.testing.assert_allclose(steps.output[b], a @ h, rtol=1e-11)
            np.testing.assert_allclose(steps.penalty[b], np.linalg.norm(a @ a.T - np.eye(6)) ** 2, rtol=1e-11)

    def test_one_position_each_and_no_two_alike_cost_nothing(self):
        h, far = np.eye(3)[None], 1e4 * np.eye(3)
        steps = ra.structured_steps(h, np.eye(3), far)
        np.testing.assert_allclose(steps.penalty, [0], atol=1e-12)

    def test_padding_may_hold_anything(self):
        h = self.H.copy()
        h[:, 3] = NAN
        lengths = np.array([3, 0])
        steps = ra.structured_steps(h, self.W1, self.W2, kv_lengths=lengths)
        assert np.isfinite(steps.output).all()
        assert not steps.output[1].any()
        assert steps.penalty[1] == 6
        assert ra.structured(h[:, :0], self.W1, self.W2).shape == (2, 6, 3)


# The weights of a layer: C 10, H 2, Dn 3, Dr 4, Dv 5, R 6, Rq 7, Cout 8.
LATENT = {
    "w_q": normal(14, 7),
    "w_dkv": normal(6, 10, seed=1),
    "w_kr": normal(4, 10, seed=2),
    "w_uk": normal(6, 6, seed=3),
    "w_uv": normal(10, 6, seed=4),
    "w_o": normal(8, 10, seed=5),
    "w_dq": normal(7, 10, seed=6),
    "q_norm": normal(7, seed=7),
    "kv_norm": normal(6, seed=8),
}


class TestLatent:
    X = normal(2, 5, 10, seed=9)

    def layer(self, **change):
        return ra.MultiHeadLatentAttention(**LATENT | {"num_heads": 2} | change)

    @pytest.mark.parametrize("rope", [ra.Rope(), ra.Rope(interleaved=True, offset=3)], ids=str)
    def test_head_by_head(self, rope):
        """Each head's queries and keys made apart, with the one rotary key of a token put beside each."""
        w, steps = LATENT, self.layer(rope=rope).steps(self.X, causal=True)
        c = ra.rms_norm(self.X @ w["w_dkv"].T, w["kv_norm"], eps=1e-6)
        k_r = ra.rope((self.X @ w["w_kr"].T)[:, None], rope)[:, 0]
        np.testing.assert_allclose(steps.latent, c, rtol=1e-12)
        np.testing.assert_allclose(steps.rope_key, k_r, rtol=1e-12)
        queries = ra.rms_norm(self.X @ w["w_dq"].T, w["q_norm"], eps=1e-6) @ w["w_q"].T
        heads = []
        for h in range(2):
            q = queries[..., 7 * h : 7 * h + 7]
            q = np.concatenate([q[..., :3], ra.rope(q[:, None, :, 3:], rope)[:, 0]], axis=-1)
            k = np.concatenate([c @ w["w_uk"][3 * h : 3 * h + 3].T, k_r], axis=-1)
            scores = np.where(np.tri(5, dtype=bool), q @ k.swapaxes(1, 2) / math.sqrt(7), -INF)
            np.testing.assert_allclose(steps.weights[:, h], ra.softmax(scores), rtol=1e-9)
            heads.append(ra.softmax(scores) @ (c @ w["w_uv"][5 * h : 5 * h + 5].T))
        np.testing.assert_allclose(steps.output, np.concatenate(heads, axis=-1) @ w["w_o"].T, rtol=1e-9)

    @pytest.mark.parametrize(
        "change",
        [
            {},
            {"w_dq": None, "q_norm": None, "w_q": normal(14, 10)},
            {"kv_norm": None},
            {"rope": ra.Rope(rotary_dim=2)},
        ],
        ids=lambda change: ",".join(change),
    )
    def test_absorbed_is_the_same(self, change):
        layer = self.layer(**change)
        options = {"causal": True, "kv_lengths": np.array([5, 2]), "scale": 0.3}
        for got, want in zip(layer.absorbed(self.X, **options), layer.steps(self.X, **options), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)
        np.testing.assert_array_equal(layer(self.X, **options), layer.steps(self.X, **options).output)

    @pytest.mark.parametrize("shape", [(0, 5, 10), (2, 0, 10), (1, 1, 10)], ids=str)
    def test_sizes(self, shape):
        for way in (self.layer().steps, self.layer().absorbed):
            steps = way(np.ones(shape))
            assert steps.output.shape == (*shape[:2], 8)
            assert steps.weights.shape == (shape[0], 2, shape[1], shape[1])

    @pytest.mark.parametrize(
        ("error", "argument", "change"),
        [
            (ra.ShapeMismatch, "w_q", {"w_q": normal(16, 7)}),
            (ra.ShapeMismatch, "w_uk", {"w_uk": normal(6, 5)}),
            (ra.ShapeMismatch, "w_o", {"w_o": normal(8, 9)}),
            (ra.ShapeMismatch, "kv_norm", {"kv_norm": normal(5)}),
            (ra.InvalidConfig, "q_norm", {"w_dq": None, "w_q": normal(14, 10)}),
            (ra.InvalidConfig, "num_heads", {"num_heads": 0}),
            (ra.InvalidConfig, "eps", {"eps": -1}),
            (ra.InvalidConfig, "rotary_dim", {"rope": ra.Rope(rotary_dim=6)}),
            (ra.DtypeMismatch, "w_uv", {"w_uv": np.float32(normal(10, 6))}),
        ],
        ids=str,
    )
    def test_refusals(self, error, argument, change):
        for way in (self.layer(**change).steps, self.layer(**change).absorbed):
            with pytest.raises(error, match=f"mla: {argument}: expected"):
                way(self.X)
