"""What holds for every input: no expected value is needed."""

import numpy as np
import pytest
from backends import Backend, backends
from hypothesis import given
from hypothesis import strategies as st
from problems import SIZES, Problem, layouts, problems

# A few hundred roundings of numbers near 1, in float64.
TOLERANCE = {"rtol": 1e-12, "atol": 1e-13}
pytestmark = pytest.mark.parametrize("lib", backends(), ids=lambda backend: backend.name)


def same(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, **TOLERANCE)


@given(problem=problems())
def test_weights_are_a_distribution(lib: Backend, problem: Problem):
    steps = problem.solve(lib)
    assert (steps.weights >= 0).all()
    total = steps.weights.sum(axis=-1)
    if "sinks" in problem.options:
        assert (total <= 1 + 1e-12).all()
    else:
        same(total, np.where(steps.lse == -np.inf, 0, 1))
    assert np.isfinite(steps.output).all()


@given(problem=problems())
def test_hidden_means_weight_zero_and_visible_means_not(lib: Backend, problem: Problem):
    steps = problem.solve(lib)
    shape = steps.weights.shape
    shown = np.array(lib.to_numpy(lib.api.visible(lib.mask(**problem.mask), *shape)))
    if "bias" in problem.options:
        shown &= problem.options["bias"] != -np.inf
    np.testing.assert_array_equal(steps.weights > 0, shown)


@given(problem=problems(empty=False), data=st.data())
def test_rows_of_a_batch_are_independent(lib: Backend, problem: Problem, data: st.DataObject):
    B = len(problem.q)
    b = data.draw(st.integers(0, B - 1))

    def row(x):
        return x[b : b + 1] if isinstance(x, np.ndarray) and x.ndim in (1, 4) and len(x) == B else x

    mask = {name: row(x) if name != "keep" or np.ndim(x) == 4 else x for name, x in problem.mask.items()}
    options = {
        name: row(x) if name == "bias" and np.ndim(x) == 4 else x for name, x in problem.options.items()
    }
    alone = Problem(row(problem.q), row(problem.k), row(problem.v), mask, options).solve(lib)
    for got, want in zip(alone, problem.solve(lib), strict=True):
        same(got, want[b : b + 1])


@given(problem=problems(), data=st.data())
def test_the_order_of_the_keys_does_not_matter(lib: Backend, problem: Problem, data: st.DataObject):
    """With the mask written out as a table, which is permuted along."""
    steps = problem.solve(lib)
    shape = steps.weights.shape
    order = np.array(data.draw(st.permutations(range(shape[3]))), int)
    shown = lib.to_numpy(lib.api.visible(lib.mask(**problem.mask), *shape))
    options = dict(problem.options)
    if "bias" in options:
        options["bias"] = np.broadcast_to(options["bias"], shape)[..., order]
    k, v = problem.k[:, :, order], problem.v[:, :, order]
    permuted = lib.sdpa(problem.q, k, v, mask={"keep": shown[..., order]}, **options)
    same(permuted.output, steps.output)
    same(permuted.weights, steps.weights[..., order])
    same(permuted.lse, steps.lse)


@given(problem=problems())
def test_groups_are_repeated_heads(lib: Backend, problem: Problem):
    G = problem.q.shape[1] // problem.k.shape[1]
    k, v = (x.repeat(G, axis=1) for x in (problem.k, problem.v))
    repeated = Problem(problem.q, k, v, problem.mask, problem.options).solve(lib)
    for got, want in zip(repeated, problem.solve(lib), strict=True):
        same(got, want)


@given(problem=problems(lengths=True), poison=st.sampled_from([np.nan, np.inf, -np.inf]))
def test_junk_beyond_the_lengths_is_never_seen(lib: Backend, problem: Problem, poison: float):
    clean = problem.solve(lib)
    beyond = (np.arange(problem.k.shape[2]) >= problem.mask["kv_lengths"][:, None])[:, None, :, None]
    k, v = (np.where(beyond, poison, x) for x in (problem.k, problem.v))
    dirty = Problem(problem.q, k, v, problem.mask, problem.options).solve(lib)
    for name in ("output", "weights", "lse"):
        np.testing.assert_array_equal(getattr(dirty, name), getattr(clean, name))


