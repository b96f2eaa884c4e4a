"""The bound of linear attention, for its parallel, recurrent and chunked order alike.

All three add up the same terms f(q)_d f(k_j)_d v_j. Whatever is summed first, each term passes through at most
D + Tk + a few roundings. Since f > 0, the terms of one weight never cancel: the bound of each sum of values holds for
every order once the roundings of both sums are granted to its terms.
"""

from typing import Any

import numpy as np

from ..tensors import Tensors
from .arithmetic import Arithmetic, Bounded, transpose
from .elementwise import divide, exp, select

# Of one term beside the sums over its D features and over the keys: the product with v, and the addition of what a
# chunk sees of its own keys to what it reads from the state before it.
ORDER_ROUNDINGS = 2
FEATURE_ROUNDINGS = 2  # elu(x) + 1 as it stands: e^x - 1, and 1 added back


def bound_linear_attention(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op linear_attention."""
    q, k, v = (arithmetic.exact(inputs[name]) for name in ("q", "k", "v"))
    B, Hq, Tq, D = q.value.shape
    _, Hkv, Tk, Dv = v.value.shape
    state = arithmetic.exact(inputs.get("state", np.zeros((B, Hkv, D, Dv))))
    norm = arithmetic.exact(inputs.get("norm", np.zeros((B, Hkv, D))))
    fq, fk = feature_map(arithmetic, q), feature_map(arithmetic, k)

    # The norm is a state over values of 1: (B, Hkv, D, Dv + 1) holds both.
    ones = arithmetic.exact(np.ones((B, Hkv, Tk, 1)))
    values = Bounded(*(np.concatenate(pair, axis=-1) for pair in zip(v, ones, strict=True)))
    first = Bounded(*(np.concatenate([s, z[..., None]], axis=-1) for s, z in zip(state, norm, strict=True)))
    after = [
        _state(arithmetic, first, fk, values, count, D)
        for count in (range(1, Tq + 1) if config.get("causal") else [Tk])
    ]
    whole = _state(arithmetic, first, fk, values, Tk, D)
    group = Hq // max(Hkv, 1)
    output = np.zeros((B, Hq, Tq, Dv))
    for i in range(Tq):
        held = after[i if config.get("causal") else 0]
        held = Bounded(*(np.repeat(part, group, axis=1) for part in held))
        read = arithmetic.matmul(Bounded(*(part[:, :, i : i + 1] for part in fq)), held)
        numerator, denominator = (
            Bounded(*(part[:, :, 0, columns] for part in read))
            for columns in (slice(0, Dv), slice(Dv, Dv + 1))
        )
        quotient = divide(arithmetic, numerator, denominator, 2)
        output[:, :, i] = np.where(denominator.value == 0, 0, quotient.error)
    return {"output": output, "state": whole.error[..., :Dv], "norm": whole.error[..., Dv]}


def feature_map(arithmetic: Arithmetic, x: Bounded) -> Bounded:
    """f(x) = x + 1 above 0, else e^x; below, 1 may have been taken away and added back, which costs 2 u of 1."""
    above = arithmetic.add(x, arithmetic.exact(np.ones(())))
    below = exp(arithmetic, x)
    below = Bounded(below.value, below.error + FEATURE_ROUNDINGS * arithmetic.u)
    return select(x.value > 0, above, below)


def _state(
    arithmetic: Arithmetic, first: Bounded, fk: Bounded, values: Bounded, count: int, D: int
) -> Bounded:
    """first + Σ over the first `count` keys of f(k) vᵀ, with the roundings of a read over D granted to each term."""
    keys = transpose(Bounded(*(part[:, :, :count] for part in fk)))
    held = Bounded(*(part[:, :, :count] for part in values))
    written = arithmetic.matmul(keys, held, D + ORDER_ROUNDINGS)
    size = np.abs(first.value) + np.abs(written.value) + written.error
    # The first state passes through one addition a key, the read over D, and the addition of a chunk's own keys.
    rounding = arithmetic.gamma(count + D + ORDER_ROUNDINGS) * size
    return Bounded(first.value + written.value, written.error + rounding)
