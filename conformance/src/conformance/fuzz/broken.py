"""A good question made bad in one way, and the code that must come."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..cases.draft import Draft, Other
from .draws import Chooser

# What no question of the op can do without.
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "softmax": ("x",),
    "sdpa": ("q", "k", "v"),
    "mha": ("x", "w_o"),
    "cast": ("x",),
    "sinusoidal": ("x",),
    "rope": ("x",),
    "alibi": ("scores",),
    "relative_bias": ("scores", "table"),
    "scoring": ("q", "k", "v"),
    "merge": ("a_output", "a_lse", "b_output", "b_lse"),
    "varlen": ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"),
    "dropout": ("x",),
    "linear_attention": ("q", "k", "v"),
    "gated_linear": ("q", "k", "v"),
    "sparse": ("q", "k", "v"),
    "structured": ("h", "w_1", "w_2"),
    "mla": ("x", "w_q", "w_dkv", "w_kr", "w_uk", "w_uv", "w_o"),
    "layer_norm": ("x",),
    "rms_norm": ("x",),
    "gelu": ("x",),
    "swiglu": ("a", "b"),
    "block": ("x", "attention.w_o", "ff.w_1", "ff.w_2", "norm_1.weight"),
    "transformer": ("tokens", "embedding"),
    "cache_write": ("cache", "update"),
}
ANY_RANK = ("softmax", "merge", "dropout", "cast", "layer_norm", "rms_norm", "gelu", "swiglu", "cache_write")
BROADCAST = ("mask", "bias", "head_mask")


def break_one(choose: Chooser, draft: Draft) -> Draft:
    """The question with one fault; the question itself where it has no place for the chosen fault."""
    fault = choose.one_of(["missing", "type", "integers", "rank"])
    inputs = dict(draft.inputs)
    floats = [name for name, x in inputs.items() if x.dtype.kind == "f" and not name.endswith("lse")]
    if fault == "missing":
        del inputs[choose.one_of(REQUIRED[draft.op])]
        return replace(draft, inputs=inputs, error="invalid_request", want=("output",), exact=())
    if fault == "type" and len(floats) > 1:
        name = choose.one_of(floats)
        inputs[name] = Other(inputs[name])
        return replace(draft, inputs=inputs, error="dtype_mismatch", want=("output",), exact=())
    if fault == "integers" and floats:
        name = choose.one_of(floats)
        inputs[name] = np.zeros(inputs[name].shape, np.int64)
        return replace(draft, inputs=inputs, error="dtype_mismatch", want=("output",), exact=())
    ranked = [name for name in inputs if name not in BROADCAST]
    if fault == "rank" and draft.op not in ANY_RANK:
        name = choose.one_of(ranked)
        inputs[name] = inputs[name][None]
        return replace(draft, inputs=inputs, error="shape_mismatch", want=("output",), exact=())
    return draft
