"""A layer that turns its keys when they come in, and once more when they are used."""

from itertools import cycle

from honest import lie_with, module

mha = module("mha")
rope = mha.rope
times = cycle((1, 2))  # queries, then keys


def turn(x, options, **more):
    for _ in range(next(times)):
        x = rope(x, options, **more)
    return x


mha.rope = turn
lie_with()
