"""A layer whose mask means ignore, though that of its attention means attend."""

from dataclasses import replace

from honest import lie_with, module

Layer = module("mha").MultiHeadAttention
UNMASKED = module("masks").UNMASKED
steps = Layer.steps


def inverted(self, *args, mask=UNMASKED, **options):
    if mask.keep is not None:
        mask = replace(mask, keep=~mask.keep)
    return steps(self, *args, mask=mask, **options)


Layer.steps = inverted
lie_with()
