"""Takes the second argument of SwiGLU for the gate."""

from honest import lie_with, module

swiglu = module("swiglu").swiglu


def swapped(a, b, *, alpha=1.0):
    return swiglu(b, a, alpha=alpha)


module("feed_forward").swiglu = swapped
lie_with(swiglu=swapped)
