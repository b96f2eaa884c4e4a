"""Both libraries under one face: NumPy arrays and lists in, NumPy arrays out, so that one test speaks of both."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np

import rosetta_attention
from rosetta_attention import Steps

LN2 = np.log(2.0)
DTYPES = ("float32", "float64")
HAS_TORCH = find_spec("torch") is not None


@dataclass(frozen=True)
class Backend:
    """A library, and how arrays get in and out of it."""

    name: str
    api: ModuleType
    from_numpy: Callable[[np.ndarray], Any]
    to_numpy: Callable[[Any], np.ndarray]

    def array(self, values: Any, dtype: str = "float64") -> Any:
        return self.from_numpy(np.array(values, dtype))

    def convert(self, x: Any) -> Any:
        return self.from_numpy(x) if isinstance(x, np.ndarray) else x

    def mask(self, **conditions: Any) -> Any:
        """A Mask; lists become arrays of the type that the condition has."""
        kinds = {"keep": np.bool_, "kv_lengths": np.int64, "q_offset": np.int64}
        for name, kind in kinds.items():
            if isinstance(conditions.get(name), list):
                conditions[name] = np.array(conditions[name], kind)
        return self.api.Mask(**{name: self.convert(x) for name, x in conditions.items()})

    def sdpa(self, q: Any, k: Any, v: Any, *, mask: dict[str, Any] | None = None, **options: Any) -> Steps:
        """Every step as a NumPy array. Checks on the way that no dtype changes and that the short call agrees."""
        inputs = [self.convert(x) for x in (q, k, v)]
        options = {name: self.convert(x) for name, x in options.items()} | {"mask": self.mask(**mask or {})}
        steps = Steps(*map(self.to_numpy, self.api.sdpa_steps(*inputs, **options)))
        assert {str(x.dtype) for x in steps} == {str(np.asarray(q).dtype)}
        np.testing.assert_array_equal(steps.output, self.to_numpy(self.api.sdpa(*inputs, **options)))
        return steps

    def by_score(
        self, scores: Any, values: Any, dtype: str = "float64", *, queries: int = 1, **options: Any
    ) -> Steps:
        """D = 1, scale 1, queries of 1: the keys are the scores. `values` is V, one number a key."""
        q, k, v = np.ones((1, 1, queries, 1), dtype), column(scores, dtype), column(values, dtype)
        return self.sdpa(q, k, v, **{"scale": 1.0} | options)

    def by_mean(self, values: Any, dtype: str = "float64", *, queries: int = 1, **options: Any) -> Steps:
        """Queries of 0: the output is the mean of the V that a query sees."""
        v = column(values, dtype)
        return self.sdpa(np.zeros((1, 1, queries, 1), dtype), np.ones_like(v), v, **options)

    def cache(self, *args: Any, dtype: str = "float64", **options: Any) -> Any:
        return self.api.KVCache(*args, dtype=self.array(0, dtype).dtype, **options)


def column(values: Any, dtype: str = "float64") -> np.ndarray:
    """(1, 1, n, 1)."""
    return np.array(values, dtype).reshape(1, 1, -1, 1)


def _identity(x: Any) -> Any:
    return x


def backends() -> list[Backend]:
    """NumPy, and torch where it is installed."""
    found = [Backend("numpy", rosetta_attention, _identity, np.asarray)]
    if HAS_TORCH:
        import torch

        from rosetta_attention import torch as on_tensors

        found.append(Backend("torch", on_tensors, torch.from_numpy, torch.Tensor.numpy))
    return found
