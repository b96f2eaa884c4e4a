"""Takes the frequencies of the whole head where only a part of it turns."""

from honest import lie_with, module

rope = module("rope")
frequencies_of, rope_steps = rope.rope_frequencies, rope.rope_steps


def rope_of_whole_head(x, options, **more):
    D = x.shape[-1]
    rope.rope_frequencies = lambda base, R: frequencies_of(base, D + D % 2)[: R // 2]
    return rope_steps(x, options, **more)


lie_with(rope_steps=rope_of_whole_head)
