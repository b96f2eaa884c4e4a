"""Norms x before it is kept for the residual."""

from honest import lie_with, module


def around(self, norm, layer, x):
    if self.norm_first:
        x = norm(x)
        return x + layer(x)
    return norm(x) + layer(x)


module("block").Block._around = around
lie_with()
