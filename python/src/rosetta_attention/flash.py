"""sdpa without its table of weights: tiles of queries pass over tiles of keys, with a running softmax.

    per tile: m' = max(m, max s),  l' = l e^(m - m') + Σ e^(s - m'),  acc' = acc e^(m - m') + Σ e^(s - m') v
    at last:  output = acc / l,  lse = m + ln l

What changes from `naive`: nothing of size Tq x Tk exists at any time, only one tile of block_q x block_k, and
tiles that no query sees are skipped. The sums run in another order, so the last bits differ.

Letters: B batch, Hq query heads, Hkv key/value heads, Tq and Tk query and key lengths, tq and tk those of a
tile, D head size, Dv head size of the values.

Source: Dao et al., "FlashAttention", 2022, algorithm 1, with the loops as in Dao, "FlashAttention-2", 2023.
"""

import math
from collections.abc import Iterator

import numpy as np

from .arrays import Array, BoolArray
from .cast import op
from .checks import Call, check_sdpa
from .dropout import Dropout, keep_at, scale_kept
from .heads import products, weighted_sum
from .masks import UNMASKED, Mask, visible_tile
from .merge import OutputLse


@op
def flash(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Mask = UNMASKED,
    bias: Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    dropout: Dropout | None = None,
    block_q: int = 64,
    block_k: int = 64,
) -> OutputLse:
    """Output and log-sum-exp of `sdpa`; same arguments and errors.

    block_q, block_k: how many queries and keys a tile has, at least 1.
    """
    check_sdpa(
        "flash", q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks, dropout=dropout
    )
    Call("flash").integer("block_q", block_q, 1)
    Call("flash").integer("block_k", block_k, 1)
    keys = slice(0, k.shape[2])
    return flash_keys(q, k, v, keys, mask, bias, scale, softcap, sinks, dropout, block_q, block_k)


def flash_keys(
    q: Array,
    k: Array,
    v: Array,
    keys: slice,
    mask: Mask,
    bias: Array | None,
    scale: float | None,
    softcap: float | None,
    sinks: Array | None = None,
    dropout: Dropout | None = None,
    block_q: int = 64,
    block_k: int = 64,
) -> OutputLse:
    """`flash` over a range of the keys, unchecked; mask, bias and dropout speak of all of them."""
    B, Hq, Tq, D = q.shape
    Dv = v.shape[3]
    shape = (B, Hq, Tq, k.shape[2])
    scale = 1 / math.sqrt(D) if scale is None else float(scale)
    bias = None if bias is None else np.broadcast_to(bias, shape)  # a view
    output = np.empty((B, Hq, Tq, Dv), q.dtype)  # (B, Hq, Tq, Dv)
    lse = np.empty((B, Hq, Tq), q.dtype)  # (B, Hq, Tq)

    # 1. query tile: its rows, and a state of nothing seen; the sink, a key without a value, is the first
    for rows in tiles(0, Tq, block_q):
        q_tile = q[:, :, rows] * scale  # (B, Hq, tq, D)
        m = np.full(q_tile.shape[:3], -np.inf, q.dtype)  # (B, Hq, tq)
        if sinks is not None:
            m[:] = sinks[:, None]
        l = np.where(m == -np.inf, 0, np.ones_like(m))  # (B, Hq, tq)
        acc = np.zeros((*m.shape, Dv), q.dtype)  # (B, Hq, tq, Dv)

        # 2. key tile: those in range; one that no query of the tile sees is passed by
        for columns in tiles(keys.start, keys.stop, block_k):
            shown = visible_tile(mask, shape, rows, columns)  # (B, Hq, tq, tk)
            if not shown.any():
                continue

            # 3. scores: as in sdpa, softcapped, biased and masked
            s = products(q_tile, k[:, :, columns])  # (B, Hq, tq, tk)
            s = s if softcap is None else float(softcap) * np.tanh(s / float(softcap))
            if bias is not None:
                b = bias[:, :, rows, columns]  # (B, Hq, tq, tk)
                s, shown = s + b, shown & (b != -np.inf)
            s = np.where(shown, s, -np.inf)  # (B, Hq, tq, tk)

            # 4. maximum: so far; a row that has seen nothing is shifted by 0, since -inf - -inf is NaN
            top = np.maximum(m, np.max(s, axis=-1))  # (B, Hq, tq)
            shift = np.where(top == -np.inf, 0, top)  # (B, Hq, tq)

            # 5. rescale: what was summed under the old maximum
            shrink = np.exp(m - shift)  # (B, Hq, tq)
            l, acc, m = l * shrink, acc * shrink[..., None], top

            # 6. accumulate: the exponentials in l; those that dropout keeps, times their values, in acc
            p = np.where(s == -np.inf, 0, np.exp(s - shift[..., None]))  # (B, Hq, tq, tk)
            l = l + np.sum(p, axis=-1)  # (B, Hq, tq)
            if dropout is not None:
                p = scale_kept(p, _keep_tile(dropout, shape, rows, columns), dropout)  # (B, Hq, tq, tk)
            acc = acc + weighted_sum(p, v[:, :, columns], s != -np.inf)  # (B, Hq, tq, Dv)

        # 7. finish: one division a row; a row that has seen nothing is 0 with lse -inf
        l = np.where(l == 0, 1, l)  # (B, Hq, tq)
        output[:, :, rows] = acc / l[..., None]
        lse[:, :, rows] = m + np.log(l)
    return OutputLse(output, lse)


def tiles(start: int, stop: int, size: int) -> Iterator[slice]:
    """start .. stop in pieces of `size`, the last one perhaps shorter."""
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))


def _keep_tile(dropout: Dropout, shape: tuple[int, int, int, int], rows: slice, columns: slice) -> BoolArray:
    """Which weights of the tile dropout keeps, by their index in the table of this shape: (B, Hq, tq, tk)."""
    B, Hq, Tq, Tk = shape
    heads = np.arange(B * Hq).reshape(B, Hq, 1, 1)  # (B, Hq, 1, 1)
    i, j = np.arange(rows.start, rows.stop)[:, None], np.arange(columns.start, columns.stop)
    return keep_at(((heads * Tq + i) * Tk + j).astype(np.uint64), dropout)
