"""The quantised KV cache whose keys share a scale along the tokens, channel by channel.

A few channels of keys are far larger than the others, in every token. A scale that all channels of a token share then
leaves hardly a code to the small ones; along the tokens every channel has a scale of its own. So `key_groups` keys wait
for each other, and are quantised when they are that many; the last ones of a row, too few for a group, are its tail and
stay in float32. Values have no such channels and are quantised token by token.

Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, Tq queries, L longest row, S slots from some
group on, D and Dv head sizes, n key_groups, g groups of the row with the most, t slots of the longest tail.

Source: Liu et al., "KIVI: a tuning-free asymmetric 2bit quantization for KV cache", 2024, section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from .arrays import Array, BoolArray, IntArray
from .cache import Content, Entry, Stats, aligned
from .cache_rope import turned
from .cast import NAMES, narrow
from .checks import check_key_groups, check_room, check_truncate
from .masks import UNMASKED, Mask
from .quantise import Codes, check_finite, integer_codes, pack, restore, restore_integers, unpack
from .quantised_cache import QuantisedCache
from .rope import Rope
from .sdpa import Steps


@dataclass(frozen=True, eq=False)
class KeyGroup:
    """n keys of a row."""

    codes: NDArray[Any]  # (Hkv, n, D), for int4 (Hkv, n, ceil(D / 2))
    scale: Array  # (Hkv, D)
    zero: Array | None  # (Hkv, D)


@dataclass(frozen=True, eq=False)
class KeyRow:
    """The keys of a row. Nothing in it ever changes, so that rows and forks share it."""

    groups: tuple[KeyGroup, ...]
    tail: Array  # (Hkv, S, D), S < n


@dataclass(frozen=True)
class KiviEntry(Entry):
    """keys: what the keys of each row will be."""

    keys: Sequence[KeyRow] = ()


class KiviCache(QuantisedCache):
    """Codes of keys (B, Hkv, L, D) by channel, of values (B, Hkv, L, Dv) by token. A call that raises changes nothing.

    format: "int8" or "int4". key_groups: n >= 1, how many consecutive slots of a row share the scales of their keys.
    group: of the values alone. All else as for QuantisedCache.
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
        self.key_groups = key_groups
        check_key_groups("kivi_cache", format, key_groups)
        self._keys = [self._no_keys()] * batch

    def _coded(self) -> dict[str, int]:
        return {"v": self.value_dim}

    def _no_keys(self) -> KeyRow:
        return KeyRow((), np.zeros((self.num_kv_heads, 0, self.head_dim), np.float32))

    def _prepare(self, name: str, k: Array, v: Array, lengths: IntArray | None, padding: str) -> KiviEntry:
        # 1. check: everything, before anything is changed; a number without a code is refused before its group is full
        entry = self._entry(name, k, v, lengths, padding, self._slots.next)
        check_room(name, self.longest_after(entry.counts), self.capacity)
        keys = []
        for held, row in zip(self._keys, entry.rows, strict=True):
            with np.errstate(over="ignore", invalid="ignore"):
                new = row["k"].astype(np.float32)  # (Hkv, count, D)
            check_finite(new, "finite numbers for integer codes", name, "k")

            # 2. tail: new keys join those that wait
            keys.append(self._grouped(held.groups, np.concatenate([held.tail, new], axis=1)))
        return KiviEntry([self._quantised("v", row["v"]) for row in entry.rows], entry.counts, keys)

    def _grouped(self, groups: Sequence[KeyGroup], keys: Array) -> KeyRow:
        """These groups and, behind them, keys (Hkv, S, D), of which as many are quantised as fill groups."""
        n = self.key_groups
        full = keys.shape[1] // n * n
        more = [self._group(keys[:, start : start + n]) for start in range(0, full, n)]
        return KeyRow((*groups, *more), keys[:, full:])

    def _group(self, keys: Array) -> KeyGroup:
        # 3. quantise: as the channels of a token otherwise are, with tokens for channels
        along = keys.swapaxes(1, 2)  # (Hkv, D, n)
        codes, scale, zero = integer_codes(along, self.format, None, self.zero_point)
        packed = pack(codes.swapaxes(1, 2), self.format)  # (Hkv, n, D), from (Hkv, D, n)
        return KeyGroup(packed, scale[..., 0], None if zero is None else zero[..., 0])  # of (Hkv, D, 1)

    def _restored(self, row: KeyRow, first: int = 0) -> Array:
        """The keys from group `first` on: (Hkv, S, D)."""
        # 4. restore: every channel of a group by its own scale; the tail is there as it came
        keys = []
        for group in row.groups[first:]:
            codes = unpack(group.codes, self.format, self.head_dim, self.zero_point)  # (Hkv, n, D)
            zero = None if group.zero is None else group.zero[:, None]  # (Hkv, 1, D)
            keys.append(restore_integers(codes, group.scale[:, None], zero))  # (Hkv, n, D)
        return np.concatenate([*keys, row.tail], axis=1)  # (Hkv, S, D)

    def _commit(self, entry: Entry) -> None:
        assert isinstance(entry, KiviEntry)
        super()._commit(entry)  # values (Hkv, count, Dv)
        self._keys = list(entry.keys)

    def _attend(self, q: Array, mask: Mask = UNMASKED, **options: Any) -> Steps:
        # 5. attend: as in a contiguous cache of these numbers
        slots = self._slots
        v = restore(self._codes("v", self.value_dim, {part: slots.held(part) for part in slots.parts}))
        mask = aligned(mask, q.shape[2], slots.lengths, slots.next, slots.positions[:, : len(self)])
        return self._attend_to(q, self._all_keys(), v, mask, **options)

    def _all_keys(self) -> Array:
        """(B, Hkv, L, D), zero beyond a row's length."""
        keys = np.zeros((self.batch, self.num_kv_heads, len(self), self.head_dim), np.float32)
        for b, row in enumerate(self._keys):
            held = self._restored(row)  # (Hkv, S, D)
            keys[b, :, : held.shape[1]] = held
        return keys

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget from the end: row b keeps its first lengths[b] slots. Raises ShapeMismatch, InvalidConfig."""
        check_truncate("truncate", lengths, self._slots.lengths.tolist())
        # 6. truncate: what is left of a group that is cut waits in the tail
        for b, length in enumerate(lengths):
            groups, start, keys = self._opened(self._keys[b], int(length))
            self._keys[b] = KeyRow(groups, keys[:, : int(length) - start])
        self._slots.truncate(lengths)

    def _opened(self, row: KeyRow, slot: int) -> tuple[tuple[KeyGroup, ...], int, Array]:
        """The groups before that of this slot, where it begins, and the keys from there on, restored, (Hkv, S, D)."""
        first = slot // self.key_groups
        return row.groups[:first], first * self.key_groups, self._restored(row, first)

    def _keep(self, kept: BoolArray) -> None:
        keys = list(self._keys)
        for b, (row, length) in enumerate(zip(self._keys, self._slots.lengths, strict=True)):
            gone = np.flatnonzero(~kept[b, :length])
            if gone.size:
                groups, start, old = self._opened(row, int(gone[0]))
                keys[b] = self._grouped(groups, old[:, kept[b, start:length]])
        super()._keep(kept)
        self._keys = keys

    def _turn(self, moved: Sequence[IntArray], by: int) -> None:
        keys = list(self._keys)
        for b, (row, which) in enumerate(zip(self._keys, moved, strict=True)):
            if which.size:
                groups, start, held = self._opened(row, int(which[0]))
                old = self._before_turning(held[:, which - start])  # (Hkv, count, D)
                with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
                    held[:, which - start] = turned(old[None], self.held_rope, by)[0]
                check_finite(held[:, which - start], "finite numbers for integer codes", "shift", "by")
                keys[b] = self._grouped(groups, held)
        self._keys = keys

    def code_arrays(self) -> dict[str, NDArray[Any]]:
        """By name, as a file has them: k_codes (B, Hkv, L, D), 0 where the tail is, k_scale (B, Hkv, g, D), with a zero
        point k_zero (B, Hkv, g, D), k_tail (B, Hkv, t, D); v_codes, v_scale and v_zero as without groups of tokens.
        """
        B, Hkv, D, n = self.batch, self.num_kv_heads, self.head_dim, self.key_groups
        g, t = (self.entries(name, self.lengths, len(self)) for name in ("k_scale", "k_tail"))
        none = np.zeros((B, Hkv, len(self), D), np.uint8 if self.zero_point else np.int8)
        codes = pack(none, self.format)  # (B, Hkv, L, D), for int4 (B, Hkv, L, ceil(D / 2))
        scale, zero = (np.zeros((B, Hkv, g, D), np.float32) for _ in range(2))
        tail = np.zeros((B, Hkv, t, D), np.float32)
        for b, row in enumerate(self._keys):
            for i, group in enumerate(row.groups):
                codes[b, :, i * n : (i + 1) * n] = group.codes
                scale[b, :, i] = group.scale
                if group.zero is not None:
                    zero[b, :, i] = group.zero
            tail[b, :, : row.tail.shape[1]] = row.tail
        of_zero = {"k_zero": zero} if self.zero_point else {}
        return super().code_arrays() | {"k_codes": codes, "k_scale": scale, "k_tail": tail} | of_zero

    def codes(self) -> tuple[Codes, Codes]:
        """Copies of the codes of keys and of values, zero beyond a row's length. Every key has the scales of its group;
        the tail has no codes, and there codes and scales are 0.
        """
        arrays = self.code_arrays()
        group_of = np.arange(len(self)) // self.key_groups  # (L,), at most g
        for name in ("k_scale", "k_zero") if self.zero_point else ("k_scale",):
            with_none = np.pad(arrays[name], ((0, 0), (0, 0), (0, 1), (0, 0)))  # (B, Hkv, g + 1, D)
            arrays[name] = with_none[:, :, group_of]  # (B, Hkv, L, D)
        keys = replace(self._codes("k", self.head_dim, arrays), group=1)
        return keys, self._codes("v", self.value_dim, arrays)

    def read(self) -> tuple[Array, Array, IntArray]:
        """The restored numbers: keys (B, Hkv, L, D), values (B, Hkv, L, Dv), zero beyond a row's length; lengths
        (B,).
        """
        # 7. read: the tail as it is, all else restored
        v = restore(self._codes("v", self.value_dim, super().code_arrays()))  # (B, Hkv, L, Dv)
        k, v = (narrow(x, NAMES[self.dtype]) for x in (self._all_keys(), v))
        return k, v, self.lengths

    def reset(self) -> None:
        """Forget everything; the memory of values is kept."""
        super().reset()
        self._keys = [self._no_keys()] * self.batch

    def reorder(self, index: Sequence[int]) -> None:
        """New row i is a copy of the old row index[i]; one a row. Raises ShapeMismatch, InvalidConfig."""
        super().reorder(index)
        self._keys = [self._keys[b] for b in index]

    def fork(self) -> Self:
        """A second cache with the same content; neither sees what happens to the other."""
        other = super().fork()
        other._keys = list(self._keys)
        return other

    def stats(self) -> Stats:
        """The slots of each row, and the bytes of all."""
        held = [
            x for row in self._keys for group in row.groups for x in (group.codes, group.scale, group.zero)
        ]
        tails = [row.tail for row in self._keys]
        num_bytes = sum(x.nbytes for x in [*held, *tails] if x is not None)
        return Stats(self.lengths, self._slots.num_bytes + num_bytes)

    def describe(self) -> dict[str, str]:
        """What a file says of the cache beside kind, dtype and batch."""
        return super().describe() | {"key_groups": str(self.key_groups)}

    def entries(self, name: str, lengths: IntArray, longest: int) -> int:
        """How long an array of a file is along its slots: groups have one scale, and only tails are in k_tail."""
        if name in ("k_scale", "k_zero"):
            return int((lengths // self.key_groups).max(initial=0))
        return int((lengths % self.key_groups).max(initial=0)) if name == "k_tail" else longest

    def restore(self, content: Content) -> None:
        """Holds this and nothing else. Raises CapacityExceeded."""
        super().restore(content)
        arrays, n = content.arrays, self.key_groups
        self._keys = []
        for b, length in enumerate(content.lengths.tolist()):
            groups = [
                KeyGroup(
                    arrays["k_codes"][b, :, i * n : (i + 1) * n],
                    arrays["k_scale"][b, :, i],
                    arrays["k_zero"][b, :, i] if self.zero_point else None,
                )
                for i in range(length // n)
            ]
            self._keys.append(KeyRow(tuple(groups), arrays["k_tail"][b, :, : length % n]))

    def _to_file(self) -> dict[str, NDArray[Any]]:
        return super()._to_file() | self.code_arrays()
