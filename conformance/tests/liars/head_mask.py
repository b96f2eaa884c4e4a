"""Prunes the other heads (inverted), or multiplies pruned ones in with 0 (multiplied)."""

import sys
from dataclasses import replace

import numpy as np
from honest import lie_with, module

Layer = module("mha").MultiHeadAttention
steps = Layer.steps


def pruned_wrongly(self, *args, head_mask=None, **options):
    if head_mask is None or len(head_mask) != self.num_heads or head_mask.dtype != bool:
        return steps(self, *args, head_mask=head_mask, **options)
    if sys.argv[1] == "inverted":
        return steps(self, *args, head_mask=~head_mask, **options)
    columns = np.repeat(head_mask, self.w_o.shape[1] // self.num_heads)
    return steps(replace(self, w_o=self.w_o * columns.astype(self.w_o.dtype)), *args, **options)


Layer.steps = pruned_wrongly
lie_with()
