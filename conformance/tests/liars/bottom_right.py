"""Causal without an offset is aligned at the last key, whatever the number of queries."""

from dataclasses import replace

from honest import lie_with, module

sdpa = module("sdpa")
visible = sdpa.visible


def aligned_at_the_end(mask, batch, num_heads, q_len, kv_len):
    if mask.causal and mask.q_offset is None:
        mask = replace(mask, q_offset=kv_len - q_len)
    return visible(mask, batch, num_heads, q_len, kv_len)


sdpa.visible = aligned_at_the_end
lie_with()
