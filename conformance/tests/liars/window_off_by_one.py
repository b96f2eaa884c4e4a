"""Counts the query itself in its window: one key too few on the left."""

from dataclasses import replace

from honest import lie_with, module

sdpa = module("sdpa")
visible = sdpa.visible


def narrow(mask, *sizes):
    if mask.window is not None and mask.window[0]:
        mask = replace(mask, window=(mask.window[0] - 1, mask.window[1]))
    return visible(mask, *sizes)


sdpa.visible = narrow
lie_with()
