"""Linear attention, one position after the other: an RNN whose state is a matrix.

    S_t = S_(t-1) + f(k_t) v_tᵀ,   z_t = z_(t-1) + f(k_t),   output_t = f(q_t)ᵀ S_t / f(q_t)ᵀ z_t

What changes from linear_attention: time and memory for each new token do not grow with those before, but
nothing of size T x T keeps a processor busy either. Decoding goes this way.

Letters: B batch, Hq query heads, Hkv key/value heads, Tq and Tk query and key lengths, D head size, Dv head
size of the values.

Source: Katharopoulos et al., "Transformers are RNNs", 2020, section 3.4.
"""

import numpy as np

from .arrays import Array
from .cast import op
from .checks import check_linear
from .linear_attention import (
    LinearState,
    LinearSteps,
    add_keys,
    divide,
    empty_state,
    feature_map,
    read_norm,
    read_state,
)


@op
def linear_recurrent(
    q: Array, k: Array, v: Array, *, causal: bool = False, state: LinearState | None = None
) -> LinearSteps:
    """`linear_attention` by recurrence; same arguments, results and errors.

    Not causal: all keys are written before any query reads.
    """
    check_linear("linear_recurrent", q, k, v, causal=causal, state=state)
    past = empty_state(k, v) if state is None else state
    totals = np.empty((*q.shape[:3], v.shape[3]), q.dtype)  # (B, Hq, Tq, Dv)
    weights = np.empty(q.shape[:3], q.dtype)  # (B, Hq, Tq)

    # 1. feature map: of every query and key; it knows no other position
    q, k = feature_map(q), feature_map(k)  # (B, Hq, Tq, D), (B, Hkv, Tk, D)
    Tq, Tk = q.shape[2], k.shape[2]
    for t in range(max(Tq, Tk) if causal else Tk + Tq):
        now = slice(t, t + 1)  # (B, H, 1, n) of one position; without causal the queries come after all keys
        if t < Tk:
            # 2. write: the outer product of key and value
            past = add_keys(past, k[:, :, now], v[:, :, now])
        if causal or t >= Tk:
            # 3. read: what the query finds, and how much of it
            now = now if causal else slice(t - Tk, t - Tk + 1)
            totals[:, :, now] = read_state(q[:, :, now], past.state)  # (B, Hq, 1, Dv)
            weights[:, :, now] = read_norm(q[:, :, now], past.norm)  # (B, Hq, 1)

    # 4. normalise: a query that finds nothing is 0
    return LinearSteps(divide(totals, weights), past)
