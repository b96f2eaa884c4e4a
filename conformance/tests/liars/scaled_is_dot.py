"""Forgets the scale of the scaled form."""

from honest import lie_with, module

scoring_steps = module("scoring").scoring_steps


def unscaled(form, *arrays, **options):
    return scoring_steps("dot" if form == "scaled" else form, *arrays, **options)


lie_with(scoring_steps=unscaled)
