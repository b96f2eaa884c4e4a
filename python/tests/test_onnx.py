"""ONNX Attention, opset 23 to 25: a second opinion that is not ours."""

import numpy as np
import pytest
from backends import backends
from vectors import HALVES, VECTORS

from rosetta_attention import Steps

# How many vectors there are for each test.
ALL, WITH_PAST, OF_HALVES = 82, 20, 11


def test_all_vectors_are_here():
    assert len(VECTORS) == ALL
    assert sum(vector.past > 0 for vector in VECTORS) == WITH_PAST
    assert len(HALVES) == OF_HALVES


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_sdpa(lib, vector):
    problem = vector.problem()
    vector.check(lib, problem.solve(lib), problem.mask)


@pytest.mark.parametrize("vector", [v for v in VECTORS if v.past], ids=lambda vector: vector.name)
def test_cache(lib, vector):
    problem = vector.problem()
    k, v = problem.k, problem.v
    cache = lib.cache(*k.shape[:2], k.shape[3], v.shape[3], dtype="float32")
    for part in (slice(vector.past), slice(vector.past, None)):
        cache.append(lib.array(k[:, :, part], "float32"), lib.array(v[:, :, part], "float32"))
    options = {name: lib.convert(x) for name, x in problem.options.items()}
    steps = cache.attend_steps(lib.convert(problem.q), mask=lib.mask(**problem.mask), **options)
    vector.check(lib, Steps(*map(lib.to_numpy, steps)), problem.mask)
    for name, x in zip(("present_key", "present_value"), cache.read()[:2], strict=True):
        np.testing.assert_array_equal(lib.to_numpy(x), vector.outputs[name])


@pytest.mark.parametrize("vector", HALVES, ids=lambda vector: vector.name)
def test_half_types(vector):
    """In NumPy, which runs in f32 where ONNX's own reference rounds at every step."""
    problem, numpy = vector.problem(), backends()[0]
    steps = numpy.api.sdpa_steps(
        problem.q, problem.k, problem.v, mask=numpy.mask(**problem.mask), **problem.options
    )
    vector.check(numpy, steps, problem.mask)
