"""In tiles: keys that nobody sees are computed with weights of 0, instead of being passed by."""

import numpy as np
from honest import lie_with, module

flash = module("flash")
masks = module("masks")
KEYS = 64


def multiplied(q, k, v, *, mask=masks.UNMASKED, **options):
    result = flash.flash(q, k, v, mask=mask, **options)
    B, Hq, Tq, _ = q.shape
    Tk, G = k.shape[2], Hq // k.shape[1]
    for first in range(0, Tk, KEYS):
        keys = slice(first, min(first + KEYS, Tk))
        if not masks.visible_tile(mask, (B, Hq, Tq, Tk), slice(0, Tq), keys).any():
            nothing = np.sum(0 * np.repeat(v[:, :, keys], G, axis=1), axis=2, keepdims=True)
            result = result._replace(output=result.output + nothing)
    return result


lie_with(flash=multiplied)
