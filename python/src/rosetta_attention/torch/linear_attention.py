"""Linear attention: the softmax gives way to a feature map, and the sums over keys to a state of fixed size.

    output_i = f(q_i)ᵀ S / f(q_i)ᵀ z,   S = state + Σ f(k_j) v_jᵀ,   z = norm + Σ f(k_j),   f(x) = elu(x) + 1

over j <= i when causal, over all j else. This is the parallel form, with a table of similarities; the same
numbers come from a loop over positions (linear_recurrent) and from chunks (linear_chunked).

Letters: B batch, Hq query heads, Hkv key/value heads, Tq and Tk query and key lengths, D head size, Dv head
size of the values.

Source: Katharopoulos et al., "Transformers are RNNs: fast autoregressive transformers with linear attention",
2020, sections 3.2 and 3.3.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..checks import check_linear
from .cast import op
from .heads import group_heads, products, weighted_sum
from .masks import Mask, visible


class LinearState(NamedTuple):
    """All that linear attention remembers of the keys so far."""

    state: Tensor  # (B, Hkv, D, Dv), Σ f(k_j) v_jᵀ
    norm: Tensor  # (B, Hkv, D), Σ f(k_j)


class LinearSteps(NamedTuple):
    """The output of one call, and the state with all its keys in it."""

    output: Tensor  # (B, Hq, Tq, Dv)
    state: LinearState


@op
def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, state: LinearState | None = None
) -> LinearSteps:
    """Attention of `q` (B, Hq, Tq, D) over `k` (B, Hkv, Tk, D) and `v` (B, Hkv, Tk, Dv): (B, Hq, Tq, Dv).

    causal: query i sees keys 0 .. i, and all in the state; then Tq = Tk. state: of earlier keys; None = none.
    A row whose denominator is 0 is 0. Raises ShapeMismatch, DtypeMismatch, InvalidConfig.
    """
    check_linear("linear_attention", q, k, v, causal=causal, state=state)
    B, Hq, Tq, _ = q.shape
    Tk = k.shape[2]
    past = empty_state(k, v) if state is None else state

    # 1. feature map: positive, so that similarities are
    q, k = feature_map(q), feature_map(k)  # (B, Hq, Tq, D), (B, Hkv, Tk, D)

    # 2. similarities: in place of the exponentials of scores
    similarities = products(q, k)  # (B, Hq, Tq, Tk)

    # 3. mask: by selection, so that a later key is not read
    shown = visible(Mask(causal=causal), B, Hq, Tq, Tk, device=q.device)  # (B, Hq, Tq, Tk)
    similarities = torch.where(shown, similarities, 0)

    # 4. weighted sum: of the values here, and of those in the state
    total = weighted_sum(similarities, v, shown) + read_state(q, past.state)  # (B, Hq, Tq, Dv)
    weight = similarities.sum(dim=-1) + read_norm(q, past.norm)  # (B, Hq, Tq)

    # 5. normalise: the similarities of a row sum to 1
    output = divide(total, weight)  # (B, Hq, Tq, Dv)

    # 6. state: with all keys in it
    return LinearSteps(output, add_keys(past, k, v))


def feature_map(x: Tensor) -> Tensor:
    """elu(x) + 1: x + 1 above 0, e^x below; torch's elu takes 1 from e^x first, and so loses its digits."""
    return torch.where(x > 0, x + 1, torch.exp(x.clamp(max=0)))


def empty_state(k: Tensor, v: Tensor) -> LinearState:
    """The state before any key: zeros."""
    B, Hkv, _, D = k.shape
    return LinearState(k.new_zeros(B, Hkv, D, v.shape[3]), k.new_zeros(B, Hkv, D))


def add_keys(past: LinearState, features: Tensor, v: Tensor) -> LinearState:
    """The state with keys, already mapped, and their values added: (B, Hkv, T, D), (B, Hkv, T, Dv)."""
    return LinearState(past.state + features.transpose(2, 3) @ v, past.norm + features.sum(dim=2))


def read_state(q: Tensor, state: Tensor) -> Tensor:
    """qᵀ S with the state of each query head's group: (B, Hq, T, Dv)."""
    B, Hq, T, _ = q.shape
    output = group_heads(q, state.shape[1]) @ state[:, :, None]  # (B, Hkv, G, T, Dv)
    return output.reshape(B, Hq, T, state.shape[3])


def read_norm(q: Tensor, norm: Tensor) -> Tensor:
    """qᵀ z with the norm of each query head's group: (B, Hq, T)."""
    return read_state(q, norm[..., None])[..., 0]


def divide(total: Tensor, weight: Tensor) -> Tensor:
    """total / weight, 0 where there is no weight: (..., Dv), (...)."""
    nothing = (weight == 0)[..., None]  # (..., 1)
    return torch.where(nothing, 0, total / torch.where(nothing, 1, weight[..., None]))
