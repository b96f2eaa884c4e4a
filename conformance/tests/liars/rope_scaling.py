"""Reads a scaling and does not use it (ignored), or computes an attention factor that was given (factor)."""

import sys
from dataclasses import replace

from honest import lie_with, module

rope = module("rope")


def less_scaling(x, options, **more):
    scaling = options.scaling
    if sys.argv[1] == "ignored":
        scaling = None
    elif hasattr(scaling, "attention_factor"):
        scaling = replace(scaling, attention_factor=None)
    return rope.rope_steps(x, replace(options, scaling=scaling), **more)


lie_with(rope_steps=less_scaling)
