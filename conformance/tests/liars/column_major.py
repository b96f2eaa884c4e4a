"""Lays the row-major bytes of V over the same shape as if they were column-major."""

from honest import lie_with, module

sdpa_steps = module("sdpa").sdpa_steps


def scrambled(q, k, v, **options):
    return sdpa_steps(q, k, v.reshape(-1).reshape(v.shape, order="F"), **options)


lie_with(sdpa=lambda *args, **options: scrambled(*args, **options).output, sdpa_steps=scrambled)
