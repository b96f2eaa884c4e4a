"""Three ways to generate tokens with one layer of attention, what each costs, and how long each takes.

    everything       the whole text goes through the layer for each token, and all but the last row is thrown away
    keys and values  of the whole text are made again, the query of the last token alone
    cache            the last token alone goes through the layer; keys and values of the past are kept

All three make the same tokens: each one is the output for the last, normalised. Per step, at a text of t tokens of
width C, in multiply-adds:

    everything       4 t C² + 2 t² C      (the masked half of the scores is computed too, as the reference does)
    keys and values  2 t C² + 2 C² + 2 t C
    cache            4 C² + 2 t C

A product of an (m, k) and a (k, n) matrix is m k n multiply-adds, and moves m k + k n + m n numbers.

Letters: T tokens generated, C width.

Source: Pope et al., "Efficiently Scaling Transformer Inference", 2022, section 2.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

import rosetta_attention
from rosetta_attention.arrays import Array

from . import one_thread

EVERYTHING, KEYS_VALUES, CACHE = WAYS = ("everything", "keys and values", "cache")
NUMBER = 4  # bytes of a float32


@dataclass(frozen=True)
class Library:
    """What the layer is made with. port: its name among the ports. array: from NumPy's, which may share its memory."""

    port: str
    title: str
    api: ModuleType
    array: Callable[[Array], Any]


NUMPY = Library("python", "NumPy", rosetta_attention, lambda x: x)


def torch_library() -> Library:
    """PyTorch, on one thread. Raises ModuleNotFoundError where it is not installed."""
    import torch

    import rosetta_attention.torch

    torch.set_num_threads(1)
    return Library("torch", "PyTorch", rosetta_attention.torch, torch.from_numpy)


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
    """text: (1, T, C), all tokens but the last one that was made.

    outputs: by length, what the layer made of that many: (1, 1, C). seconds: from the start, when each length was
    reached. held: bytes of the cache then.
    """

    text: Array
    outputs: dict[int, Array]
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


def random_weights(width: int, seed: int = 0, dtype: type = np.float32) -> list[Array]:
    """Of the four projections of a layer, each (C, C)."""
    rng = np.random.default_rng(seed)
    return list((rng.standard_normal((4, width, width)) / math.sqrt(width)).astype(dtype))


def generate(
    way: str,
    weights: Sequence[Array],
    heads: int,
    first: Array,
    lengths: Sequence[int],
    library: Library = NUMPY,
) -> Run:
    """Tokens after `first` (1, 1, C), as many as the longest length, by a layer with these weights."""
    api, C = library.api, first.shape[-1]
    layer = api.MultiHeadAttention(*map(library.array, weights), heads)
    tokens = library.array(np.zeros((1, max(lengths) + 1, C), first.dtype))  # (1, T + 1, C)
    tokens[:, :1] = library.array(first)
    cache = api.KVCache(1, heads, C // heads, dtype=tokens.dtype)
    step: Callable[[Any], Any] = {
        EVERYTHING: lambda text: layer(text, mask=api.Mask(causal=True))[:, -1:],
        KEYS_VALUES: lambda text: layer(text[:, -1:], text),
        CACHE: lambda text: layer.decode(text[:, -1:], cache),
    }[way]
    outputs, seconds, held = {}, {}, {}
    start = one_thread.seconds()
    for t in range(1, max(lengths) + 1):
        last = step(tokens[:, :t])  # (1, 1, C)
        tokens[:, t : t + 1] = api.rms_norm(last)
        if t in lengths:
            seconds[t], held[t], outputs[t] = one_thread.seconds() - start, cache.stats().num_bytes, last
    arrays = {t: np.asarray(x) for t, x in outputs.items()}
    return Run(np.asarray(tokens[:, :-1]), arrays, seconds, held)
