"""Linear attention in chunks: parallel inside each chunk, recurrent from one to the next.

    output_i = (Σ f(q_i)·f(k_j) v_j over j <= i in the chunk + f(q_i)ᵀ S) / (the same without v),  S before it

What changes from linear_attention: the table of similarities is chunk x chunk, so work grows with T · chunk; from
linear_recurrent: a chunk at a time is matrix products. Training and prefill go this way.

Letters: B batch, Hq query heads, Hkv key/value heads, Tq and Tk query and key lengths, D head size, Dv head
size of the values, c positions of one chunk.

Source: Hua et al., "Transformer quality in linear time", 2022, section 3.2.
"""

import numpy as np

from .arrays import Array
from .cast import op
from .checks import Call, check_linear
from .heads import products, weighted_sum
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
def linear_chunked(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    state: LinearState | None = None,
    chunk: int = 64,
) -> LinearSteps:
    """`linear_attention` in chunks of `chunk` positions, at least 1; same arguments, results and errors.

    Not causal: all keys are in the state before the first chunk of queries reads it.
    """
    check_linear("linear_chunked", q, k, v, causal=causal, state=state)
    Call("linear_chunked").integer("chunk", chunk, 1)
    past = empty_state(k, v) if state is None else state
    output = np.empty((*q.shape[:3], v.shape[3]), q.dtype)  # (B, Hq, Tq, Dv)

    # 1. feature map: of every query and key
    q, k = feature_map(q), feature_map(k)  # (B, Hq, Tq, D), (B, Hkv, Tk, D)
    past = past if causal else add_keys(past, k, v)  # not causal: every key is before every query

    # 2. chunk: the next c positions; the last chunk may be shorter
    for start in range(0, q.shape[2], chunk):
        now = slice(start, start + chunk)
        q_c, k_c, v_c = q[:, :, now], k[:, :, now], v[:, :, now]  # (B, H, c, n)

        # 3. inside: the keys of this chunk that do not come after the query
        similarities = products(q_c, k_c)  # (B, Hq, c, c)
        shown = np.tril(np.full(similarities.shape, causal))  # (B, Hq, c, c)
        similarities = np.where(shown, similarities, 0)
        total = weighted_sum(similarities, v_c, shown)  # (B, Hq, c, Dv)
        weight = np.sum(similarities, axis=-1)  # (B, Hq, c)

        # 4. before: the keys of all earlier chunks, out of the state
        total = total + read_state(q_c, past.state)  # (B, Hq, c, Dv)
        weight = weight + read_norm(q_c, past.norm)  # (B, Hq, c)

        # 5. normalise: a query that finds nothing is 0
        output[:, :, now] = divide(total, weight)

        # 6. carry: the keys of this chunk are before those of the next
        past = add_keys(past, k_c, v_c) if causal else past
    return LinearSteps(output, past)
