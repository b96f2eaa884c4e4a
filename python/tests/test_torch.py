"""NumPy, the same text on tensors, and PyTorch's own attention agree; what the last cannot do, it refuses."""

import contextlib

import numpy as np
import pytest
import torch
from backends import backends, column
from golden import golden
from hypothesis import given
from hypothesis import strategies as st
from problems import Problem, layouts, problems
from torch.nn.functional import scaled_dot_product_attention
from vectors import VECTORS

from rosetta_attention.torch import InvalidConfig, Mask, Unsupported, sdpa_fused
from rosetta_port import torch_port
from rosetta_port.serve import Port

NUMPY, TORCH = backends()
INF, NAN = np.inf, np.nan


@given(problem=problems())
def test_the_two_texts_agree(problem):
    for got, want in zip(problem.solve(TORCH), problem.solve(NUMPY), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


@given(problem=problems(extras=False))
def test_pytorch_agrees(problem):
    got = problem.solve_fused()
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, problem.solve(NUMPY).output, rtol=1e-12, atol=1e-13)


@given(problem=problems(extras=False, empty=False))
def test_pytorch_agrees_on_views(problem):
    """Tensors have no negative strides."""
    want = problem.solve(NUMPY).output
    views = zip(*(layouts(x).items() for x in (problem.q, problem.k, problem.v)), strict=True)
    for (name, q), (_, k), (_, v) in views:
        if name != "reversed":
            got = Problem(q, k, v, problem.mask, problem.options).solve_fused()
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13, err_msg=name)


@given(problem=problems(extras=False, empty=False), data=st.data())
def test_pytorch_is_right_about_nan_or_refuses(problem, data):
    arrays = [x for x in (problem.q, problem.k, problem.v, problem.options.get("bias")) if x is not None]
    x = data.draw(st.sampled_from(range(len(arrays))))
    for _ in range(data.draw(st.integers(1, 3))):
        index = tuple(data.draw(st.integers(0, size - 1)) for size in arrays[x].shape)
        arrays[x][index] = data.draw(st.sampled_from([NAN, INF, -INF]))
    with contextlib.suppress(Unsupported):
        got = problem.solve_fused()
        np.testing.assert_allclose(got, problem.solve(NUMPY).output, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "mask",
    [
        {},
        {"causal": True},
        {"causal": True, "q_offset": 100},
        {"kv_lengths": [250, 3]},
        {"window": (9, 0)},
        {"keep": [[[[True]]], [[[False]]]]},
    ],
    ids=str,
)
def test_pytorch_agrees_at_sizes_that_fill_its_tiles(dtype, mask):
    rng = np.random.default_rng(4)
    q, k, v = (
        rng.standard_normal(s).astype(dtype) for s in ((2, 4, 200, 64), (2, 2, 300, 64), (2, 2, 300, 64))
    )
    problem = Problem(q, k, v, mask)
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(problem.solve_fused(), problem.solve(NUMPY).output, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("feature", "options"),
    [
        ("softcap", {"softcap": 2.0}),
        ("sinks", {"sinks": np.zeros(1)}),
        ("nonfinite", {"bias": np.array([0, INF])}),
        ("nonfinite", {"bias": np.array([NAN, NAN])}),
    ],
    ids=str,
)
def test_refusals(feature, options):
    problem = Problem(np.ones((1, 1, 1, 1)), column([0, 1]), column([3, 6]), options=options)
    with pytest.raises(Unsupported) as caught:
        problem.solve_fused()
    assert caught.value.feature == feature
    assert caught.value.code == "unsupported"


def test_errors_come_before_refusals():
    problem = Problem(np.ones((1, 1, 1, 1)), column([0, 1]), column([3, 6]), options={"softcap": -2.0})
    with pytest.raises(InvalidConfig):
        problem.solve_fused()


@pytest.mark.parametrize(
    ("variant", "refusals", "least"),
    [("fused", {"softcap", "sinks", "dropout", "nonfinite"}, 300), ("folded", {"folded"}, 10)],
)
def test_pytorch_passes_the_golden_cases_or_refuses(tmp_path, variant, refusals, least):
    port = Port(torch_port.LIBRARY)
    port.answer(b'{"cmd": "start", "protocol": 1}')
    outputs, executed, refused = tmp_path / "out.safetensors", 0, set()
    for case in golden():
        if case.case["op"] != "sdpa" or not case.claimed(torch_port.LIBRARY.ops()):
            continue
        answer = case.run(port, outputs, variant=variant, want=["output"])
        if answer["status"] == "unsupported":
            refused.add(answer["feature"])
        elif case.expected is None:
            assert answer.get("code") == case.case["error"], case.id
        else:
            assert answer["status"] == "ok", (case.id, answer)
            case.check(outputs, want=["output"])
            executed += 1
    assert refused >= refusals
    assert refused <= refusals | {"softcap", "sinks", "dropout", "nonfinite"}
    assert executed > least


def test_pytorch_passes_the_onnx_vectors_but_softcap():
    refused = []
    for vector in VECTORS:
        try:
            vector.check_output(vector.problem().solve_fused())
        except Unsupported as refusal:
            refused.append(refusal.feature)
    assert {feature: refused.count(feature) for feature in refused} == {"softcap": 11}


class TestWhatIsSaidOfPyTorch:
    """The table at the top of fused.py. When a new version fails one of these, the table has to change."""

    Q = torch.ones(1, 1, 1, 1)

    def attend(self, keys, values, **options):
        return scaled_dot_product_attention(self.Q, column_of(keys), column_of(values), **options).item()

    def test_a_row_without_a_visible_key_is_zero(self):
        assert self.attend([0, 1], [3, 6], attn_mask=torch.zeros(1, 2, dtype=torch.bool)) == 0

    def test_causal_is_top_left(self):
        assert self.attend([0, 0], [3, 6], is_causal=True) == 3

    def test_the_scale_comes_after_the_product(self):
        q = torch.full((1, 1, 1, 64), 3e18)
        assert scaled_dot_product_attention(q, q, q).isnan().all()
        assert sdpa_fused(q, q, torch.ones_like(q)).eq(1).all()

    @pytest.mark.parametrize(("keys", "values"), [([0, NAN], [3, 6]), ([0, 0], [3, NAN])])
    def test_hidden_nan_reaches_the_output(self, keys, values):
        shown = torch.tensor([[True, False]])
        assert np.isnan(self.attend(keys, values, attn_mask=shown))
        with pytest.raises(Unsupported):
            sdpa_fused(self.Q, column_of(keys), column_of(values), mask=Mask(keep=shown))

    def test_visible_nan_may_vanish(self):
        assert self.attend([NAN], [3]) == 0
        with pytest.raises(Unsupported):
            sdpa_fused(self.Q, column_of([NAN]), column_of([3]))


def column_of(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).reshape(1, 1, -1, 1)
