"""What the wrapper needs to know of the library behind it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from .claims import claims


def _identity(x: Any) -> Any:
    return x


@dataclass(frozen=True)
class CacheRung:
    """A rung of attention over a cache.

    check: takes an empty cache, and raises an error with a `feature` where the rung does not do such a one. attend: the
    cache, q and the options of its `attend`; append_attend: the cache, k, v, q and the options of its `append_attend`.
    These two return (output, lse).
    """

    check: Callable[[Any], None]
    attend: Callable[..., tuple[Any, Any]]
    append_attend: Callable[..., tuple[Any, Any]]


@dataclass(frozen=True)
class Library:
    """A package with the API of `rosetta_attention`, and how NumPy arrays get in and out of it.

    api: the module. An op, variant or feature whose names it lacks (claims.py) is not claimed.
    from_numpy, to_numpy: for the library's arrays. The arrays given to from_numpy are not used elsewhere.
    sdpa_variants: rungs of the library's own beside those of the api; each takes the arguments of `sdpa` and
        returns (output, lse), where lse may be None for a rung that does not compute it.
    varlen_variants: the same for `varlen`. cache_variants: for the attends of a script.
    cache_dtypes: what KVCache takes as `dtype`, by the protocol's names: the float types of all ops.
    set_threads: takes the number wanted, returns the number in force.
    """

    name: str
    language: str
    runtime: str
    api: ModuleType
    version: str = "0.1.0"
    isa: list[str] = field(default_factory=list)
    from_numpy: Callable[[np.ndarray], Any] = _identity
    to_numpy: Callable[[Any], np.ndarray] = np.asarray
    sdpa_variants: dict[str, Callable[..., tuple[Any, Any]]] = field(default_factory=dict)
    varlen_variants: dict[str, Callable[..., tuple[Any, Any]]] = field(default_factory=dict)
    cache_variants: dict[str, CacheRung] = field(default_factory=dict)
    cache_dtypes: dict[str, Any] = field(default_factory=lambda: {"f32": np.float32, "f64": np.float64})
    set_threads: Callable[[int], int] = lambda threads: 1

    def convert(self, x: np.ndarray | None) -> Any:
        """`from_numpy` for an array that may be absent."""
        return None if x is None else self.from_numpy(x)

    def ops(self) -> dict[str, dict[str, list[str]]]:
        """The claims of the answer to `start`."""
        variants = {
            "sdpa": list(self.sdpa_variants),
            "varlen": list(self.varlen_variants),
            "kv_cache": list(self.cache_variants),
        }
        return claims(self.api, list(self.cache_dtypes), variants)
