"""Weights and masks of `torch.nn.MultiheadAttention`, which says some things the other way round.

    state dict         in_proj_weight (3E, E), in_proj_bias, out_proj.weight, out_proj.bias; with kdim or vdim of
                       their own, q_proj_weight (E, E), k_proj_weight (E, kdim), v_proj_weight (E, vdim)
    attn_mask          bool (Tq, Tk) or (B·H, Tq, Tk), True = *ignore*
    key_padding_mask   bool (B, Tk), True = *ignore*

Both functions take NumPy arrays: `{name: x.numpy() for name, x in module.state_dict().items()}`.
"""

from collections.abc import Mapping

import numpy as np

from .arrays import Array, BoolArray
from .checks import Call
from .errors import Unsupported
from .mha import MultiHeadAttention


def from_torch_state_dict(state: Mapping[str, Array], num_heads: int) -> MultiHeadAttention:
    """The layer with these weights. Raises Unsupported for bias_k and bias_v, InvalidConfig for missing names,
    ShapeMismatch for packed ones that are not three equal parts.
    """
    for name in ("bias_k", "bias_v"):
        if name in state:
            raise Unsupported(name)  # add_bias_kv: one more key and value, which no projection makes
    call = Call("from_torch_state_dict")
    due = ["out_proj.weight"]
    due += ["in_proj_weight"] if "in_proj_weight" in state else [f"{part}_proj_weight" for part in "qkv"]
    for name in due:
        call.config(name in state, name, "a weight of that name", sorted(state))
    if "in_proj_weight" in state:
        call.rank("in_proj_weight", state["in_proj_weight"], "(3E, E)")
        w_q, w_k, w_v = _thirds(call, "in_proj_weight", state["in_proj_weight"])
    else:
        w_q, w_k, w_v = (state[f"{part}_proj_weight"] for part in "qkv")
    b_q = b_k = b_v = None
    if "in_proj_bias" in state:
        call.rank("in_proj_bias", state["in_proj_bias"], "(3E,)")
        b_q, b_k, b_v = _thirds(call, "in_proj_bias", state["in_proj_bias"])
    return MultiHeadAttention(
        w_q=w_q,
        w_k=w_k,
        w_v=w_v,
        w_o=state["out_proj.weight"],
        num_heads=num_heads,
        b_q=b_q,
        b_k=b_k,
        b_v=b_v,
        b_o=state.get("out_proj.bias"),
    )


def _thirds(call: Call, name: str, x: Array) -> list[Array]:
    """What is for queries, for keys and for values."""
    call.shape(x.shape[0] % 3 == 0, name, "three equal parts, of q, k and v", f"{x.shape[0]} rows")
    return np.split(x, 3)


def keep_from_torch(
    attn_mask: BoolArray | None, key_padding_mask: BoolArray | None, num_heads: int
) -> BoolArray | None:
    """The two masks as one for Mask.keep, True = attend, broadcastable to (B, Hq, Tq, Tk); None without any.

    Raises DtypeMismatch, ShapeMismatch; InvalidConfig for num_heads.
    """
    call = Call("keep_from_torch")
    call.integer("num_heads", num_heads, 1)
    ignore: BoolArray | None = None
    if attn_mask is not None:
        call.dtype("attn_mask", attn_mask, "bool")
        rank = attn_mask.ndim
        call.shape(rank in (2, 3), "attn_mask", "rank 2 (Tq, Tk) or 3 (B·H, Tq, Tk)", f"rank {rank}")
        if rank == 3:
            rows, Tq, Tk = attn_mask.shape
            call.shape(rows % num_heads == 0, "attn_mask", f"a multiple of {num_heads} heads", f"{rows} rows")
            ignore = attn_mask.reshape(rows // num_heads, num_heads, Tq, Tk)  # (B, H, Tq, Tk)
        else:
            ignore = attn_mask  # (Tq, Tk)
    if key_padding_mask is not None:
        call.dtype("key_padding_mask", key_padding_mask, "bool")
        call.rank("key_padding_mask", key_padding_mask, "(B, Tk)")
        padding = key_padding_mask[:, None, None, :]  # (B, 1, 1, Tk)
        if ignore is not None:
            B = ignore.shape[0] if ignore.ndim == 4 else padding.shape[0]
            call.has_shape("key_padding_mask", key_padding_mask, (B, ignore.shape[-1]))
        ignore = padding if ignore is None else ignore | padding
    return None if ignore is None else ~ignore
