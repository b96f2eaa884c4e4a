"""The gated rules without a running state: every key that was written reaches every later query by itself.

What key j wrote, u_j, is seen by query i through the decay of the steps between them. The delta rules solve for u_j
against what all earlier keys hold at k_j.
"""

import math
from typing import Any

import numpy as np

from ..tensors import Tensors


def answer_gated_linear(config: dict[str, Any], inputs: Tensors) -> Tensors:
    """output, and the state after the last step."""
    q, k, v = (inputs[name].astype(np.float64) for name in ("q", "k", "v"))
    B, Hq, T, D = q.shape
    _, Hkv, _, Dv = v.shape
    group = Hq // max(Hkv, 1)
    rule = config.get("rule") or "linear"
    scale = 1 / math.sqrt(D) if config.get("scale") is None else config["scale"]
    decay = np.broadcast_to(inputs.get("decay", np.zeros(1)).astype(np.float64), (B, Hkv, T, D))
    beta = np.broadcast_to(inputs.get("beta", np.ones(1)).astype(np.float64), (B, Hkv, T, 1))
    first = inputs.get("state", np.zeros((B, Hkv, D, Dv))).astype(np.float64)

    output, state = np.zeros((B, Hq, T, Dv)), np.zeros((B, Hkv, D, Dv))
    for b, g in np.ndindex(B, Hkv):
        keys, log_decay = k[b, g], decay[b, g]

        def left(since: int, now: int, log_decay: np.ndarray = log_decay) -> np.ndarray:
            """What the decay of the steps since + 1 .. now leaves, channel by channel (D,)."""
            return np.asarray(np.exp(log_decay[since + 1 : now + 1].sum(axis=0)))

        written: list[np.ndarray] = []
        for j in range(T):
            u = v[b, g, j]
            if "delta" in rule:
                held = (keys[j] * left(-1, j)) @ first[b, g]
                for earlier, old in enumerate(written):
                    held = held + float(keys[j] @ (left(earlier, j) * keys[earlier])) * old
                u = beta[b, g, j] * (u - held)
            written.append(u)
        for h in range(g * group, (g + 1) * group):
            for i in range(T):
                query = q[b, h, i] * scale
                output[b, h, i] = (query * left(-1, i)) @ first[b, g]
                for j in range(i + 1):
                    output[b, h, i] += float(query @ (left(j, i) * keys[j])) * written[j]
        state[b, g] = left(-1, T - 1)[:, None] * first[b, g]
        for j in range(T):
            state[b, g] += np.outer(left(j, T - 1) * keys[j], written[j])
    return {"output": output, "state": state}
