"""Normalises the weights again after some have been dropped."""

import numpy as np
from honest import lie_with, module

sdpa = module("sdpa")
dropout_steps = sdpa.dropout_steps


def renormalise(weights, options):
    steps = dropout_steps(weights, options)
    total = steps.output.sum(axis=-1, keepdims=True)
    return steps._replace(output=steps.output / np.where(total == 0, 1, total))


sdpa.dropout_steps = renormalise
lie_with()
