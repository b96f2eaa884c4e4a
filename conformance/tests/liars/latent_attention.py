"""Latent attention that scales by the `absorbed` size, or whose rotary key is `plain`."""

import math
import sys

from honest import lie_with, module

mla = module("mla")
attend_absorbed = mla.attend_absorbed


def other_scale(layer, x, mask, scale):
    return attend_absorbed(layer, x, mask, 1 / math.sqrt(layer.w_dkv.shape[0] + layer.w_kr.shape[0]))


if sys.argv[1] == "absorbed":
    mla.attend_absorbed = other_scale
else:
    mla.rotate = lambda options, q_r, k_r: (q_r, k_r)
lie_with()
