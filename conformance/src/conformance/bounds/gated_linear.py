"""The bound of the gated rules: a linear recurrence, whose rounding errors travel as the state itself does.

S_t = A_t S_(t-1) + b k_t vᵀ_t with A_t = (I - b k_t kᵀ_t) diag(e^g_t); without a decay, or a correction, its part of
A_t is the identity. The computed state obeys the same recurrence with a rounding error d_t added in each step, so it
is off by the sum over s <= t of A_t ··· A_(s+1) d_s: the products are known, only |d_s| is bounded. (Adding |A_t| times
the last bound instead would let it double in every step, though the recurrence itself never grows for |k| = 1.)
"""

import math
from typing import Any

import numpy as np

from ..tensors import Tensors
from .arithmetic import Arithmetic, Bounded, transpose
from .attention import SCALE_ROUNDINGS
from .elementwise import exp, multiply, subtract

# What an element of the state passes through in one step beside the exponential and the sum over D of kᵀS: the product
# with the decay, the difference to v, 2 for b, 2 for the product with k, the addition; and 1 for what the exponential's
# own error and all of these gain from each other.
STEP_ROUNDINGS = 8


def bound_gated_linear(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op gated_linear."""
    q, k, v = (arithmetic.exact(inputs[name]) for name in ("q", "k", "v"))
    B, Hq, T, D = q.value.shape
    _, Hkv, _, Dv = v.value.shape
    group = Hq // max(Hkv, 1)
    scale = 1 / math.sqrt(D) if config.get("scale") is None else config["scale"]
    output = np.zeros((B, Hq, T, Dv))
    state = arithmetic.exact(inputs.get("state", np.zeros((B, Hkv, D, Dv))))
    propagators: list[np.ndarray] = []  # of the error of step s to now, (B, Hkv, D, D)
    local: list[np.ndarray] = []  # |d_s|, (B, Hkv, D, Dv)
    for t in range(T):
        transition, value, rounding = _step(arithmetic, config, inputs, state, k, v, t)
        propagators = [transition @ earlier for earlier in propagators]
        propagators.append(np.broadcast_to(np.eye(D), transition.shape))
        local.append(rounding)
        error = np.zeros_like(value)
        for product, size in zip(propagators, local, strict=True):
            error = error + np.abs(product) @ size
        state = Bounded(value, error)
        held = Bounded(*(np.repeat(part, group, axis=1) for part in state))
        query = arithmetic.scale(Bounded(*(part[:, :, t : t + 1] for part in q)), scale)
        output[:, :, t] = arithmetic.matmul(query, held, SCALE_ROUNDINGS).error[:, :, 0]
    return {"output": output, "state": state.error}


def _step(
    arithmetic: Arithmetic,
    config: dict[str, Any],
    inputs: Tensors,
    state: Bounded,
    k: Bounded,
    v: Bounded,
    t: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The transition A_t, the exact S_t, and the rounding of this step alone."""
    rule = config.get("rule") or "linear"
    key, value = (
        Bounded(*(part[:, :, t, :, None] for part in x)) for x in (k, v)
    )  # (B, Hkv, D, 1), (…, Dv, 1)
    value = transpose(value)
    B, Hkv, D, _ = key.value.shape
    transition = np.broadcast_to(np.eye(D), (B, Hkv, D, D))
    # The state as it stands counts as exact: its own error is what the transition carries on.
    held = Bounded(state.value, np.zeros_like(state.error))
    # What the rounding of this step gains by the computed state being larger than S, of second order.
    carried = state.error
    if "gated" in rule:
        log_decay = arithmetic.exact(np.broadcast_to(inputs["decay"][:, :, t, :, None], (B, Hkv, D, 1)))
        factor = exp(arithmetic, log_decay)
        # exact() takes -inf for 0: a channel that forgets everything.
        forgets = np.broadcast_to(inputs["decay"][:, :, t, :, None] == -np.inf, (B, Hkv, D, 1))
        factor = Bounded(*(np.where(forgets, 0, part) for part in factor))
        transition = factor.value * transition
        held = multiply(arithmetic, held, factor)
        carried = factor.value * carried
    update = value
    if "delta" in rule:
        beta = arithmetic.exact(np.broadcast_to(inputs["beta"][:, :, t, :, None], (B, Hkv, 1, 1)))
        key_t = transpose(key)
        update = subtract(arithmetic, value, arithmetic.matmul(key_t, held))
        update = multiply(arithmetic, update, beta, 2)
        transition = transition - beta.value * key.value @ (key_t.value @ transition)
        carried = carried + np.abs(beta.value * key.value) @ (np.abs(key_t.value) @ carried)
    written = multiply(arithmetic, key, update, 2)
    after = arithmetic.add(held, written)
    second_order = (arithmetic.elementary + arithmetic.gamma(D + STEP_ROUNDINGS)) * carried
    return transition, after.value, after.error + second_order
