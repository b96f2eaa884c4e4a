"""Caches of every kind of one size, and random traces of steps to be replayed on them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import rosetta_attention as ra
from rosetta_attention.cache import Cache

B, HQ, HKV, D, DV = 3, 4, 2, 4, 3
WINDOW, KEEP = 3, 1
SIZES = (B, HKV, D, DV)

KINDS: dict[str, Callable[..., Cache]] = {
    "contiguous": lambda **options: ra.KVCache(*SIZES, **options),
    "rotating": lambda **options: ra.RotatingCache(*SIZES, window=WINDOW, keep=KEEP, **options),
    "paged": lambda rope=None, rope_at=None, **options: ra.PagedCache(
        ra.PagePool(64, 2, HKV, D, DV, **options), B, rope=rope, rope_at=rope_at
    ),
    "int8": lambda **options: ra.QuantisedCache(*SIZES, format="int8", **options),
    "int4": lambda **options: ra.QuantisedCache(*SIZES, format="int4", group=3, zero_point=True, **options),
    "fp8": lambda **options: ra.QuantisedCache(*SIZES, format="fp8_e4m3", **options),
    "kivi": lambda **options: ra.KiviCache(*SIZES, format="int8", key_groups=2, **options),
}


@dataclass
class Append:
    """Random keys and values, of which lengths count."""

    k: np.ndarray
    v: np.ndarray
    lengths: np.ndarray
    padding: str

    def apply(self, cache: Any) -> None:
        cache.append(self.k, self.v, self.lengths, padding=self.padding)


@dataclass
class Step:
    """A step without arrays."""

    name: str
    arguments: list[int]

    def apply(self, cache: Any) -> None:
        if self.name == "truncate":
            cache.truncate(self.ends(cache))
        elif self.name == "reorder":
            cache.reorder(self.order)
        else:
            cache.reset()

    def ends(self, cache: Any) -> list[int]:
        """What truncate asks for: positions in a rotating cache, slots elsewhere."""
        most = (cache.row_lengths if cache.kind == "rotating" else cache.lengths).tolist()
        return [n % (m + 1) for n, m in zip(self.arguments, most, strict=True)]

    @property
    def order(self) -> list[int]:
        return [n % B for n in self.arguments]


class Held:
    """The positions that a rotating cache must hold, as sets, from what it holds now on."""

    def __init__(self, cache: Any) -> None:
        positions = cache.content().positions.tolist()
        self.rows = [{j for j in row if j >= 0} for row in positions]
        self.ends = cache.row_lengths.tolist()

    def refuses(self, step: Append | Step, cache: Any) -> bool:
        """Whether a query right behind a rollback would miss a part of its window."""
        if isinstance(step, Append) or step.name != "truncate":
            return False
        needed = (_seen(n, range(n)) for n in step.ends(cache))
        return any(not seen <= row for seen, row in zip(needed, self.rows, strict=True))

    def follow(self, step: Append | Step, cache: Any) -> None:
        """What the step, which the cache has not taken yet, makes of the rows."""
        if isinstance(step, Append):
            for b, count in enumerate(step.lengths.tolist()):
                end = self.ends[b]
                if count:  # a row that nothing comes to forgets nothing
                    self.rows[b] = _seen(end, self.rows[b]) | set(range(end, end + count))
                self.ends[b] += count
        elif step.name == "truncate":
            self.ends = step.ends(cache)
            self.rows = [{j for j in row if j < n} for row, n in zip(self.rows, self.ends, strict=True)]
        elif step.name == "reorder":
            self.rows, self.ends = ([rows[b] for b in step.order] for rows in (self.rows, self.ends))
        else:
            self.rows, self.ends = [set() for _ in range(B)], [0] * B

    def check(self, cache: Any) -> None:
        assert cache.row_lengths.tolist() == self.ends
        positions = cache.content().positions.tolist()
        assert [[j for j in row if j >= 0] for row in positions] == [sorted(row) for row in self.rows]


def _seen(end: int, positions: Iterable[int]) -> set[int]:
    """Those that a query on position `end` sees."""
    return {j for j in positions if j < KEEP or end - j < WINDOW}


@st.composite
def traces(draw: st.DrawFn, dtype: str = "float64", steps: int = 8) -> list[Any]:
    """Appends, of up to 6 tokens and of ragged rows, between steps that forget and move."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    trace: list[Any] = []
    for name in draw(
        st.lists(st.sampled_from(["append"] * 4 + ["truncate", "reorder", "reset"]), max_size=steps)
    ):
        if name != "append":
            trace.append(Step(name, rng.integers(0, 100, B).tolist()))
            continue
        T = draw(st.integers(0, 6))
        trace.append(
            append(rng, rng.integers(0, T + 1, B), T, draw(st.sampled_from(["left", "right"])), dtype)
        )
    return trace


def append(
    rng: np.random.Generator, lengths: Any, T: int, padding: str = "right", dtype: str = "float64"
) -> Append:
    """What does not count is NaN."""
    k, v = (rng.standard_normal((B, HKV, T, n)).astype(dtype) for n in (D, DV))
    lengths = np.broadcast_to(np.asarray(lengths, np.int64), (B,)).copy()
    for b, n in enumerate(lengths):
        junk = slice(n, T) if padding == "right" else slice(0, T - n)
        k[b, :, junk] = v[b, :, junk] = np.nan
    return Append(k, v, lengths, padding)


# Those that forget by a policy, and track what they were given.
EVICTING: dict[str, Callable[..., Any]] = {
    **{kind: KINDS[kind] for kind in ("contiguous", "int8", "int4", "kivi")},
    "per_head": lambda **options: ra.PerHeadCache(*SIZES, **options),
}


def queries(seed: int, T: int = 1, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((B, HQ, T, D)).astype(dtype)


def snapshot(cache: Cache) -> list[np.ndarray]:
    """All that can be seen of a cache, as bytes."""
    content, stats = cache.content(), cache.stats()
    arrays = [content.lengths, content.next, content.positions, *content.arrays.values(), stats.positions]
    return [x.tobytes() for x in arrays] + [stats.num_bytes, stats.pages]
