"""Knows one GELU only, that by tanh."""

from honest import lie_with, module

gelu = module("gelu").gelu


def by_tanh(x, *, approximate="none"):
    gelu(x, approximate=approximate)  # its checks
    return gelu(x, approximate="tanh")


module("feed_forward").gelu = by_tanh
lie_with(gelu=by_tanh)
