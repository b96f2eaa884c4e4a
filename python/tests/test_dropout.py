"""Philox and dropout: the same elements in every language, tile and order."""

import numpy as np
import pytest

import rosetta_attention as ra
from rosetta_attention.dropout import keep_at
from rosetta_attention.philox import philox4x32, philox_at

NAN = np.nan


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_known_answers_of_random123(counter, key, words):
    assert philox4x32(np.array([counter], np.uint32), key)[0].tolist() == list(words)


def test_words_are_in_one_stream():
    whole = ra.philox_words(2**53 - 1, 0, 50)
    for first in range(9):
        np.testing.assert_array_equal(ra.philox_words(2**53 - 1, first, 13), whole[first : first + 13])
    index = np.array([[49, 0], [7, 7]], np.uint64)
    np.testing.assert_array_equal(philox_at(2**53 - 1, index), whole[index.astype(int)])
    assert ra.philox_words(1, 5, 0).shape == (0,)


def test_both_words_of_counter_and_seed_count():
    far = 4 * (2**32 + 3) + 2
    want = philox4x32(np.array([[3, 1, 0, 0]], np.uint32), (5, 6))[0]
    assert ra.philox_words(6 * 2**32 + 5, far, 2).tolist() == want[2:].tolist()


def test_how_many_are_kept_and_how_they_are_scaled(dtype):
    x = np.ones((100, 200), dtype)
    output, keep = ra.dropout_steps(x, ra.Dropout(0.3, 7))
    assert abs(keep.mean() - 0.7) < 0.02
    np.testing.assert_array_equal(output, np.where(keep, np.array(1 / 0.7, dtype), 0))
    assert output.dtype == dtype


def test_ends_of_the_range():
    x = np.array([1.0, NAN, -np.inf, -0.0])
    np.testing.assert_array_equal(ra.dropout(x, ra.Dropout(0, 3)), x)
    np.testing.assert_array_equal(ra.dropout(x, ra.Dropout(1, 3)), np.zeros(4))
    assert ra.dropout(np.float64(2.0) * np.ones(()), ra.Dropout(0.0, 3)) == 2


def test_an_offset_continues_the_stream():
    x = np.arange(1.0, 31)
    whole = ra.dropout(x, ra.Dropout(0.5, 11))
    parts = [ra.dropout(x[:7], ra.Dropout(0.5, 11)), ra.dropout(x[7:], ra.Dropout(0.5, 11), offset=7)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_attention_drops_weights_by_their_index():
    """Of (B, Hq, Tq, Tk) in row-major order; the kept ones are not normalised again (DropoutScale)."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 3, 4, 5)) for _ in range(3))
    option = ra.Dropout(0.4, 9)
    plain, steps = ra.sdpa_steps(q, k, v), ra.sdpa_steps(q, k, v, dropout=option)
    np.testing.assert_array_equal(steps.weights, plain.weights)
    np.testing.assert_array_equal(steps.lse, plain.lse)
    thinned = ra.dropout(plain.weights, option)
    np.testing.assert_allclose(steps.output, thinned @ v, rtol=1e-13)
    index = np.arange(2 * 3 * 4 * 4, dtype=np.uint64).reshape(2, 3, 4, 4)
    np.testing.assert_array_equal(thinned != 0, keep_at(index, option))
    assert (ra.sdpa(q, k, v, dropout=ra.Dropout(1, 0)) == 0).all()


@pytest.mark.parametrize(
    "options",
    [
        ra.Dropout(-0.1, 1),
        ra.Dropout(1.1, 1),
        ra.Dropout(NAN, 1),
        ra.Dropout(0.5, -1),
        ra.Dropout(0.5, 2**53),
        ra.Dropout(0.5, 1.5),
        0.5,
    ],
    ids=str,
)
def test_refusals(options):
    with pytest.raises(ra.InvalidConfig):
        ra.dropout(np.ones(3), options)
    with pytest.raises(ra.InvalidConfig):
        ra.sdpa(*(np.ones((1, 1, 1, 1)),) * 3, dropout=options)
