"""Makes a bf16 by cutting off the lower half of an f32."""

import numpy as np
from honest import lie_with, module

cast = module("cast")


def cut(x, to):
    if to == "bf16" and x.dtype == np.float32:
        x = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return cast.cast(x, to)


lie_with(cast=cut)
