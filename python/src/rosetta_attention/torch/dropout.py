"""Dropout with the random words of this project: the same elements in every language, not those of PyTorch.

See rosetta_attention.dropout, whose `Dropout` and words these are.
"""

import torch
from torch import Tensor

from ..dropout import Dropout, kept
from ..philox import philox_words


def drop(x: Tensor, options: Dropout) -> Tensor:
    """`x` with elements dropped by their index in row-major order, any shape."""
    words = philox_words(options.seed, 0, x.numel()).reshape(x.shape)
    keep = torch.from_numpy(kept(words, options)).to(x.device)  # (...)
    factor = 1 / (1 - options.p) if options.p < 1 else 0.0
    return torch.where(keep, x * factor, 0)
