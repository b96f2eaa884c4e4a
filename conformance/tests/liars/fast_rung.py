"""A fast rung in blocks of 64 keys and vectors of 16 lanes, as `simd` and, on several threads, as `threads`.

It is right in all that is small, and wrong only where whole vectors and blocks meet their ends: in the last `channels`,
`values`, `keys` or `rows`; it `stops` at a hidden block, `reads` one, swallows a `nan`, or a `top` that grows. Or it is
wrong on several threads: it `forgets` the heads that are left over, or adds up a `sum` in halves on two; or it takes
other numbers of them than it is granted, `one` or `three`.
"""

import sys
from dataclasses import replace

import numpy as np
from honest import library, module

from rosetta_port import serve
from rosetta_port.errors import Unsupported

sdpa_steps, weighted_sum = module("sdpa").sdpa_steps, module("heads").weighted_sum
UNMASKED, visible = module("masks").UNMASKED, module("masks").visible
BLOCK, LANES = 64, 16
lie = sys.argv[1]
threads = 1


def whole(n):
    """How much of n stands in whole vectors; all of it where there is none, since then the tail is done with care."""
    return n // LANES * LANES or n


def simd(q, k, v, *, mask=UNMASKED, bias=None, scale=None, sinks=None, dropout=None, **options):
    if dropout is not None:
        raise Unsupported("dropout")
    steps = sdpa_steps(q, k, v, mask=mask, bias=bias, scale=scale, sinks=sinks, **options)
    D, Dv, (B, Hq, Tq, Tk) = q.shape[3], v.shape[3], steps.weights.shape
    s = steps.biased
    if lie == "channels" and D:
        scale = D**-0.5 if scale is None else scale
        s = sdpa_steps(q[..., : whole(D)], k[..., : whole(D)], v, bias=bias, scale=scale, **options).biased
    shown = visible(mask, B, Hq, Tq, Tk) if bias is None else visible(mask, B, Hq, Tq, Tk) & (bias != -np.inf)
    s = np.where(shown, s, -np.inf)
    if lie == "keys" and Tk > LANES:  # the padding of the last vector scores 0
        padding = -Tk % LANES
        s = np.pad(s, ((0, 0), (0, 0), (0, 0), (0, padding)))
        v = np.pad(v, ((0, 0), (0, 0), (0, padding), (0, 0)))
    output, lse = attend(s, v, np.full(Hq, -np.inf, q.dtype) if sinks is None else sinks)
    if lie == "values":
        output[..., whole(Dv) :] = 0
    if lie == "rows":
        output[:, :, whole(Tq) :] = output[:, :, whole(Tq) - 1 : whole(Tq)]
    return output, lse


def attend(s, v, sinks):
    """Block by block, with the running softmax: (B, Hq, Tq, Tk) and (B, Hkv, Tk, Dv) to (B, Hq, Tq, Dv) and its lse."""
    m = np.broadcast_to(sinks[:, None], s.shape[:3])
    l, acc = np.where(m == -np.inf, 0, np.ones_like(m)), np.zeros((*m.shape, v.shape[3]), s.dtype)
    seen = False
    for start in range(0, s.shape[3], BLOCK):
        tile, values = s[..., start : start + BLOCK], v[:, :, start : start + BLOCK]
        vectors = values.shape[2] == BLOCK
        if (tile == -np.inf).all():
            if lie == "stops" and seen:
                break
            if lie == "reads" and vectors:
                acc = acc + 0 * values.sum()
            continue
        seen = True
        if lie == "nan" and vectors:
            tile = np.where(np.isnan(tile), -np.inf, tile)
        top = m if lie == "top" and start else np.maximum(m, tile.max(axis=-1))
        shift = np.where(top == -np.inf, 0, top)
        shrink = np.exp(m - shift)
        p = np.where(tile == -np.inf, 0, np.exp(tile - shift[..., None]))
        l, m = l * shrink + p.sum(axis=-1), top
        acc = acc * shrink[..., None] + weighted_sum(p, values, tile != -np.inf)
    l = np.where(l == 0, 1, l)
    return acc / l[..., None], m + np.log(l)


def shared(q, k, v, **options):
    output, lse = simd(q, k, v, **options)
    heads = output.shape[0] * output.shape[1]
    if lie == "forgets" and heads % threads:
        output.reshape(heads, *output.shape[2:])[-(heads % threads) :] = 0
    if lie == "sum" and threads == 2:  # in another order, so the last bit is another
        output = np.nextafter(output, np.inf).astype(output.dtype)
    return output, lse


def set_threads(granted):
    global threads
    threads = {"one": 1, "three": 3}.get(lie, granted)
    return threads


serve(replace(library(), sdpa_variants={"simd": simd, "threads": shared}, set_threads=set_threads))
