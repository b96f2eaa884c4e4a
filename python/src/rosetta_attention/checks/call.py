"""The function whose arguments are checked, and the questions that all checks ask."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

from ..errors import AttentionError, DtypeMismatch, InvalidConfig, ShapeMismatch

FLOATS = ("float16", "bfloat16", "float32", "float64")
FARTHEST = 2**62  # no position is beyond it on either side, so that no sum of two wraps around
LARGEST_SEED = 2**53 - 1  # the largest integer that every language and JSON hold exactly


def dtype_name(x: Any) -> str:
    """`float32`, whether `x` is an array, a tensor or a cache; for anything else the name of its type."""
    kind = getattr(x, "dtype", None)
    return type(x).__name__ if kind is None else _element_type(kind)


@lru_cache(maxsize=64, typed=True)
def _element_type(kind: Hashable) -> str:
    """The name of an element type. It is kept, since NumPy puts it together anew each time, which would take a third
    of a short decode; types that are equal have one name, and `typed` tells them from a text that equals one.
    """
    return str(kind).removeprefix("torch.")


def is_integer(x: Any) -> bool:
    """An integer of Python or NumPy that 64 bits hold, and no boolean."""
    return not isinstance(x, bool) and isinstance(x, Integral) and -(2**63) <= int(x) < 2**63


def is_number(x: Any) -> bool:
    """A finite real number; among integers one that 64 bits hold, since others fail in a product with a tensor."""
    if isinstance(x, Integral):
        return is_integer(x)
    return isinstance(x, Real) and math.isfinite(x)


@dataclass(frozen=True)
class Call:
    """The function whose arguments are checked. Each method raises unless the argument is good."""

    name: str

    def shape(self, good: bool, argument: str, expected: object, got: object) -> None:
        """Sizes and ranks."""
        self._require(good, ShapeMismatch, argument, expected, got)

    def config(self, good: bool, argument: str, expected: object, got: object) -> None:
        """Options."""
        self._require(good, InvalidConfig, argument, expected, got)

    def dtype(self, argument: str, x: Any, *kinds: str) -> None:
        """An array of one of these element types."""
        self._require(dtype_name(x) in kinds, DtypeMismatch, argument, " or ".join(kinds), dtype_name(x))

    def floats(self, **arrays: Any) -> str:
        """The one float type that all of them have, as the first one says; None is skipped."""
        kinds: tuple[str, ...] = FLOATS
        for argument, x in arrays.items():
            if x is not None:
                self.dtype(argument, x, *kinds)
                kinds = (dtype_name(x),)
        return kinds[0]

    def rank(self, argument: str, x: Any, letters: str) -> None:
        """As many axes as the letters name: (B, T, C)."""
        expected = letters.count(",") + (letters[-2] != ",")
        self.shape(len(x.shape) == expected, argument, f"rank {expected} {letters}", f"rank {len(x.shape)}")

    def has_shape(self, argument: str, x: Any, shape: tuple[int, ...]) -> None:
        """Exactly this shape."""
        self.shape(tuple(x.shape) == shape, argument, f"shape {shape}", tuple(x.shape))

    def broadcasts(self, argument: str, x: Any, target: tuple[int, ...]) -> None:
        """Right-aligned: every axis is the target's or 1."""
        axes = zip(reversed(x.shape), reversed(target), strict=False)
        fits = len(x.shape) <= len(target) and all(n in (1, t) for n, t in axes)
        self.shape(fits, argument, f"a shape that broadcasts to {target}", tuple(x.shape))

    def counts(self, argument: str, counts: Any, rows: int, limit: int) -> None:
        """int64 (rows,), each 0 <= n <= limit."""
        self.dtype(argument, counts, "int64")
        self.has_shape(argument, counts, (rows,))
        values = counts.tolist()
        self.config(all(0 <= n <= limit for n in values), argument, f"values from 0 to {limit}", values)

    def integer(self, argument: str, x: Any, least: int | None = None) -> None:
        """An integer that is no position beyond the farthest, perhaps not below `least`."""
        near = not isinstance(x, Integral) or abs(int(x)) <= FARTHEST
        self.config(near, argument, "an integer within ±2^62", x)
        good = is_integer(x) and (least is None or x >= least)
        self.config(good, argument, "an integer" if least is None else f"an integer >= {least}", x)

    def positive(self, argument: str, x: Any) -> None:
        """A finite number > 0."""
        self.config(is_number(x) and x > 0, argument, "a finite number > 0", x)

    def not_negative(self, argument: str, x: Any) -> None:
        """A finite number >= 0."""
        self.config(is_number(x) and x >= 0, argument, "a finite number >= 0", x)

    def boolean(self, argument: str, x: Any) -> None:
        """True or False, and no other number."""
        self.config(dtype_name(x) == "bool" and not getattr(x, "shape", ()), argument, "True or False", x)

    def seed(self, argument: str, x: Any) -> None:
        """A seed that every language holds exactly."""
        self.config(
            is_integer(x) and 0 <= x <= LARGEST_SEED, argument, f"an integer from 0 to {LARGEST_SEED}", x
        )

    def one_of(self, argument: str, x: Any, names: tuple[str, ...]) -> None:
        """One of these names."""
        self.config(isinstance(x, str) and x in names, argument, " or ".join(names), x)

    def head_counts(self, num_heads: Any, num_kv_heads: Any) -> None:
        """The numbers of a layer, which were given as options."""
        self.integer("num_heads", num_heads, 1)
        divides = is_integer(num_kv_heads) and num_kv_heads >= 1 and num_heads % num_kv_heads == 0
        expected = f"an integer >= 1 that divides num_heads = {num_heads}"
        self.config(divides, "num_kv_heads", expected, num_kv_heads)

    def kv_groups(self, num_heads: int, num_kv_heads: int) -> None:
        """Every key/value head serves equally many query heads."""
        divides = num_heads == 0 if num_kv_heads == 0 else num_heads % num_kv_heads == 0
        self.shape(divides, "q", f"a multiple of the {num_kv_heads} key/value heads", f"{num_heads} heads")

    def qkv(self, q: Any, k: Any, v: Any) -> None:
        """q (B, Hq, Tq, D), k (B, Hkv, Tk, D), v (B, Hkv, Tk, Dv), of types that are checked already."""
        for argument, x in (("q", q), ("k", k), ("v", v)):
            self.rank(argument, x, "(B, H, T, D)")
        B, Hq, _, D = q.shape
        _, Hkv, Tk, _ = k.shape
        self.shape(D >= 1, "q", "a head size of at least 1", D)
        self.shape(k.shape[0] == B, "k", f"batch {B} as in q", k.shape[0])
        self.shape(v.shape[0] == B, "v", f"batch {B} as in q", v.shape[0])
        self.shape(k.shape[3] == D, "k", f"head size {D} as in q", k.shape[3])
        self.shape(v.shape[1] == Hkv, "v", f"{Hkv} heads as in k", v.shape[1])
        self.shape(v.shape[2] == Tk, "v", f"length {Tk} as in k", v.shape[2])
        self.kv_groups(Hq, Hkv)

    def _require(
        self, good: bool, error: type[AttentionError], argument: str, expected: object, got: object
    ) -> None:
        if not good:
            raise error(f"{self.name}: {argument}: expected {expected}, got {got}")
