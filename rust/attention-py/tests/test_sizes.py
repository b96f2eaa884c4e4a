"""Sizes that nothing has memory for: an error, where Rust by itself would end the process."""

import pytest

import rosetta_attention_rs as ra

FAR = 10**15  # numbers: fewer than 2^53, more than a machine can have


@pytest.mark.parametrize(
    "wanted",
    [
        lambda: ra.KVCache(2, 2, 3, capacity=FAR // 10),
        lambda: ra.KVCache(FAR, 1, 1),
        lambda: ra.RotatingCache(FAR, 1, 1, window=1),
        lambda: ra.QuantisedCache(1, 1, 1, format="int8", capacity=FAR),
        lambda: ra.QuantisedCache(FAR, 1, 1, format="int8"),
        lambda: ra.LatentCache(1, 1, 1, capacity=FAR),
        lambda: ra.LatentCache(FAR, 1, 1),
        lambda: ra.CrossCache(FAR, 1, 1),
        lambda: ra.PagePool(1, FAR, 1, 1),
        lambda: ra.PagedCache(ra.PagePool(1, 1, 1, 1), FAR),
        lambda: ra.visible(ra.Mask(), 1, 1, FAR, 1),
        lambda: ra.sparse_mask(ra.Strided(2), FAR, 1),
        lambda: ra.philox_words(0, 0, FAR),
        lambda: ra.alibi_slopes(FAR),
    ],
)
def test_sizes_beyond_all_memory(wanted):
    with pytest.raises(ra.InvalidConfig, match=r"\w+: \w+: expected sizes that there is memory for, got \["):
        wanted()
