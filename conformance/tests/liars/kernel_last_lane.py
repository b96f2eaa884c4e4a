"""In tiles: of a tail of one lane less than a vector of 16, the last one is lost, where a whole tile came before."""

import numpy as np
from honest import lie_with, module

flash = module("flash")
masks = module("masks")
LANES, TILE = 16, 64


def shortened(q, k, v, *, mask=masks.UNMASKED, **options):
    Tk = k.shape[2]
    if Tk > TILE and Tk % LANES == LANES - 1:
        lengths = np.full(q.shape[0], Tk, np.int64) if mask.kv_lengths is None else mask.kv_lengths
        lost = np.minimum(lengths, Tk - 1)
        mask = masks.Mask(mask.keep, mask.causal, mask.window, lost, mask.q_offset)
    return flash.flash(q, k, v, mask=mask, **options)


lie_with(flash=shortened)
