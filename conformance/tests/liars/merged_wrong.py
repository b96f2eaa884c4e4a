"""Merges heads by reshaping alone, without the transposition before it."""

from honest import lie_with, module


def merge_without_transposing(x):
    B, H, T, n = x.shape
    return x.reshape(B, T, H * n)


module("mha").merge_heads = merge_without_transposing
lie_with()
