"""A decode path that has no mask: the padding in front of a row is read like any other key."""

from dataclasses import replace

from honest import lie_with, module

sdpa_steps = module("sdpa").sdpa_steps


def unmasked(q, k, v, *, mask, **options):
    mask = replace(mask, keep=None) if q.ndim == 4 and q.shape[2] == 1 else mask
    return sdpa_steps(q, k, v, mask=mask, **options)


lie_with(sdpa=lambda *args, **options: unmasked(*args, **options).output, sdpa_steps=unmasked)
