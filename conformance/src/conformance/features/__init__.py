"""What a case asks of a port, and what it costs: read off its config and inputs, so that no author can forget one.

The names are those of docs/protocol.md, which a port claims in its answer to `start`.
"""

from collections.abc import Callable, Sequence

from ..tensors import is_float
from .arguments import Config, Tensors
from .attention import (
    mha_features,
    mha_flops,
    sdpa_features,
    sdpa_flops,
    softmax_features,
    softmax_flops,
)
from .blocks import (
    block_features,
    block_flops,
    cache_write_features,
    cache_write_flops,
    gelu_features,
    gelu_flops,
    layer_norm_features,
    mla_features,
    mla_flops,
    norm_flops,
    rms_norm_features,
    swiglu_features,
    swiglu_flops,
    transformer_features,
    transformer_flops,
)
from .kv_cache import cache_features, cache_flops
from .linear import (
    gated_linear_features,
    gated_linear_flops,
    linear_attention_features,
    linear_attention_flops,
    sparse_features,
    sparse_flops,
    structured_features,
    structured_flops,
)
from .parts import (
    cast_features,
    cast_flops,
    dropout_features,
    dropout_flops,
    merge_features,
    merge_flops,
    scoring_features,
    scoring_flops,
    varlen_features,
    varlen_flops,
)
from .positions import (
    alibi_features,
    alibi_flops,
    relative_bias_features,
    relative_bias_flops,
    rope_features,
    rope_flops,
    sinusoidal_features,
    sinusoidal_flops,
)

# Per op: its features beside the outputs, which count as features of their own; and its floating point operations.
FEATURES: dict[str, Callable[[Config, Tensors], set[str]]] = {
    "softmax": softmax_features,
    "sdpa": sdpa_features,
    "mha": mha_features,
    "cast": cast_features,
    "sinusoidal": sinusoidal_features,
    "rope": rope_features,
    "alibi": alibi_features,
    "relative_bias": relative_bias_features,
    "scoring": scoring_features,
    "merge": merge_features,
    "varlen": varlen_features,
    "dropout": dropout_features,
    "linear_attention": linear_attention_features,
    "gated_linear": gated_linear_features,
    "sparse": sparse_features,
    "structured": structured_features,
    "layer_norm": layer_norm_features,
    "rms_norm": rms_norm_features,
    "gelu": gelu_features,
    "swiglu": swiglu_features,
    "cache_write": cache_write_features,
    "mla": mla_features,
    "block": block_features,
    "transformer": transformer_features,
}
FLOPS: dict[str, Callable[[Config, Tensors], int]] = {
    "softmax": softmax_flops,
    "sdpa": sdpa_flops,
    "mha": mha_flops,
    "cast": cast_flops,
    "sinusoidal": sinusoidal_flops,
    "rope": rope_flops,
    "alibi": alibi_flops,
    "relative_bias": relative_bias_flops,
    "scoring": scoring_flops,
    "merge": merge_flops,
    "varlen": varlen_flops,
    "dropout": dropout_flops,
    "linear_attention": linear_attention_flops,
    "gated_linear": gated_linear_flops,
    "sparse": sparse_flops,
    "structured": structured_flops,
    "layer_norm": norm_flops,
    "rms_norm": norm_flops,
    "gelu": gelu_flops,
    "swiglu": swiglu_flops,
    "cache_write": cache_write_flops,
    "mla": mla_flops,
    "block": block_flops,
    "transformer": transformer_flops,
}


def features(op: str, config: Config, inputs: Tensors, want: Sequence[str]) -> list[str]:
    """The features of the op that a port must claim before it is asked this."""
    if op == "kv_cache":
        return sorted(cache_features(config, inputs))
    return sorted({name for name in want if name != "output"} | FEATURES[op](config, inputs))


def cost(
    op: str, config: Config, inputs: Tensors, outputs: Tensors, codes: Sequence[str] | None = None
) -> tuple[int, int]:
    """Floating point operations (a multiply-add is two; causal counts what is visible) and bytes moved, in f32."""
    moved = sum(x.size * (4 if is_float(x) else x.itemsize) for x in (*inputs.values(), *outputs.values()))
    if op == "kv_cache":
        return cache_flops(config, inputs, codes), moved
    return FLOPS[op](config, inputs), moved
