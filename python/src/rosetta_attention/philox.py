"""Philox4x32-10: a random number for every index, the same in every language, without a state.

A block cipher turns a counter of 4 words of 32 bits into 4 random words under a key of 2 words. Any element
of the stream can be asked for alone, so tiles, threads and languages agree on it. Word n of the stream of a
seed is word n mod 4 of the block with counter n div 4.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011, section 3.3.
"""

import numpy as np
import numpy.typing as npt

from .arrays import WordArray

M0, M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)  # the multipliers of the paper
W0, W1 = 0x9E3779B9, 0xBB67AE85  # what the key grows by in each round: golden ratio, sqrt(3) - 1
ROUNDS = 10
LOW = np.uint64(0xFFFFFFFF)
WORD = np.uint64(32)  # bits


def counters(block: npt.NDArray[np.uint64]) -> WordArray:
    """The counters (n, 4) of blocks by number, (n,)."""
    # 1. counter: 64 bits of the number in the two low words; the two high ones are not needed
    zero = np.zeros_like(block)
    return np.stack([block & LOW, block >> WORD, zero, zero], axis=1).astype(np.uint32)  # (n, 4)


def philox4x32(counter: WordArray, key: tuple[int, int]) -> WordArray:
    """The random words (n, 4) of the counters (n, 4)."""
    c0, c1, c2, c3 = counter.astype(np.uint64).T  # (n,)
    k0, k1 = key

    # 2. rounds: of each product of 64 bits the high word is mixed in and the low one moves on; the key grows
    for _ in range(ROUNDS):
        p0, p1 = M0 * c0, M1 * c2
        c0, c1 = (p1 >> WORD) ^ c1 ^ np.uint64(k0), p1 & LOW
        c2, c3 = (p0 >> WORD) ^ c3 ^ np.uint64(k1), p0 & LOW
        k0, k1 = (k0 + W0) & 0xFFFFFFFF, (k1 + W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)  # (n, 4)


def philox_words(seed: int, first: int, count: int) -> WordArray:
    """Words first .. first + count - 1 of the stream of `seed`, 0 <= seed < 2^64: (count,)."""
    start = first % 4
    block = np.arange(-(-(start + count) // 4), dtype=np.uint64) + np.uint64(first // 4 % 2**64)  # (n,)

    # 3. words: four a block in a row, without those of the first and last one that were not asked for
    words = philox4x32(counters(block), _key(seed)).reshape(-1)  # (4n,)
    return words[start : start + count]  # (count,)


def philox_at(seed: int, index: npt.NDArray[np.uint64]) -> WordArray:
    """The words with these indices, in any order and shape."""
    block, word = np.divmod(index.reshape(-1), np.uint64(4))  # (n,)
    words = philox4x32(counters(block), _key(seed))  # (n, 4)
    return np.take_along_axis(words, word.astype(np.int64)[:, None], axis=1).reshape(index.shape)


def _key(seed: int) -> tuple[int, int]:
    """The low and the high word of a seed."""
    return seed & 0xFFFFFFFF, seed >> 32
