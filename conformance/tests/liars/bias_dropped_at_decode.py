"""A decode path of its own, written before there was a bias."""

from honest import lie_with, module

sdpa_steps = module("sdpa").sdpa_steps


def forgetful(q, k, v, *, bias=None, **options):
    return sdpa_steps(q, k, v, bias=None if q.ndim == 4 and q.shape[2] == 1 else bias, **options)


lie_with(sdpa=lambda *args, **options: forgetful(*args, **options).output, sdpa_steps=forgetful)
