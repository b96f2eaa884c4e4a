"""Two code paths: with a mask of its own, a call is no longer causal."""

from dataclasses import replace

from honest import lie_with, module

sdpa = module("sdpa")
visible = sdpa.visible


def either_or(mask, *sizes):
    return visible(mask if mask.keep is None else replace(mask, causal=False), *sizes)


sdpa.visible = either_or
lie_with()
