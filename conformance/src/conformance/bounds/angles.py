"""Frequencies, angles, sines and cosines: in float64 whatever the type, then rounded once to the compute type."""

import math
from typing import Any

import numpy as np

from ..oracle.rope_scaling import BASE, attention_factor, frequencies, given, llama3_share, yarn_ends
from .arithmetic import Arithmetic, Bounded
from .elementwise import divide, multiply, select, subtract

F64 = Arithmetic.of("f64")


def bound_power(base: float, exponents: np.ndarray, relative: float = 0.0) -> Bounded:
    """base^-x, for a base that is itself off by a factor 1 + relative.

    As a power, its reciprocal, or the exponential of -x ln(base): that exponent then errs by the roundings of x and of
    the product and by the logarithm, and d of the exponent is the factor 1 + d of the result.
    """
    ln_power = exponents * math.log(base)
    value = np.exp(-ln_power)
    error = (F64.elementary + F64.gamma(3)) * np.abs(ln_power) + exponents * relative
    return Bounded(value, value * (error + F64.elementary + F64.u))


def bound_turns(
    arithmetic: Arithmetic, frequency: Bounded, positions: np.ndarray, factor: Bounded
) -> tuple[Bounded, Bounded]:
    """factor · cos and factor · sin of position · frequency. frequency (…, n), positions (…): gives (…, n)."""
    places = F64.exact(positions[..., None])
    angle = multiply(F64, places, frequency)
    # Neither sine nor cosine changes faster than its argument, nor by more than 2.
    moved = np.minimum(angle.error, 2)
    turns = []
    for function in (np.cos, np.sin):
        value = function(angle.value)
        turn = multiply(F64, factor, Bounded(value, moved + F64.elementary * np.abs(value)))
        turns.append(round_once(arithmetic, turn))
    return turns[0], turns[1]


def round_once(arithmetic: Arithmetic, x: Bounded) -> Bounded:
    """A float64 result, rounded to the compute type."""
    size = np.abs(x.value) + x.error
    return Bounded(x.value, x.error + arithmetic.u * size + arithmetic.tiny)


def bound_frequencies(config: dict[str, Any], R: int, length: int) -> Bounded:
    """The angle per position of each pair, after scaling. length: the largest position of the row and 1."""
    base = BASE if config.get("base") is None else float(config["base"])
    exponents = 2 * np.arange(R // 2) / R
    plain = bound_power(base, exponents)
    scaling = config.get("scaling")
    if scaling is None:
        return plain
    kind = scaling["type"]
    if kind in ("linear", "longrope"):  # one division more
        exact = frequencies(config, R, length)
        return Bounded(exact, exact * (plain.error / plain.value + F64.u))
    if kind == "dynamic":
        length = length if scaling.get("length") is None else int(scaling["length"])
        return plain if length <= scaling["original_length"] or R == 2 else _dynamic(scaling, base, R, length)
    share = _yarn_share(scaling, base, R) if kind == "yarn" else _llama3_share(scaling, base, R)
    one, factor = F64.exact(np.array(1.0)), F64.exact(np.array(float(scaling["factor"])))
    kept = multiply(F64, plain, subtract(F64, one, share))
    return F64.add(kept, multiply(F64, divide(F64, plain, factor), share))


def _dynamic(scaling: dict[str, Any], base: float, R: int, length: int) -> Bounded:
    """Of the new base every step rounds; the difference s L/L0 - (s - 1) also magnifies what came before it."""
    factor, original = scaling["factor"], scaling["original_length"]
    grown, less = factor * length / original, factor - 1
    stretch = grown - less
    power = R / (R - 2)
    relative = (F64.gamma(2) * grown + F64.u * abs(less)) / stretch + F64.u
    relative = power * relative + F64.elementary + F64.gamma(4) * (1 + power * abs(math.log(stretch)))
    return bound_power(base * stretch**power, 2 * np.arange(R // 2) / R, relative)


def _yarn_share(scaling: dict[str, Any], base: float, R: int) -> Bounded:
    """(i - low) / (high - low), clamped. Whole ends are exact; others carry the error of two logarithms."""
    ends = yarn_ends(scaling, base, R)
    if given(scaling, "truncate", True):
        errors = [F64.u * abs(end) for end in ends]
    else:
        # R/(2 ln base) · ln(L0/(2π beta)): the argument has three roundings, which its logarithm turns into a sum.
        slope = R / (2 * abs(math.log(base)))
        errors = [slope * F64.gamma(4) + (2 * F64.elementary + F64.gamma(6)) * abs(end) for end in ends]
    low, high = (Bounded(np.array(end), np.array(error)) for end, error in zip(ends, errors, strict=True))
    pairs = F64.exact(np.arange(R // 2, dtype=np.float64))
    return _clamp(divide(F64, subtract(F64, pairs, low), subtract(F64, high, low)))


def _llama3_share(scaling: dict[str, Any], base: float, R: int) -> Bounded:
    """1 - t, t = (L0 f/(2π) - low) / (high - low); the pieces meet at the ends of t, so clamping it is the same."""
    low = float(given(scaling, "low_freq_factor", 1))
    high = float(given(scaling, "high_freq_factor", 4))
    f = bound_power(base, 2 * np.arange(R // 2) / R)
    turns = Bounded(f.value * scaling["original_length"] / (2 * math.pi), np.zeros_like(f.value))
    turns = Bounded(turns.value, turns.value * (f.error / f.value + F64.gamma(4)))
    span = np.array(high - low)
    share = divide(F64, subtract(F64, F64.exact(np.array(high)), turns), Bounded(span, F64.u * span))
    # A port blends with t: 1 - t has an absolute rounding error that does not shrink with the share. At worst t is
    # turns/span - low/span, either one with the roundings of span and of its division; then 1 for t and 1 for 1 - t.
    # With t within 0 .. 1, |low/span| is at most the larger of turns/span and 1: so up to 4 of turns/span, and 4 of 1.
    rounding = 4 * F64.u * np.abs(turns.value / span) + 4 * F64.u
    share = _clamp(Bounded(share.value, share.error + rounding))
    return Bounded(np.array(llama3_share(scaling, base, R)), share.error)


def _clamp(x: Bounded) -> Bounded:
    """Kept within 0 .. 1, which never moves two values apart; what is outside for certain is exactly an end."""
    outside = (x.value + x.error < 0) | (x.value - x.error > 1)
    clamped = Bounded(np.clip(x.value, 0, 1), x.error)
    return select(outside, Bounded(clamped.value, np.zeros_like(x.error)), clamped)


def bound_attention_factor(config: dict[str, Any]) -> Bounded:
    """What multiplies cosine and sine; exact where it is given or 1."""
    value = attention_factor(config)
    scaling = config.get("scaling") or {}
    computed = value != 1 and scaling.get("attention_factor") is None
    error = (2 * F64.elementary + F64.gamma(4)) * abs(value) if computed else 0.0
    return Bounded(np.array(value), np.array(error))