@given(problem=problems(empty=False), data=st.data())
def test_poison_in_one_key_reaches_only_those_who_see_it(lib: Backend, problem: Problem, data: st.DataObject):
    clean = problem.solve(lib)
    b, h, j = (data.draw(st.integers(0, size - 1)) for size in problem.k.shape[:3])
    G = problem.q.shape[1] // problem.k.shape[1]
    sees = np.zeros(clean.lse.shape, bool)
    sees[b, h * G : (h + 1) * G] = clean.weights[b, h * G : (h + 1) * G, :, j] > 0
    k, v = problem.k.copy(), problem.v.copy()
    k[b, h, j] = v[b, h, j] = np.nan
    dirty = Problem(problem.q, k, v, problem.mask, problem.options).solve(lib)
    np.testing.assert_array_equal(np.isnan(dirty.lse), sees)
    np.testing.assert_array_equal(np.isnan(dirty.output).any(axis=-1), sees)
    same(dirty.output[~sees], clean.output[~sees])


@given(problem=problems())
def test_a_view_is_its_copy(lib: Backend, problem: Problem):
    """Tensors have no negative strides, so torch sees the reversed layout as a copy."""
    want = problem.solve(lib)
    views = zip(*(layouts(x).items() for x in (problem.q, problem.k, problem.v)), strict=True)
    for (name, q), (_, k), (_, v) in views:
        if lib.name == "torch" and name == "reversed":
            q, k, v = q.copy(), k.copy(), v.copy()
        for got, expected in zip(
            Problem(q, k, v, problem.mask, problem.options).solve(lib), want, strict=True
        ):
            np.testing.assert_allclose(got, expected, err_msg=name, **TOLERANCE)


@given(problem=problems())
def test_float32_is_near_float64(lib: Backend, problem: Problem):
    """Also that no step is computed in another type: `lib.sdpa` checks the dtype of each."""
    want = problem.cast("float32").cast("float64").solve(lib)
    for got, expected in zip(problem.cast("float32").solve(lib), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@given(data=st.data(), T=SIZES, seed=st.integers(0, 2**32 - 1))
def test_chunks_through_a_cache_are_the_whole(lib: Backend, data: st.DataObject, T: int, seed: int):
    """Any split into appends, one query a position; with and without a capacity, again after a reset."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((2, h, T, n)) for h, n in ((4, 3), (2, 3), (2, 5)))
    window = data.draw(st.sampled_from([None, (2, 0)]))
    whole = lib.sdpa(q, k, v, mask={"causal": True, "window": window})
    cache = lib.cache(2, 2, 3, 5, capacity=data.draw(st.sampled_from([None, T])))
    for _ in range(2):
        start = 0
        while start < T:
            end = data.draw(st.integers(start + 1, T))
            cache.append(lib.array(k[:, :, start:end]), lib.array(v[:, :, start:end]))
            steps = cache.attend_steps(
                lib.array(q[:, :, start:end]), mask=lib.mask(causal=True, window=window)
            )
            same(lib.to_numpy(steps.output), whole.output[:, :, start:end])
            same(lib.to_numpy(steps.lse), whole.lse[:, :, start:end])
            start = end
        np.testing.assert_array_equal(lib.to_numpy(cache.keys()), k)
        cache.reset()


@given(x=st.lists(st.floats(-50, 50) | st.just(-np.inf), max_size=9), shift=st.floats(-1e3, 1e3))
def test_softmax_does_not_see_a_shift(lib: Backend, x: list[float], shift: float):
    weights, lse = map(lib.to_numpy, lib.api.softmax_lse(lib.array(x)))
    shifted, shifted_lse = map(lib.to_numpy, lib.api.softmax_lse(lib.array(np.array(x) + shift)))
    np.testing.assert_allclose(shifted, weights, atol=1e-12)
    np.testing.assert_allclose(shifted_lse, lse + shift, atol=1e-11, rtol=1e-12)
