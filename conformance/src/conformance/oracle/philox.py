"""Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) in Python's whole numbers."""

from collections.abc import Iterator

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
WORD = 2**32

Block = tuple[int, int, int, int]


def philox_block(counter: Block, key: tuple[int, int]) -> Block:
    """The four words that belong to a counter of four words and a key of two."""
    c0, c1, c2, c3 = counter
    for number in range(ROUNDS):
        k0, k1 = ((word + number * step) % WORD for word, step in zip(key, KEY_STEPS, strict=True))
        high0, low0 = divmod(MULTIPLIERS[0] * c0, WORD)
        high1, low1 = divmod(MULTIPLIERS[1] * c2, WORD)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return c0, c1, c2, c3


def philox_stream(seed: int, first: int, count: int) -> Iterator[int]:
    """The words numbered first .. first + count - 1 of the seed: word n is the (n mod 4)th of block n div 4."""
    block, words = -1, (0, 0, 0, 0)
    for n in range(first, first + count):
        if n // 4 != block:
            block = n // 4
            words = philox_block((block % WORD, block // WORD, 0, 0), (seed % WORD, seed // WORD))
        yield words[n % 4]
