"""Which query sees which key. Tables are written with 1 for visible and . for hidden, a row a query."""

import numpy as np
import pytest
from backends import Backend


def table(
    lib: Backend, q_len: int, kv_len: int, *, batch: int = 1, heads: int = 1, **conditions
) -> np.ndarray:
    shown = lib.to_numpy(lib.api.visible(lib.mask(**conditions), batch, heads, q_len, kv_len))
    assert shown.dtype == bool
    assert shown.shape == (batch, heads, q_len, kv_len)
    return shown


def drawn(shown: np.ndarray) -> list[str]:
    return ["".join("1" if x else "." for x in row) for row in shown]


@pytest.mark.parametrize(
    ("conditions", "rows"),
    [
        ({}, ["1111", "1111"]),
        ({"causal": True}, ["1...", "11.."]),
        ({"causal": True, "q_offset": 2}, ["111.", "1111"]),
        ({"causal": True, "q_offset": -1}, ["....", "1..."]),
        ({"causal": True, "q_offset": 9}, ["1111", "1111"]),
        ({"q_offset": 2}, ["1111", "1111"]),
        ({"window": (0, 0)}, ["1...", ".1.."]),
        ({"window": (1, 0), "q_offset": 2}, [".11.", "..11"]),
        ({"window": (0, 1)}, ["11..", ".11."]),
        ({"window": (None, 1)}, ["11..", "111."]),
        ({"window": (0, None)}, ["1111", ".111"]),
        ({"window": (None, None)}, ["1111", "1111"]),
        ({"window": (0, 0), "q_offset": 4}, ["....", "...."]),
        ({"kv_lengths": [3]}, ["111.", "111."]),
        ({"kv_lengths": [0]}, ["....", "...."]),
        ({"kv_lengths": [4]}, ["1111", "1111"]),
        ({"keep": [True, False, True, True]}, ["1.11", "1.11"]),
        ({"keep": [[True], [False]]}, ["1111", "...."]),
        ({"causal": True, "window": (1, 3), "q_offset": 2, "kv_lengths": [3]}, [".11.", "..1."]),
        (
            {"causal": True, "q_offset": 3, "keep": [[True, True, False, True]], "kv_lengths": [2]},
            ["11..", "11.."],
        ),
    ],
    ids=str,
)
def test_conditions_and_their_intersection(lib, conditions, rows):
    assert drawn(table(lib, 2, 4, **conditions)[0, 0]) == rows


def test_an_open_side_may_be_any_large_number(lib):
    """A position plus the largest integer wraps around where sums are compared and not distances."""
    largest = np.iinfo(np.int64).max
    for far in (2**63 - 1, -(2**63)):
        assert table(lib, 3, 3, causal=True, q_offset=[far]).all() == (far > 0)
        assert not table(lib, 3, 3, window=(5, 5), q_offset=[far]).any()
    assert table(lib, 3, 3, window=(largest, largest), q_offset=[5]).all()
    assert table(lib, 3, 3, window=(largest, largest), q_offset=[-5]).all()


def test_rows_have_offsets_and_lengths_of_their_own(lib):
    shown = table(lib, 1, 3, batch=3, causal=True, q_offset=[-1, 0, 2], kv_lengths=[3, 3, 2])
    assert [drawn(row[0])[0] for row in shown] == ["...", "1..", "11."]


def test_a_mask_of_rank_3_has_heads_first(lib):
    keep = np.zeros((2, 1, 3), bool)
    keep[1] = True
    shown = table(lib, 1, 3, batch=2, heads=2, keep=keep)
    assert not shown[:, 0].any()
    assert shown[:, 1].all()


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (0, 0)], ids=str)
def test_empty_tables(lib, sizes):
    for batch in (0, 2):
        lengths = [0] * batch
        table(lib, *sizes, batch=batch, causal=True, window=(0, 0), kv_lengths=lengths, q_offset=lengths)


def test_the_mask_is_left_as_it_was(lib):
    keep = np.array([[True, False]])
    table(lib, 1, 2, keep=keep, causal=True)
    np.testing.assert_array_equal(keep, [[True, False]])
