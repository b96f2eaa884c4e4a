"""In tiles of 256 keys: what was summed under an old maximum is not corrected when a later tile has a larger one."""

from types import SimpleNamespace

import numpy as np
from honest import lie_with, module

flash = module("flash")
KEYS = 256


def exp(x):
    """That of one number a query, which only the correction takes, is 1."""
    return np.exp(x) if x.ndim == 4 else np.where(np.isfinite(x), 1, np.exp(x)).astype(x.dtype)


def uncorrected(q, k, v, *, block_k=0, **options):
    """Not `split`, which has the same text for smaller tiles; nor with a sink, an old maximum of any few keys."""
    if options.get("sinks") is not None:
        return flash.flash(q, k, v, block_k=KEYS, **options)
    flash.np = SimpleNamespace(**{**vars(np), "exp": exp})
    try:
        return flash.flash(q, k, v, block_k=KEYS, **options)
    finally:
        flash.np = np


lie_with(flash=uncorrected)
