"""Where a value stands on an axis of a plot, and the decades that its ticks name."""

import math
from collections.abc import Callable, Sequence


def axis(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """From a value to a place; the middle where there is but one value."""
    if high == low:
        return lambda value: (start + end) / 2
    return lambda value: start + (value - low) / (high - low) * (end - start)


def decades(values: Sequence[float]) -> range:
    """The powers of ten from at most the least value to at least the greatest, two of them at least."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return range(low, max(high, low + 1) + 1)


def polyline(places: Sequence[tuple[float, float]]) -> str:
    """The points of an SVG polyline."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
