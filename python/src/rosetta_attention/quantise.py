"""Numbers in fewer bits: codes, and for integer codes the scale of each group of channels.

    int8      scale = max|x| / 127            code = round(x / scale)          x ~ code · scale
    int4      scale = max|x| / 7              the same, two codes a byte
    zero_point scale = (max - min) / 255 (15) code = round((x - min) / scale)  x ~ code · scale + min

    f16, bf16, fp8_e4m3                       code = the nearest number of that type; no scale

A group is `group` consecutive channels of one token and head. All arithmetic is in float32, in the order written,
every operation rounded on its own, so that codes are the same bits everywhere.

Letters: n channels, g groups of them.

Sources: Dettmers et al., "LLM.int8()", 2022, section 2.1 (absmax and zero-point); Micikevicius et al., "FP8 formats
for deep learning", 2022 (E4M3: no infinity, largest number 448).
"""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .arrays import Array
from .cast import narrow
from .checks import WHOLE_FORMATS, Call, check_format

FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
FP8_LARGEST, FP8_NAN = 448.0, 0x7F
RANGES = {  # of integer codes, by format and zero_point
    ("int8", False): (-127, 127),
    ("int8", True): (0, 255),
    ("int4", False): (-7, 7),
    ("int4", True): (0, 15),
}


@dataclass(frozen=True, eq=False)
class Codes:
    """What `restore` needs. scale, zero: of each group, zero with a zero point alone; None where there is none."""

    codes: NDArray[Any]  # (..., n), for int4 (..., ceil(n / 2))
    scale: Array | None  # (..., g)
    zero: Array | None  # (..., g)
    format: str
    group: int | None  # None = one group of all channels
    channels: int  # n


def quantise(x: Array, format: str, group: int | None = None, zero_point: bool = False) -> Codes:
    """Codes of `x` (..., n), float64 rounded to float32 first.

    format: "f16", "bf16", "int8", "int4" or "fp8_e4m3". group: channels that share a scale; None = all n.
    zero_point: codes count from the smallest number of a group; for int8 and int4.
    Raises ShapeMismatch, DtypeMismatch; InvalidConfig also for a number in an integer format that is not finite.
    """
    check_format("quantise", format, group, zero_point)
    Call("quantise").floats(x=x)
    Call("quantise").shape(len(x.shape) >= 1, "x", "at least one axis", "rank 0")
    with np.errstate(over="ignore", invalid="ignore"):
        x = x.astype(np.float32)
        if format not in WHOLE_FORMATS:
            return Codes(_float_codes(x, format), None, None, format, group, x.shape[-1])
    whole, scale, zero = integer_codes(x, format, group, zero_point)
    return Codes(pack(whole, format), scale, zero, format, group, x.shape[-1])


def _float_codes(x: Array, format: str) -> NDArray[Any]:
    """The nearest numbers of the type; for fp8 as bytes."""
    if format != "fp8_e4m3":
        return narrow(x, format)
    bounded = np.clip(x, -FP8_LARGEST, FP8_LARGEST)  # infinities too; NaN stays
    return np.where(np.isnan(x), np.uint8(FP8_NAN), bounded.astype(FP8).view(np.uint8))


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def integer_codes(
    x: Array, format: str, group: int | None, zero_point: bool
) -> tuple[NDArray[Any], Array, Array | None]:
    """Codes of float32 `x` (..., n), a byte each, with the scale and zero of each group, (..., g). Raises
    InvalidConfig.
    """
    check_finite(x, "finite numbers for integer codes")
    n = x.shape[-1]
    starts = np.arange(0, n, group or max(n, 1))  # (g,), where groups begin
    least, largest = (np.float32(code) for code in RANGES[format, zero_point])

    # 1. scale: a step of the codes, for each group
    zero: Array | None = None
    if zero_point:
        zero = _by_group(np.minimum, x, starts) + np.float32(0)  # (..., g); -0 becomes 0
        scale: Array = (_by_group(np.maximum, x, starts) - zero) / largest  # (..., g)
        check_finite(scale, "a largest and a smallest number whose distance is finite")
    else:
        scale = _by_group(np.maximum, np.abs(x), starts) / largest  # (..., g)

    # 2. round: half to even; a scale of 0 has nothing but codes of 0
    step = _by_channel(scale, group, n)  # (..., n)
    above = x if zero is None else x - _by_channel(zero, group, n)  # (..., n)
    steps = np.where(step == 0, np.float32(0), above / step)  # (..., n)
    whole = np.clip(np.rint(steps), least, largest)  # (..., n)
    return whole.astype(np.uint8 if zero_point else np.int8), scale, zero


def pack(codes: NDArray[Any], format: str) -> NDArray[Any]:
    """Codes (..., n), a byte each, as they are kept: (..., n), for int4 (..., ceil(n / 2))."""
    # 3. pack: a byte a code, or two codes a byte with the even channel in the low half
    if format != "int4":
        return codes
    halves = codes.astype(np.uint8) & 0xF
    low, high = halves[..., 0::2], np.zeros_like(halves[..., 0::2])
    high[..., : codes.shape[-1] // 2] = halves[..., 1::2]
    return low | (high << 4)  # (..., ceil(n / 2))


def restore(codes: Codes) -> Array:
    """The float32 numbers that the codes stand for, (..., n)."""
    n, group, x = codes.channels, codes.group, codes.codes
    if codes.scale is None:
        return (x.view(FP8) if codes.format == "fp8_e4m3" else x).astype(np.float32)
    scale = _by_channel(codes.scale, group, n)  # (..., n)
    zero = None if codes.zero is None else _by_channel(codes.zero, group, n)  # (..., n)
    return restore_integers(unpack(x, codes.format, n, zero is not None), scale, zero)


def restore_integers(codes: NDArray[Any], scale: Array, zero: Array | None) -> Array:
    """The float32 numbers of codes (..., n), a byte each. scale, zero: broadcastable to them."""
    # 4. restore: two roundings with a zero point, no fused multiply-add
    with np.errstate(over="ignore"):  # the largest numbers of float32 may round up to infinity
        values: Array = codes.astype(np.float32) * scale  # (..., n)
        return values if zero is None else values + zero


def unpack(codes: NDArray[Any], format: str, channels: int, zero_point: bool) -> NDArray[Any]:
    """What `pack` was given: (..., n), a byte each."""
    if format != "int4":
        return codes
    pairs = np.stack([codes & 0xF, codes >> 4], axis=-1)  # (..., ceil(n / 2), 2)
    both = pairs.reshape(*codes.shape[:-1], 2 * codes.shape[-1])[..., :channels]  # (..., n)
    return both if zero_point else (both ^ 8).astype(np.int8) - np.int8(8)


def check_finite(x: Array, expected: str, name: str = "quantise", argument: str = "x") -> None:
    """Raises InvalidConfig, in the name of a function, for numbers that no integer code stands for."""
    good = bool(np.isfinite(x).all())
    Call(name).config(good, argument, expected, "NaN or infinity in a group")


def _by_group(reduce: np.ufunc, x: Array, starts: NDArray[Any]) -> Array:
    """(..., n) to (..., g); no channels are no groups."""
    reduced: Array = reduce.reduceat(x, starts, axis=-1) if starts.size else x
    return reduced


def _by_channel(of_group: Array, group: int | None, channels: int) -> Array:
    """(..., g) to (..., n)."""
    return of_group[..., np.arange(channels) // (group or max(channels, 1))]
