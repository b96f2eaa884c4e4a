"""How rotary frequencies are changed so that a model reads longer texts than it was trained on.

Each scaling takes the frequencies f_i = base^(-2i/R) of pair i and gives the new ones. Where they depend on
the length of the text, each row of a batch has its own: its largest position plus 1, unless `length` says.

    linear     f_i / s: positions are squeezed into the trained range
    dynamic    the base grows with the length, so that the slowest pair just fits
    yarn       fast pairs stay, slow ones are squeezed, a ramp between them; and the scores are sharpened
    llama3     the same idea with bounds on the wavelength
    longrope   a factor for every pair, found by search; one list for short texts and one for long ones

Letters: B batch, R rotated channels, s the factor, L the length, L0 the length that was trained on.

Sources: Chen et al., "Extending context window of large language models via positional interpolation", 2023
(linear); "NTK-aware scaled RoPE", 2023 (dynamic); Peng et al., "YaRN", 2023; "The Llama 3 herd of models",
2024; Ding et al., "LongRoPE", 2024.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .arrays import Float64Array


def rope_frequencies(base: float | Float64Array, rotary_dim: int) -> Float64Array:
    """base^(-2i/R), i = 0 .. R/2 - 1: (R/2,), or (B, R/2) for bases (B, 1)."""
    frequencies: Float64Array = np.power(base, -np.arange(0, rotary_dim, 2) / rotary_dim)
    return frequencies


@dataclass(frozen=True)
class LinearScaling:
    """factor: s > 0, how many times longer the texts are."""

    factor: float

    def frequencies(self, base: float, rotary_dim: int, lengths: Float64Array) -> Float64Array:
        """(R/2,); `lengths` (B, 1) do not matter."""
        # 1. linear: a position p turns as far as p / s did
        return rope_frequencies(base, rotary_dim) / self.factor  # (R/2,)

    @property
    def attention(self) -> float:
        """What cosine and sine are multiplied by."""
        return 1.0


@dataclass(frozen=True)
class DynamicScaling:
    """factor: s. original_length: L0. length: L; None = of each row its own."""

    factor: float
    original_length: int
    length: int | None = None

    def frequencies(self, base: float, rotary_dim: int, lengths: Float64Array) -> Float64Array:
        """(B, R/2), or (1, R/2) with a length of its own."""
        # 2. dynamic: base · (s L / L0 - (s - 1))^(R / (R - 2)) beyond L0, where the slowest pair is squeezed by s
        s, L0, R = self.factor, self.original_length, rotary_dim
        L = np.maximum(_length(self.length, lengths), L0)  # (B or 1, 1); L = L0 changes nothing
        bases = base * (s * L / L0 - (s - 1)) ** (R / (R - 2)) if R > 2 else np.full(L.shape, float(base))
        return rope_frequencies(bases, R)  # (B or 1, R/2)

    @property
    def attention(self) -> float:
        """What cosine and sine are multiplied by."""
        return 1.0


@dataclass(frozen=True)
class YarnScaling:
    """factor: s. original_length: L0. beta_fast, beta_slow: turns within L0 at which the ramp begins and ends.

    attention_factor: None = 0.1 ln s + 1. truncate: the ends of the ramp are whole pairs.
    """

    factor: float
    original_length: int
    beta_fast: float = 32
    beta_slow: float = 1
    attention_factor: float | None = None
    truncate: bool = True

    def frequencies(self, base: float, rotary_dim: int, lengths: Float64Array) -> Float64Array:
        """(R/2,); `lengths` (B, 1) do not matter."""
        # 3. yarn: f_i (1 - ramp_i) + f_i / s · ramp_i, with a ramp from 0 at `low` to 1 at `high`
        low, high = (self._pair(beta, base, rotary_dim) for beta in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = (min(max(end, 0), rotary_dim - 1) for end in (low, high))
        high = low + 0.001 if low == high else high
        ramp: Float64Array = np.clip((np.arange(rotary_dim // 2) - low) / (high - low), 0, 1)  # (R/2,)
        f = rope_frequencies(base, rotary_dim)  # (R/2,)
        return f * (1 - ramp) + f / self.factor * ramp  # (R/2,)

    @property
    def attention(self) -> float:
        """What cosine and sine are multiplied by: scores, of two of them, by its square."""
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0

    def _pair(self, beta: float, base: float, rotary_dim: int) -> float:
        """The pair, as a real number, that turns beta times within L0."""
        return rotary_dim * math.log(self.original_length / (2 * math.pi * beta)) / (2 * math.log(base))


@dataclass(frozen=True)
class Llama3Scaling:
    """factor: s. original_length: L0. low_freq_factor, high_freq_factor: turns within L0 that bound the ramp."""

    factor: float
    original_length: int
    low_freq_factor: float = 1
    high_freq_factor: float = 4

    def frequencies(self, base: float, rotary_dim: int, lengths: Float64Array) -> Float64Array:
        """(R/2,); `lengths` (B, 1) do not matter."""
        # 4. llama3: f_i where it turns often within L0, f_i / s where it turns rarely, between them a mixture
        low, high, L0 = self.low_freq_factor, self.high_freq_factor, self.original_length
        f = rope_frequencies(base, rotary_dim)  # (R/2,)
        wavelength = 2 * math.pi / f  # (R/2,)
        t = (L0 / wavelength - low) / (high - low)  # (R/2,)
        mixed = (1 - t) * f / self.factor + t * f  # (R/2,)
        return np.where(
            wavelength < L0 / high, f, np.where(wavelength > L0 / low, f / self.factor, mixed)
        )  # (R/2,)

    @property
    def attention(self) -> float:
        """What cosine and sine are multiplied by."""
        return 1.0


@dataclass(frozen=True)
class LongRopeScaling:
    """short_factor, long_factor: R/2 numbers each. original_length: L0. length: L; None = of each row its own.

    factor: s; None = 1. attention_factor: None = sqrt(1 + ln s / ln L0).
    """

    short_factor: Sequence[float]
    long_factor: Sequence[float]
    original_length: int
    factor: float | None = None
    attention_factor: float | None = None
    length: int | None = None

    def frequencies(self, base: float, rotary_dim: int, lengths: Float64Array) -> Float64Array:
        """(B, R/2), or (1, R/2) with a length of its own."""
        # 5. longrope: every pair has a divisor of its own, from the list for long texts when L > L0
        long = _length(self.length, lengths) > self.original_length  # (B or 1, 1)
        factors = np.where(long, np.array(self.long_factor), np.array(self.short_factor))  # (B or 1, R/2)
        return rope_frequencies(base, rotary_dim) / factors  # (B or 1, R/2)

    @property
    def attention(self) -> float:
        """What cosine and sine are multiplied by."""
        if self.attention_factor is not None:
            return self.attention_factor
        s = 1.0 if self.factor is None else self.factor
        return math.sqrt(1 + math.log(s) / math.log(self.original_length)) if s > 1 else 1.0


Scaling = LinearScaling | DynamicScaling | YarnScaling | Llama3Scaling | LongRopeScaling


def _length(stated: int | None, lengths: Float64Array) -> Float64Array:
    """The stated length as (1, 1), or that of each row, (B, 1)."""
    return lengths if stated is None else np.array([[float(stated)]])
