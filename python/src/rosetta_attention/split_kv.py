"""sdpa with the keys split into parts that are attended apart and merged.

    output, lse = merge over s of attend(q, k[part s], v[part s])

What changes from `flash`: the parts do not wait for each other, so a single query over a long cache, which
has no tiles of queries to share out, can keep many cores busy. Here they run in turn.

Letters: B batch, Hq query heads, Tq query length, Tk key length, Dv head size of the values.

Source: Dao et al., "Flash-Decoding for long-context inference", 2023.
"""

import numpy as np

from .arrays import Array
from .cast import op
from .checks import Call, check_sdpa
from .dropout import Dropout
from .flash import flash_keys
from .masks import UNMASKED, Mask
from .merge import OutputLse, merge


@op
def split_kv(
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
    splits: int = 4,
) -> OutputLse:
    """Output and log-sum-exp of `sdpa`; same arguments and errors.

    splits: into how many consecutive parts the keys are cut, at least 1.
    """
    check_sdpa(
        "split_kv", q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks, dropout=dropout
    )
    Call("split_kv").integer("splits", splits, 1)

    # 1. split: consecutive parts of equal length, give or take a key; more parts than keys would be empty
    Tk = k.shape[2]
    splits = max(min(splits, Tk), 1)
    parts = [slice(Tk * s // splits, Tk * (s + 1) // splits) for s in range(splits)]

    # 2. attend: to each part on its own, without the sinks
    states = [flash_keys(q, k, v, part, mask, bias, scale, softcap, None, dropout) for part in parts]

    # 3. merge: one after the other; any order would do
    output, lse = states[0]  # (B, Hq, Tq, Dv), (B, Hq, Tq)
    for state in states[1:]:
        output, lse = merge(output, lse, *state)

    # 4. sink: a part that has an lse and no value; it counts once, however many parts there are
    if sinks is not None:
        empty = lse == -np.inf  # (B, Hq, Tq)
        sink = np.broadcast_to(sinks[:, None], lse.shape)  # (B, Hq, Tq)
        output, lse = merge(output, lse, np.zeros_like(output), sink)
        output = np.where(empty[..., None], 0, output)  # also where the sink is NaN
    return OutputLse(output, lse)
