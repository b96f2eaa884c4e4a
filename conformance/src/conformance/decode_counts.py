"""What three ways to generate tokens with one layer of attention cost: the counts that every port must come to.

Counted are the matrix products alone. A product of an (m, k) and a (k, n) matrix is m k n multiply-adds and moves
m k + k n + m n numbers. The step after a text of t tokens, of width C in H heads of D = C / H, has

    queries, output         asked x C times C x C, each
    keys, values            made x C times C x C, each
    scores, weighted sum    asked x D times D x t and asked x t times t x D, in each head

with asked = t and made = t where everything is made again, asked = 1 and made = t where keys and values are, and both 1
with a cache. Nothing is halved for what causal attention hides: the readable texts compute it too.
"""

from dataclasses import dataclass

EVERYTHING, KEYS_VALUES, CACHE = WAYS = ("everything", "keys and values", "cache")
NUMBER = 4  # bytes of an f32


@dataclass(frozen=True)
class Counts:
    """Of all steps up to a length: multiply-adds, bytes moved, and the bytes that the cache holds then."""

    multiply_adds: int
    moved: int
    held: int


def count(way: str, tokens: int, width: int, heads: int) -> Counts:
    """Of generating so many tokens, one at a time. heads: a divisor of the width."""
    head_dim, adds, numbers = width // heads, 0, 0
    for t in range(1, tokens + 1):
        asked = t if way == EVERYTHING else 1
        made = 1 if way == CACHE else t
        for times, m, k, n in (
            (2, asked, width, width),
            (2, made, width, width),
            (heads, asked, head_dim, t),
            (heads, asked, t, head_dim),
        ):
            adds += times * m * k * n
            numbers += times * (m * k + k * n + m * n)
    return Counts(adds, NUMBER * numbers, 2 * NUMBER * width * tokens if way == CACHE else 0)
