"""What a library may claim, op by op: each op, variant and feature that its api has a name for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ATTENTION = ["causal", "q_offset", "q_offset_tensor", "window", "mask", "bias", "softcap", "scale"]
SCRIPT = [
    "contiguous",
    "grow",
    "append",
    "append_lengths",
    "attend",
    "attend_lse",
    "truncate",
    "reset",
    "read",
    "untimed",
]
LATER = ["dropout", "rope", "positions", "qk_norm", "packed", "head_mask", "mean_weights"]
BLOCK = [
    "causal",
    "kv_lengths",
    "rope",
    "gqa",
    "qk_norm",
    "rms",
    "post_norm",
    "gelu_tanh",
    "relu",
    "swiglu",
    "biases",
]
TABLES = ["position_embedding", "segments", "embedding_norm", "final_norm", "unembedding"]
SPARSE = ["causal", "scale", "gqa", "value_dim", "lse", "mask", "visited"]
MLA = ["causal", "kv_lengths", "scale", "rope", "query_latent", "kv_norm", "q_norm", "value_dim"]
SHAPES = ["gqa", "value_dim"]
CACHES = {
    "KVCache.append_attend": ["append_attend", "append_padding", "rope"],
    "KVCache.slot_positions": ["positions"],
    "KVCache.reorder": ["reorder"],
    "KVCache.fork": ["fork", "drop"],
    "KVCache.evict": ["evict"],
    "KVCache.evict_by": ["evict_window", "evict_heavy_hitters", "evict_snapkv", "evict_key_norm"],
    "KVCache.tracked": ["track", "tracked"],
    "KVCache.held_rope": ["rope_at"],
    "KVCache.shift": ["shift"],
    "KVCache.stats": ["stats"],
    "save": ["save"],
    "load": ["load"],
    "RotatingCache": ["rotating"],
    "PagedCache": ["paged", "tokens"],
    "QuantisedCache": [
        *("quantised", "f16", "bf16", "int8", "int4", "fp8_e4m3"),
        *("zero_point", "group", "codes"),
    ],
    "KiviCache": ["key_groups"],
    "PerHeadCache": ["per_head", "budget_list"],
    "LatentCache": ["latent"],
    "CrossCache": ["cross"],
}


@dataclass(frozen=True)
class Claim:
    """needs: the name in the api without which there is no such op.

    more: features that take a further name in the api. complete: variants that are held to all features, and
    the name of each.
    """

    needs: str
    features: list[str]
    more: Mapping[str, list[str]] = field(default_factory=dict)
    complete: Mapping[str, str] = field(default_factory=dict)


CLAIMS = {
    "softmax": Claim("softmax", ["lse"]),
    "sdpa": Claim(
        "sdpa",
        [*ATTENTION, *SHAPES, "kv_lengths", "sinks", "weights", "lse", "scores", "capped", "biased"],
        {"Dropout": ["dropout"]},
        {"flash": "flash", "split": "split_kv"},
    ),
    "mha": Claim(
        "MultiHeadAttention",
        [*ATTENTION, *SHAPES, "kv_lengths", "context", "projection_bias", "weights", "lse"],
        {"MultiHeadAttention.packed": LATER},
    ),
    "kv_cache": Claim("KVCache", [*ATTENTION, *SHAPES, *SCRIPT], CACHES),
    "cast": Claim("cast", ["f16", "bf16", "f32", "f64"]),
    "sinusoidal": Claim("sinusoidal", ["positions", "offset", "base", "halves", "table"]),
    "rope": Claim(
        "rope",
        ["positions", "offset", "base", "interleaved", "rotary_dim", "tables", "cos", "sin"],
        {
            "LinearScaling": ["linear"],
            "DynamicScaling": ["dynamic"],
            "YarnScaling": ["yarn"],
            "Llama3Scaling": ["llama3"],
            "LongRopeScaling": ["longrope"],
        },
    ),
    "alibi": Claim("alibi", ["q_offset", "slopes", "bias"]),
    "relative_bias": Claim("relative_bias", ["q_offset", "unidirectional", "max_distance", "buckets"]),
    "scoring": Claim("scoring", ["additive", "dot", "general", "scaled", "kv_lengths", "weights", "scores"]),
    "merge": Claim("merge", ["lse"]),
    "varlen": Claim(
        "varlen", ["causal", "q_offset", "q_offset_tensor", "window", "softcap", "scale", *SHAPES, "lse"]
    ),
    "dropout": Claim("dropout", ["offset", "keep"]),
    "linear_attention": Claim(
        "linear_attention",
        ["causal", "state_in", *SHAPES, "state", "norm"],
        {},
        {"recurrent": "linear_recurrent", "chunked": "linear_chunked"},
    ),
    "gated_linear": Claim(
        "gated_linear", ["gated", "delta", "gated_delta", "state_in", "scale", *SHAPES, "state"]
    ),
    "sparse": Claim(
        "sparse",
        SPARSE,
        {
            "Window": ["window"],
            "Dilated": ["dilated"],
            "Strided": ["strided"],
            "Fixed": ["fixed"],
            "Global": ["global"],
            "BigBird": ["bigbird"],
            "Blocks": ["blocks"],
        },
    ),
    "structured": Claim("structured", ["kv_lengths", "weights", "penalty"]),
    "mla": Claim(
        "MultiHeadLatentAttention",
        [*MLA, "weights", "lse", "latent", "rope_key"],
        {},
        {"absorbed": "MultiHeadLatentAttention.absorbed"},
    ),
    "layer_norm": Claim("layer_norm", ["weight", "bias", "eps", "mean", "inv_std"]),
    "rms_norm": Claim("rms_norm", ["weight", "eps"]),
    "gelu": Claim("gelu", ["tanh"]),
    "swiglu": Claim("swiglu", ["alpha"]),
    "block": Claim("Block", [*BLOCK, "context", "context_lengths"]),
    "transformer": Claim("Transformer", [*BLOCK, *TABLES, "logits"]),
    "cache_write": Claim("cache_write", ["write_indices", "circular"]),
}


def claims(api: Any, dtypes: list[str], variants: Mapping[str, list[str]]) -> dict[str, dict[str, list[str]]]:
    """The field `ops` of the answer to `start`. variants: by op, those that no name in the api stands for."""
    found = {}
    for op, claim in CLAIMS.items():
        if not _has(api, claim.needs):
            continue
        complete = [variant for variant, name in claim.complete.items() if _has(api, name)]
        more = [feature for name, features in claim.more.items() if _has(api, name) for feature in features]
        found[op] = {
            "variants": ["naive", *complete, *variants.get(op, [])],
            "dtypes": dtypes,
            "features": [*claim.features, *more],
        }
        if complete:
            found[op]["complete"] = complete
    return found


def _has(api: Any, path: str) -> bool:
    """Whether the api has this name, perhaps one within another."""
    for name in path.split("."):
        if not hasattr(api, name):
            return False
        api = getattr(api, name)
    return callable(api) or isinstance(api, property)
