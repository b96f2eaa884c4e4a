"""Gives back what it was given."""

from honest import lie_with, module

softmax_lse = module("softmax").softmax_lse


def echo_lse(x):
    return x, softmax_lse(x)[1]


lie_with(softmax=lambda x: echo_lse(x)[0], softmax_lse=echo_lse)
