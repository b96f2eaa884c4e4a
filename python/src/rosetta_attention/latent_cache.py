"""The latent KV cache: one latent and one rotary key a token, shared by all heads.

    score = scale · (q_c · latent + q_r · rope_key),   output = Σ weight · latent

Keys and values of the heads are never stored: the up-projections are absorbed into queries and output, as in
mla_absorbed, and R + Dr numbers a token are enough.

Letters: B batch, H heads, T new positions, Tq queries, L longest row, R size of the latent, Dr of the rotary key.

Source: "DeepSeek-V2", 2024, section 2.1.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from .arrays import Array, IntArray
from .cache import AttendOptions, Entry, aligned, counted
from .checks import (
    check_capacity,
    check_latent_append,
    check_numbers,
    check_padding,
    check_room,
    check_sizes,
    check_truncate,
)
from .masks import UNMASKED, Mask
from .sdpa import Steps, sdpa_steps
from .slot_cache import SlotCache
from .slots import Slots


class LatentCache(SlotCache):
    """Latents (B, L, R) and rotary keys (B, L, Dr) of the past. A call that raises leaves it as it was.

    capacity: most positions a row may hold; None = grows by doubling. rope_dim: may be 0.
    Raises InvalidConfig, DtypeMismatch.
    """

    kind = "latent"
    slot_axis = 1

    def __init__(
        self,
        batch: int,
        latent_dim: int,
        rope_dim: int,
        *,
        capacity: int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.batch, self.latent_dim, self.rope_dim = batch, latent_dim, rope_dim
        self.capacity = capacity
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        check_sizes("latent_cache", self, batch=0, latent_dim=1, rope_dim=0)
        check_capacity("latent_cache", capacity)
        check_numbers("latent_cache", "capacity", batch, capacity or 0, latent_dim + rope_dim)
        parts = {"key": (1, latent_dim + rope_dim, self.dtype)}  # the latent, then the rotary key
        self._slots = Slots(batch, parts, 0 if capacity is None else capacity)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """One key/value head; a key is a latent and a rotary key, a value the latent."""
        return 1, self.latent_dim + self.rope_dim, self.latent_dim

    def append(
        self, latent: Array, rope_key: Array, lengths: IntArray | None = None, *, padding: str = "right"
    ) -> None:
        """Add `latent` (B, T, R) and `rope_key` (B, T, Dr), which is turned already, after the end of each row.

        lengths, padding: as for KVCache.
        Raises ShapeMismatch, DtypeMismatch, InvalidConfig, CapacityExceeded.
        """
        self._commit(self._prepare("append", latent, rope_key, lengths, padding))

    def append_attend(
        self,
        latent: Array,
        rope_key: Array,
        q: Array,
        lengths: IntArray | None = None,
        *,
        padding: str = "right",
        **options: Unpack[AttendOptions],
    ) -> Steps:
        """`append`, then `attend_steps`; if either fails, nothing has changed."""
        entry = self._prepare("append_attend", latent, rope_key, lengths, padding)
        return self._append_attend(entry, q, options)

    def _prepare(
        self, name: str, latent: Array, rope_key: Array, lengths: IntArray | None, padding: str
    ) -> Entry:
        # 1. check: everything, before anything is changed
        check_latent_append(name, latent, rope_key, lengths, self)
        check_padding(name, padding)
        counts, which = counted(latent.shape[1], lengths, self.batch, padding)
        keys = np.concatenate([latent, rope_key], axis=-1)  # (B, T, R + Dr)
        entry = Entry([{"key": keys[None, b, tokens]} for b, tokens in enumerate(which)], counts)
        check_room(name, self.longest_after(entry.counts), self.capacity)
        return entry

    def _commit(self, entry: Entry) -> None:
        # 2. write: one key a token, whose first part is the value too
        self._slots.make_room(self.longest_after(entry.counts))
        self._slots.write(entry.rows)  # (1, count, R + Dr)
        self._slots.advance(entry.counts)

    def _attend(self, q: Array, mask: Mask = UNMASKED, **options: Any) -> Steps:
        # 3. attend: multi-query attention, all heads to the same keys
        slots = self._slots
        mask = aligned(mask, q.shape[2], slots.lengths, slots.next, slots.positions[:, : len(self)])
        keys = slots.held("key").astype(q.dtype, copy=False)  # (B, 1, L, R + Dr)
        latents = keys[..., : self.latent_dim]  # (B, 1, L, R)
        return sdpa_steps(q, keys, latents, mask=mask, **options)  # (B, H, Tq, R)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget from the end: row b keeps its first lengths[b] slots. Raises ShapeMismatch, InvalidConfig."""
        check_truncate("truncate", lengths, self._slots.lengths.tolist())
        self._slots.truncate(lengths)

    def read(self) -> tuple[Array, Array, IntArray]:
        """Copies: latents (B, L, R), rotary keys (B, L, Dr), zero beyond a row's length; lengths (B,)."""
        # 4. read: by selection, since junk may be NaN
        latent, rope_key = np.split(self._slots.read("key")[:, 0], [self.latent_dim], axis=-1)
        return latent, rope_key, self.lengths

    def describe(self) -> dict[str, str]:
        """What a file says of the cache beside kind, dtype and batch."""
        return {"latent_dim": str(self.latent_dim), "rope_dim": str(self.rope_dim)}

    def _to_file(self) -> dict[str, NDArray[Any]]:
        latent, rope_key, _ = self.read()
        return {"latent": latent, "rope_key": rope_key}

    def _from_file(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        return {"key": np.concatenate([arrays["latent"], arrays["rope_key"]], axis=-1)[:, None]}
