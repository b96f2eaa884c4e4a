"""A long chain of stages, whose errors travel as small changes do.

To hand each stage the interval of the last one is safe, and useless after a few norms: every stage assumes the worst
of all errors at once. Here each stage runs on exact values, so its bound is that of its own roundings alone, and what
becomes of them is told by derivatives: with J_k the Jacobian of stage k and d_k its own error, the result is off by

    Σ_k |J_n ··· J_(k+1)| d_k     (Higham, section 3.5: backward through a chain; exact to first order in u).

The products are taken before the absolute values, so what cancels in the chain cancels in the bound. The Jacobians are
central differences in float64, off by a share of about 1e-9; what is of second order in u is a share of about d itself.
"""

from collections.abc import Callable, Sequence

import numpy as np

from .arithmetic import Bounded

STEP = 1e-6  # of the central differences: the rounding of float64 over it, and its square, are far below the bound

# A state (R, T, n) and, for each of its R rows, which row of the batch it belongs to, to the next state (R, T, m).
Stage = Callable[[Bounded, np.ndarray], Bounded]


def propagate_stages(stages: Sequence[Stage], x: Bounded) -> Bounded:
    """The state after the last stage, from x (B, T, n)."""
    batch = np.arange(x.value.shape[0])
    state, own, jacobians = x.value, [x.error], []
    for stage in stages:
        after = stage(_certain(state), batch)
        jacobians.append(jacobian(stage, state))
        own.append(after.error)
        state = after.value
    error = _flat(own[-1])
    product = np.eye(error.shape[1])
    for matrix, earlier in zip(reversed(jacobians), reversed(own[:-1]), strict=True):
        product = product @ matrix
        error = error + np.einsum("bij,bj->bi", np.abs(product), _flat(earlier))
    return Bounded(state, error.reshape(state.shape))


def jacobian(stage: Stage, state: np.ndarray) -> np.ndarray:
    """(B, outputs, inputs) of every row: each input is moved up and down alone, in a copy of its row."""
    B, T, n = state.shape
    step = STEP * np.maximum(np.abs(state), 1).reshape(B, T * n)
    moved = np.eye(T * n) * step[:, :, None]  # (B, copy, input)
    rows = np.repeat(np.arange(B), T * n)
    up, down = (
        stage(_certain((state.reshape(B, 1, T * n) + sign * moved).reshape(B * T * n, T, n)), rows).value
        for sign in (1, -1)
    )
    slopes = (up - down).reshape(B, T * n, up.shape[1] * up.shape[2]) / (2 * step[:, :, None])
    return np.swapaxes(slopes, 1, 2)


def _certain(x: np.ndarray) -> Bounded:
    return Bounded(x, np.zeros_like(x))


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2])
