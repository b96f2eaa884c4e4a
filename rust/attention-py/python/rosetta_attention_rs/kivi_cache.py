"""The quantised KV cache whose keys share a scale along the tokens, channel by channel."""

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from . import _rust
from .quantise import Codes, typed_codes
from .quantised_cache import QuantisedCache
from .rope import Rope


class KiviCache(QuantisedCache):
    """Codes of keys (B, Hkv, L, D) by channel, of values (B, Hkv, L, Dv) by token; `read` restores them.

    format: "int8" or "int4". key_groups: n >= 1, how many consecutive slots of a row share the scales of their keys;
    the last ones, too few for a group, stay in float32. group: of the values alone. All else as for QuantisedCache.
    Raises ShapeMismatch, InvalidConfig, DtypeMismatch.
    """

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        format: str,
        key_groups: int,
        group: int | None = None,
        zero_point: bool = False,
        capacity: int | None = None,
        rope: Rope | None = None,
        rope_at: str | None = None,
        track: bool = False,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.key_groups = key_groups
        super().__init__(
            *(batch, num_kv_heads, head_dim, value_dim),
            format=format,
            group=group,
            zero_point=zero_point,
            capacity=capacity,
            rope=rope,
            rope_at=rope_at,
            track=track,
            dtype=dtype,
        )

    def _empty(self, sizes: tuple[int, int, int, int, np.dtype[Any]]) -> _rust.Cache:
        form, turn = (self.format, self.group, self.zero_point), (self.rope, self.rope_at)
        return _rust.kivi_cache(sizes, form, self.key_groups, self.capacity, turn, self.track)

    def codes(self) -> tuple[Codes, Codes]:
        """Copies of the codes of keys and of values, zero beyond a row's length. Every key has the scales of its group;
        the tail has no codes, and there codes and scales are 0.
        """
        k, v = self._cache.codes()
        return (
            typed_codes(k, self.format, 1, self.head_dim),
            typed_codes(v, self.format, self.group, self.value_dim),
        )

    def code_arrays(self) -> dict[str, NDArray[Any]]:
        """By name, as a file has them: k_codes (B, Hkv, L, D), 0 where the tail is, k_scale (B, Hkv, g, D), with a zero
        point k_zero (B, Hkv, g, D), k_tail (B, Hkv, t, D); v_codes, v_scale and v_zero as without groups of tokens.
        """
        return super().code_arrays()
