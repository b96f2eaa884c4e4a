"""Numbers in fewer bits: codes, and for integer codes the scale of each group of channels."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from . import _rust
from .arrays import Array

CodeParts = tuple[NDArray[np.uint8], Array | None, Array | None]  # codes as bytes, scale, zero

HALVES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


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
    return typed_codes(_rust.quantise(x, (format, group, zero_point)), format, group, x.shape[-1])


def restore(codes: Codes) -> Array:
    """The float32 numbers that the codes stand for, (..., n).

    Raises ShapeMismatch for parts that do not fit together; DtypeMismatch, InvalidConfig.
    """
    options = (codes.format, codes.group, codes.zero is not None)
    return _rust.restore(codes.codes.view(np.uint8), codes.scale, codes.zero, options, codes.channels)


def typed_codes(parts: CodeParts, format: str, group: int | None, channels: int) -> Codes:
    """The bytes of the extension module as what they are."""
    codes, scale, zero = parts
    of_integers = np.dtype(np.int8 if format == "int8" and zero is None else np.uint8)
    return Codes(codes.view(HALVES.get(format, of_integers)), scale, zero, format, group, channels)
