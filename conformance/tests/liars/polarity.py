"""A mask that is true where a key must *not* be seen."""

from dataclasses import replace

from honest import lie_with, module

sdpa = module("sdpa")
visible = sdpa.visible


def inverted(mask, *sizes):
    return visible(
        mask if mask.keep is None or mask.keep.dtype != bool else replace(mask, keep=~mask.keep), *sizes
    )


sdpa.visible = inverted
lie_with()
