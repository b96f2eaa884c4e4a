"""Other random words. key: 32 bits of the seed only; counter: 32 bits of the block only; order: reversed blocks."""

import sys

import numpy as np
from honest import lie_with, module

dropout = module("dropout")
words = dropout.philox_words


def other_words(seed, first, count):
    if sys.argv[1] == "key":
        return words(seed % 2**32, first, count)
    if sys.argv[1] == "counter":
        return words(seed, first % 2**34, count)
    start = first - first % 4
    blocks = words(seed, start, -(-(first + count - start) // 4) * 4).reshape(-1, 4)
    return np.ascontiguousarray(blocks[:, ::-1]).ravel()[first - start :][:count]


dropout.philox_words = other_words
lie_with()
