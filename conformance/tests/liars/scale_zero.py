"""`scale or default`: an explicit 0 is taken for none."""

from honest import lie_with, module

sdpa_steps = module("sdpa").sdpa_steps


def falsy_scale(*args, scale=None, **options):
    return sdpa_steps(*args, scale=scale or None, **options)


lie_with(sdpa=lambda *args, **options: falsy_scale(*args, **options).output, sdpa_steps=falsy_scale)
