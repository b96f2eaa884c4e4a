"""How a cache rounds keys and values: the table of every format, by NumPy's float32 and `ml_dtypes` alone.

x is (H, n), one token; groups of consecutive channels share a scale. All arithmetic is in float32, operation by
operation, so that the codes are the same bits everywhere.
"""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

FLOATS: dict[str, np.dtype[Any]] = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
FP8_LARGEST, FP8_NAN = 448, 0x7F
LEVELS = {"int8": 127, "int4": 7}
LEVELS_FROM_ZERO = {"int8": 255, "int4": 15}


@dataclass(frozen=True)
class Format:
    """A row of the table. group: how many channels share a scale; None = all of them."""

    name: str
    group: int | None = None
    zero_point: bool = False

    @property
    def scaled(self) -> bool:
        """Whether there are scales."""
        return self.name in LEVELS

    def codes_dtype(self) -> np.dtype[Any]:
        """The element type of what is stored."""
        if self.name in FLOATS:
            return FLOATS[self.name]
        return np.dtype(np.int8 if self.name == "int8" and not self.zero_point else np.uint8)

    def codes_width(self, n: int) -> int:
        """How many elements hold the codes of n channels."""
        return -(-n // 2) if self.name == "int4" else n

    def groups(self, n: int) -> list[slice]:
        """The channels of each group; the last one is perhaps shorter."""
        size = n if self.group is None else self.group
        return [slice(start, min(start + size, n)) for start in range(0, n, max(size, 1))]


@dataclass(frozen=True, eq=False)
class Codes:
    """codes (H, width), scale and zero (H, groups), and the value (H, n) that they stand for."""

    codes: np.ndarray
    scale: np.ndarray
    zero: np.ndarray
    value: np.ndarray


def quantise(x: np.ndarray, form: Format) -> Codes:
    """x (H, n) in float32, which is finite where there are scales."""
    none = np.zeros((x.shape[0], 0), np.float32)
    if form.name in FLOATS:
        codes = x.astype(FLOATS[form.name])
        return Codes(codes, none, none, codes.astype(np.float32))
    if form.name == "fp8_e4m3":
        rounded = np.clip(x, np.float32(-FP8_LARGEST), np.float32(FP8_LARGEST)).astype(FP8)
        codes = np.where(np.isnan(x), np.uint8(FP8_NAN), rounded.view(np.uint8))
        return Codes(codes, none, none, codes.view(FP8).astype(np.float32))
    codes, scale, zero, value = quantise_in_groups(x, form)
    return Codes(pack(codes, form), scale, zero if form.zero_point else zero[:, :0], value)


def quantise_in_groups(x: np.ndarray, form: Format) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Codes (H, n), not packed; scale and zero (H, groups), zero 0 where there is none; the values (H, n)."""
    H, n = x.shape
    groups = form.groups(n)
    codes, value = np.zeros((H, n), np.int64), np.zeros((H, n), np.float32)
    scale, zero = (np.zeros((H, len(groups)), np.float32) for _ in range(2))
    for h in range(H):
        for g, channels in enumerate(groups):
            part = x[h, channels]
            low, high, levels = np.float32(0), np.abs(part).max(), LEVELS[form.name]
            if form.zero_point:
                low, high, levels = part.min(), part.max(), LEVELS_FROM_ZERO[form.name]
            step = np.float32(high - low) / np.float32(levels)
            if step != 0:
                ratio = (part - low) / step if form.zero_point else part / step
                smallest = 0 if form.zero_point else -levels
                codes[h, channels] = np.clip(np.rint(ratio), smallest, levels).astype(np.int64)
            value[h, channels] = codes[h, channels].astype(np.float32) * step
            if form.zero_point:
                value[h, channels] = value[h, channels] + low
            scale[h, g], zero[h, g] = step, low
    return codes, scale, zero, value


def pack(codes: np.ndarray, form: Format) -> np.ndarray:
    """As they are stored: int4 two a byte, the even channel in the low four bits, in two's complement."""
    if form.name != "int4":
        return codes.astype(form.codes_dtype())
    H, n = codes.shape
    packed = np.zeros((H, -(-n // 2)), np.uint8)
    for channel in range(n):
        packed[:, channel // 2] |= ((codes[:, channel] & 0xF) << (4 * (channel % 2))).astype(np.uint8)
    return packed
