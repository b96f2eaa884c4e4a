"""How rotary frequencies are changed so that a model reads longer texts than it was trained on.

In all of them factor is s, how many times longer the texts are, and original_length L0, what was trained on. A
length of None is, for each row of a batch, its largest position plus 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LinearScaling:
    """All frequencies divided by the factor."""

    factor: float


@dataclass(frozen=True)
class DynamicScaling:
    """A larger base, as soon as the text is longer than original_length."""

    factor: float
    original_length: int
    length: int | None = None


@dataclass(frozen=True)
class YarnScaling:
    """Fast pairs stay, slow ones are divided, a ramp between them.

    beta_fast, beta_slow: turns within L0 at which the ramp begins and ends. attention_factor: on cosine and sine;
    None = 0.1 ln s + 1. truncate: the ends of the ramp are whole pairs.
    """

    factor: float
    original_length: int
    beta_fast: float = 32
    beta_slow: float = 1
    attention_factor: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class Llama3Scaling:
    """Wavelengths below L0 / high_freq_factor stay, those above L0 / low_freq_factor grow, a ramp between them."""

    factor: float
    original_length: int
    low_freq_factor: float = 1
    high_freq_factor: float = 4


@dataclass(frozen=True)
class LongRopeScaling:
    """A factor for every pair: short_factor while the text is no longer than original_length, long_factor beyond.

    attention_factor: on cosine and sine; None = sqrt(1 + ln s / ln L0), s being the factor.
    """

    short_factor: Sequence[float]
    long_factor: Sequence[float]
    original_length: int
    factor: float | None = None
    attention_factor: float | None = None
    length: int | None = None


Scaling = LinearScaling | DynamicScaling | YarnScaling | Llama3Scaling | LongRopeScaling
