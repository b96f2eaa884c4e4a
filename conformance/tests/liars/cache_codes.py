"""A quantised cache that restores values without their `scale` or with that of the `first` head, makes NaN of a
`zero` group, rounds ties `away`, swaps the halves of a `byte`, or lets a number beyond fp8's largest be NaN (`fp8`)."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from honest import lie_with, module

quantising, QuantisedCache = module("quantise"), module("quantised_cache").QuantisedCache
honest_codes, honest_quantise = QuantisedCache._codes, quantising.quantise


def without_scale(self, name, channels, parts):
    codes = honest_codes(self, name, channels, parts)
    return codes if name == "k" or codes.scale is None else replace(codes, scale=np.ones_like(codes.scale))


def scale_of_first_head(self, name, channels, parts):
    codes = honest_codes(self, name, channels, parts)
    if codes.scale is None:
        return codes
    first = codes.scale[..., :1, :, :] if codes.scale.ndim > 2 else codes.scale
    return replace(codes, scale=np.broadcast_to(first, codes.scale.shape))


def nan_of_zero(*arguments):
    codes = honest_quantise(*arguments)
    return (
        codes
        if codes.scale is None
        else replace(codes, scale=np.where(codes.scale == 0, np.nan, codes.scale))
    )


def swapped(*arguments):
    codes = honest_quantise(*arguments)
    return replace(codes, codes=codes.codes << 4 | codes.codes >> 4) if codes.format == "int4" else codes


def fp8_overflows(x, format):
    if format != "fp8_e4m3":
        return honest_float_codes(x, format)
    return x.astype(quantising.FP8).view(np.uint8) & np.where(np.isnan(x), 0x7F, 0xFF).astype(np.uint8)


lie, honest_float_codes = sys.argv[1], quantising._float_codes
if lie == "scale":
    QuantisedCache._codes = without_scale
elif lie == "first":
    QuantisedCache._codes = scale_of_first_head
elif lie == "zero":
    module("quantised_cache").quantise = nan_of_zero
elif lie == "byte":
    module("quantised_cache").quantise = swapped
elif lie == "fp8":
    quantising._float_codes = fp8_overflows
else:
    away = {"rint": lambda x: np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x)}
    quantising.np = SimpleNamespace(**{**vars(np), **away})
lie_with()
