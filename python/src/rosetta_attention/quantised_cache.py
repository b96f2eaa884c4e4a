"""The quantised KV cache: keys and values in fewer bits, restored whenever they are attended to.

Each token's keys and values are rounded once, when they come, and never again; what `attend` gives is what a
contiguous cache of the restored numbers gives. Keys that are held turned are turned first and rounded after that.

Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, Tq queries, L longest row, D and Dv head
sizes, g groups.

Sources: Sheng et al., "FlexGen", 2023, section 4.2 (a cache in groups of 4 bits); Liu et al., "KIVI", 2024 (per
token and per channel).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from .arrays import Array, IntArray
from .cache import Entry, aligned
from .cache_rope import turned
from .cast import NAMES, narrow
from .checks import (
    check_cache,
    check_cache_rope,
    check_format,
    check_room,
    check_tracking,
    check_truncate,
)
from .evicting_cache import EvictingCache
from .masks import UNMASKED, Mask
from .quantise import Codes, quantise, restore
from .rope import Rope
from .sdpa import Steps
from .slots import TRACKED, Slots


class QuantisedCache(EvictingCache):
    """Codes of keys (B, Hkv, L, D) and values (B, Hkv, L, Dv) of the past. A call that raises changes nothing.

    format, group, zero_point: as for quantise, group by group of head_dim and of value_dim. capacity, value_dim,
    rope, rope_at, track: as for KVCache. dtype: of what comes and goes.
    Raises ShapeMismatch, InvalidConfig, DtypeMismatch.
    """

    kind = "quantised"

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        format: str,
        group: int | None = None,
        zero_point: bool = False,
        capacity: int | None = None,
        rope: Rope | None = None,
        rope_at: str | None = None,
        track: bool = False,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.batch, self.num_kv_heads, self.head_dim = batch, num_kv_heads, head_dim
        self.value_dim = head_dim if value_dim is None else value_dim
        self.format, self.group, self.zero_point = format, group, zero_point
        self.capacity, self.rope, self.rope_at, self.track = capacity, rope, rope_at, track
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        check_cache("quantised_cache", self)
        check_cache_rope("quantised_cache", self)
        check_tracking("quantised_cache", track)
        check_format("quantised_cache", format, group, zero_point)
        parts = self._beside()
        for name, n in self._coded().items():
            of_none = self._quantised(name, np.zeros((num_kv_heads, 0, n), np.float32))
            parts |= {part: (num_kv_heads, x.shape[2], x.dtype) for part, x in of_none.items()}
        self._slots = Slots(batch, parts, 0 if capacity is None else capacity)

    def _coded(self) -> dict[str, int]:
        """What is quantised slot by slot, with its channels."""
        return {"k": self.head_dim, "v": self.value_dim}

    def _quantised(self, name: str, x: Array) -> dict[str, NDArray[Any]]:
        """The codes of `x` (Hkv, count, n), with scales and zeros where the format has them."""
        codes = quantise(x, self.format, self.group, self.zero_point)
        parts = {f"{name}_codes": codes.codes, f"{name}_scale": codes.scale, f"{name}_zero": codes.zero}
        return {part: array for part, array in parts.items() if array is not None}

    def _codes(self, name: str, channels: int, parts: dict[str, NDArray[Any]]) -> Codes:
        """The codes of keys or values that lie in the parts."""
        scale, zero = parts.get(f"{name}_scale"), parts.get(f"{name}_zero")
        return Codes(parts[f"{name}_codes"], scale, zero, self.format, self.group, channels)

    def _prepare(self, name: str, k: Array, v: Array, lengths: IntArray | None, padding: str) -> Entry:
        # 1. check: everything, before anything is changed
        entry = self._entry(name, k, v, lengths, padding, self._slots.next)
        check_room(name, self.longest_after(entry.counts), self.capacity)

        # 2. quantise: only what counts; a number that has no code is an error too
        rows = [self._quantised("k", row["k"]) | self._quantised("v", row["v"]) for row in entry.rows]
        return Entry(rows, entry.counts)

    def _before_turning(self, k: Array) -> Array:
        return k.astype(np.result_type(self.dtype, np.float32), copy=False)  # turned keys of halves stay wide

    def _commit(self, entry: Entry) -> None:
        # 3. write: codes (Hkv, count, n), scales and zeros (Hkv, count, g)
        self._slots.make_room(self.longest_after(entry.counts))
        self._slots.write(entry.rows)
        self._slots.advance(entry.counts)

    def _attend(self, q: Array, mask: Mask = UNMASKED, **options: Any) -> Steps:
        # 4. restore: in float32, then as wide as the queries
        slots = self._slots
        held = {part: slots.held(part) for part in slots.parts}
        k, v = restore(self._codes("k", self.head_dim, held)), restore(self._codes("v", self.value_dim, held))

        # 5. attend: as in a contiguous cache of these numbers
        mask = aligned(mask, q.shape[2], slots.lengths, slots.next, slots.positions[:, : len(self)])
        return self._attend_to(q, k, v, mask, **options)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget from the end: row b keeps its first lengths[b] slots. Raises ShapeMismatch, InvalidConfig."""
        # 6. truncate: the memory stays, the slots beyond are junk from now on
        check_truncate("truncate", lengths, self._slots.lengths.tolist())
        self._slots.truncate(lengths)

    def _turn(self, moved: Sequence[IntArray], by: int) -> None:
        turned_keys = []
        for b, which in enumerate(moved):
            parts = {part: x[b][:, which] for part, x in self._slots.parts.items()}  # (Hkv, count, n)
            keys = self._before_turning(restore(self._codes("k", self.head_dim, parts)))  # (Hkv, count, D)
            turned_keys.append(self._quantised("k", turned(keys[None], self.held_rope, by)[0]))
        for b, (which, content) in enumerate(zip(moved, turned_keys, strict=True)):
            for part, x in content.items():
                self._slots.parts[part][b][:, which] = x

    def codes(self) -> tuple[Codes, Codes]:
        """Copies of the codes of keys and of values, zero beyond a row's length."""
        arrays = self.code_arrays()
        return self._codes("k", self.head_dim, arrays), self._codes("v", self.value_dim, arrays)

    def code_arrays(self) -> dict[str, NDArray[Any]]:
        """The same by name, as a file has them: k_codes, k_scale, k_zero and those of v, where the format has them."""
        return {part: self._slots.read(part) for part in self._slots.parts if part != TRACKED}

    def read(self) -> tuple[Array, Array, IntArray]:
        """The restored numbers: keys (B, Hkv, L, D), values (B, Hkv, L, Dv), zero beyond a row's length; lengths
        (B,).
        """
        # 7. read: codes of 0 stand for 0, so what lies beyond a row is 0
        k, v = (narrow(restore(codes), NAMES[self.dtype]) for codes in self.codes())
        return k, v, self.lengths

    def describe(self) -> dict[str, str]:
        """What a file says of the cache beside kind, dtype and batch."""
        about = {
            "quantised_format": self.format,
            "zero_point": "true" if self.zero_point else "false",
        }
        whole = self.group is None or self.group == self.head_dim == self.value_dim
        return super().describe() | about | ({} if whole else {"group": str(self.group)})
