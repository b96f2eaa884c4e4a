"""Three ways to generate tokens with one layer of attention, what each costs, and how long each takes.

    everything    the whole text goes through the layer for each token, and all but the last row is thrown away
    keys, values  keys and values of the whole text are made again, the query of the last token alone
    cache         the last token alone goes through the layer; keys and values of the past are kept

All three make the same tokens: each one is the output for the last, normalised. Per step, at a text of t tokens of
width C, in multiply-adds:

    everything    4 t C² + 2 t² C      (the masked half of the scores is computed too, as the reference does)
    keys, values  2 t C² + 2 C² + 2 t C
    cache         4 C² + 2 t C

A product of an (m, k) and a (k, n) matrix is m k n multiply-adds, and moves m k + k n + m n numbers.

Letters: T tokens generated, C width.

Source: Pope et al., "Efficiently Scaling Transformer Inference", 2022, section 2.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rosetta_attention import KVCache, Mask, MultiHeadAttention, rms_norm
from rosetta_attention.arrays import Array

from . import one_thread

EVERYTHING, KEYS_VALUES, CACHE = WAYS = ("everything", "keys, values", "cache")
NUMBER = 4  # bytes of a float32


@dataclass(frozen=True)
class Product:
    """`count` products of an (m, k) and a (k, n) matrix."""

    count: int
    m: int
    k: int
    n: int

    @property
    def multiply_adds(self) -> int:
        """Of all of them."""
        return self.count * self.m * self.k * self.n

    @property
    def numbers(self) -> int:
        """Read and written, each operand once."""
        return self.count * (self.m * self.k + self.k * self.n + self.m * self.n)


@dataclass(frozen=True)
class Cost:
    """Of all steps together."""

    multiply_adds: int
    moved: int  # bytes


@dataclass(frozen=True)
class Run:
    """tokens: (1, T, C). seconds: from the start, when each length was reached. held: bytes of the cache then."""

    tokens: Array
    seconds: dict[int, float]
    held: dict[int, int]


def products(way: str, t: int, width: int, heads: int) -> list[Product]:
    """The matrix products of the step that makes the token after the t-th."""
    asked = t if way == EVERYTHING else 1  # queries
    made = 1 if way == CACHE else t  # keys and values
    head_dim = width // heads
    return [
        Product(1, asked, width, width),  # queries
        Product(2, made, width, width),  # keys and values
        Product(heads, asked, head_dim, t),  # scores
        Product(heads, asked, t, head_dim),  # weighted sum
        Product(1, asked, width, width),  # output
    ]


def cost(way: str, length: int, width: int, heads: int) -> Cost:
    """Of generating so many tokens."""
    all_products = [p for t in range(1, length + 1) for p in products(way, t, width, heads)]
    moved = NUMBER * sum(p.numbers for p in all_products)
    return Cost(sum(p.multiply_adds for p in all_products), moved)


def random_layer(width: int, heads: int, seed: int = 0, dtype: type = np.float32) -> MultiHeadAttention:
    """A layer without biases."""
    rng = np.random.default_rng(seed)
    w_q, w_k, w_v, w_o = (rng.standard_normal((4, width, width)) / math.sqrt(width)).astype(dtype)
    return MultiHeadAttention(w_q, w_k, w_v, w_o, heads)


def empty_cache(layer: MultiHeadAttention, batch: int = 1) -> KVCache:
    """One that grows, of the sizes of the layer."""
    head_dim = layer.w_k.shape[0] // layer.kv_heads
    return KVCache(batch, layer.kv_heads, head_dim, dtype=layer.w_k.dtype)


def generate(way: str, layer: MultiHeadAttention, first: Array, lengths: Sequence[int]) -> Run:
    """Tokens after `first` (1, 1, C), as many as the longest length."""
    cache = empty_cache(layer)
    step: Callable[[Array], Array] = {
        EVERYTHING: lambda text: layer(text, mask=Mask(causal=True))[:, -1:],
        KEYS_VALUES: lambda text: layer(text[:, -1:], text),
        CACHE: lambda text: layer.decode(text[:, -1:], cache),
    }[way]
    longest = max(lengths)
    tokens = np.zeros((1, longest + 1, first.shape[-1]), first.dtype)  # (1, T + 1, C)
    tokens[:, :1] = first
    seconds, held = {}, {}
    start = one_thread.seconds()
    for t in range(1, longest + 1):
        tokens[:, t : t + 1] = rms_norm(step(tokens[:, :t]))
        if t in lengths:
            seconds[t], held[t] = one_thread.seconds() - start, cache.stats().num_bytes
    return Run(tokens[:, 1:], seconds, held)
