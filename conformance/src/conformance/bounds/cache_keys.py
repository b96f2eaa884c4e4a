"""How far a stored key may be from the oracle's.

Only rotated keys are uncertain. Where they are rounded to a format after that, a value near the middle of two codes
may become either; all others come out the same but for their scale.
"""

import numpy as np

from ..oracle.cache_state import LATENT, Sizes, Slot, Stored
from ..oracle.quantise import LEVELS, LEVELS_FROM_ZERO, Format, quantise
from ..tensors import HALVES
from .arithmetic import Arithmetic, Bounded
from .half import round_to_half
from .rope import propagate_rope

F32 = Arithmetic.of("f32")


class Keys:
    """The errors of rotated keys, each derived once: a slot never changes."""

    def __init__(self, arithmetic: Arithmetic, sizes: Sizes, dtype: str) -> None:
        self._arithmetic = F32 if sizes.form is not None else arithmetic
        self._sizes, self._dtype = sizes, dtype
        self._known: dict[Stored, np.ndarray] = {}
        self._groups: dict[tuple[Stored, ...], np.ndarray] = {}

    def gather(self, rows: list[list[Slot]]) -> np.ndarray:
        """(B, Hkv, L, D), zero beyond each row's length."""
        assert self._sizes.kind != LATENT
        heads, n = self._sizes.parts["k"]
        errors = np.zeros((len(rows), heads, max((len(row) for row in rows), default=0), n))
        for b, row in enumerate(rows):
            for s, slot in enumerate(row):
                errors[b, :, s] = self.error(slot.parts["k"])
        return errors

    def error(self, key: Stored) -> np.ndarray:
        """(Hkv, D): how far a stored key may be from the oracle's."""
        if key not in self._known:
            self._known[key] = self._derive(key)
        return self._known[key]

    def _derive(self, key: Stored) -> np.ndarray:
        if key.group is not None:
            members, place = key.group
            if members not in self._groups:
                self._groups[members] = self._derive_group(members)
            return np.asarray(self._groups[members][..., place])
        if isinstance(key.source, Stored):
            source = Bounded(key.source.value, self.error(key.source))
        else:
            source = self._arithmetic.exact(key.source.astype(np.float64))
        if key.turn is None:  # as given, or restored
            return source.error
        places = {"positions": np.array([[key.turn]])}
        one = Bounded(*(x[None, :, None, :] for x in source))
        turned = propagate_rope(self._arithmetic, self._sizes.rope or {}, places, one)
        value, error = turned.value[0, :, 0], turned.error[0, :, 0]
        if self._sizes.form is not None:
            rounded = error + F32.u * (np.abs(value) + error)  # what f64 has computed, in f32
            if self._sizes.key_groups is not None:
                return np.asarray(rounded)
            return _round_uncertain(self._sizes.form, value, rounded)
        return round_to_half(error, value, self._dtype) if self._dtype in HALVES else error

    def _derive_group(self, members: tuple[Stored, ...]) -> np.ndarray:
        """(Hkv, D, n): of keys that were quantised together, channel by channel."""
        error = np.stack([self.error(key) for key in members], axis=-1)
        if self._sizes.form is None or not error.any():
            return np.zeros(error.shape)
        value = np.stack([key.value for key in members], axis=-1)
        form = Format(self._sizes.form.name, None, self._sizes.form.zero_point)
        flat = (x.reshape(-1, len(members)) for x in (value, error))
        return _round_in_groups(form, *flat).reshape(error.shape)


def _round_uncertain(form: Format, value: np.ndarray, error: np.ndarray) -> np.ndarray:
    """How far the rounded value of anything within `error` of `value` may be from that of `value` itself."""
    if form.scaled:
        return _round_in_groups(form, value, error)
    # Rounding is monotone: the ends of the interval say what is between.
    ends = [
        np.nextafter((value + sign * error).astype(np.float32), np.float32(sign * np.inf)) for sign in (-1, 1)
    ]
    low, exact, high = (
        quantise(x, form).value.astype(np.float64) for x in (ends[0], value.astype(np.float32), ends[1])
    )
    return np.asarray(np.maximum(high - exact, exact - low))


def _round_in_groups(form: Format, value: np.ndarray, error: np.ndarray) -> np.ndarray:
    """A code is what it is unless its ratio is near the middle of two; the scale and the zero always err."""
    total = np.zeros(value.shape)
    for channels in form.groups(value.shape[-1]):
        x, e = value[:, channels], error[:, channels]
        worst = e.max(axis=-1, keepdims=True)
        low, low_error = np.zeros_like(worst), np.zeros_like(worst)
        span, levels = np.abs(x).max(axis=-1, keepdims=True), LEVELS[form.name]
        if form.zero_point:
            low, low_error = x.min(axis=-1, keepdims=True), worst
            span, levels = x.max(axis=-1, keepdims=True) - low, LEVELS_FROM_ZERO[form.name]
        scale = span / levels
        scale_error = (worst + low_error) / levels + F32.gamma(2) * scale + F32.tiny
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(scale > 0, np.abs(x - low) / scale, 0)
            ratio_error = (e + low_error + ratio * scale_error) / np.maximum(
                scale - scale_error, 0
            ) + F32.gamma(4) * ratio
            ratio_error = np.nan_to_num(ratio_error, nan=0.0, posinf=levels)  # of a group of zeros
            unsure = ~(np.abs(ratio % 1 - 0.5) > ratio_error)
        code = np.rint(ratio)
        settled = code * scale_error + low_error + F32.gamma(3) * (code * scale + np.abs(low)) + F32.tiny
        # Two ratios that far apart round to codes that are so many apart, at most.
        apart = np.where(unsure, np.floor(np.minimum(ratio_error, levels)) + 1, 0)
        total[:, channels] = settled + apart * (scale + scale_error)
    return total
