"""Cuts every packed projection into all q, then k, then v, whatever its packing."""

from honest import lie_with, module

mha = module("mha")
unpack = mha._unpack
mha._unpack = lambda x, num_heads, num_kv_heads, packing: unpack(x, num_heads, num_kv_heads, "blocks")
lie_with()
