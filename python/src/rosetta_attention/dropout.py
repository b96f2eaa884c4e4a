"""Dropout: elements are set to 0 at random, and the others scaled so that the mean stays.

    output_n = 0 where word_n < p · 2^32, else x_n / (1 - p)

The random words are those of Philox (philox.py) with the element's own index as the counter: which elements
are dropped depends on seed and index alone, not on the language, the tiling or the order of the work.

Source: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", 2014.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .arrays import Array, BoolArray, WordArray
from .cast import op
from .checks import Call, check_dropout
from .philox import philox_at, philox_words


@dataclass(frozen=True)
class Dropout:
    """p: the probability, 0 to 1, that an element is dropped. seed: 0 to 2^53 - 1."""

    p: float
    seed: int


class DropoutSteps(NamedTuple):
    """The output of one call, and which elements were kept."""

    output: Array  # (...)
    keep: BoolArray  # (...)


def dropout(x: Array, options: Dropout, *, offset: int = 0) -> Array:
    """`x` with elements dropped; any shape. offset: the index of the first element.

    Raises DtypeMismatch, InvalidConfig.
    """
    return dropout_steps(x, options, offset=offset).output


@op
def dropout_steps(x: Array, options: Dropout, *, offset: int = 0) -> DropoutSteps:
    """`dropout` with the table of kept elements; same arguments and errors."""
    call = Call("dropout")
    call.floats(x=x)
    check_dropout("dropout", options)
    call.integer("offset", offset, 0)

    # 1. random words: one an element, in row-major order
    words = philox_words(options.seed, offset, x.size).reshape(x.shape)  # (...)

    # 2. keep: exact for every p, as both sides are integers; p = 1 keeps nothing
    keep = kept(words, options)  # (...)

    # 3. scale: by selection, so that a dropped NaN is 0
    output = scale_kept(x, keep, options)  # (...)
    return DropoutSteps(output, keep)


def keep_at(index: npt.NDArray[np.uint64], options: Dropout) -> BoolArray:
    """Whether the elements with these indices are kept, in any order and shape."""
    return kept(philox_at(options.seed, index), options)


def kept(words: WordArray, options: Dropout) -> BoolArray:
    """Whether the elements with these random words are kept."""
    return words >= np.uint64(math.ceil(options.p * 2**32))


def scale_kept(x: Array, keep: BoolArray, options: Dropout) -> Array:
    """x / (1 - p) where kept, else 0."""
    factor = 1 / (1 - options.p) if options.p < 1 else 0.0
    output: Array = np.where(keep, x * x.dtype.type(factor), 0)
    return output
