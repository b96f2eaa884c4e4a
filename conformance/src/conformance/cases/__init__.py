"""The cases, a module a subject. A suite is a name and the drafts that belong to it."""

from collections.abc import Iterator

from . import (
    activations,
    bench,
    biases,
    block,
    cache_write,
    caches_key_groups,
    caches_latent,
    caches_moves,
    caches_paged,
    caches_per_head,
    caches_policies,
    caches_policy_errors,
    caches_prefix,
    caches_quantised,
    caches_rotating,
    caches_steps,
    caches_tracked,
    cast,
    dropout,
    dropout_sdpa,
    flash,
    gated_linear,
    kv_cache,
    kv_cache_failures,
    kv_cache_half,
    linear_attention,
    merge,
    mha,
    mha_options,
    mla,
    norms,
    rope,
    rope_scaling,
    scoring,
    sdpa_blocks,
    sdpa_errors,
    sdpa_examples,
    sdpa_half,
    sdpa_poison,
    sdpa_rules,
    sdpa_sizes,
    sinusoidal,
    softmax,
    softmax_half,
    sparse,
    sparse_errors,
    structured,
    transformer,
    varlen,
)
from .draft import Draft

SUITES = {
    "softmax": (softmax, softmax_half),
    "sdpa": (sdpa_examples, sdpa_rules, sdpa_poison, sdpa_sizes, sdpa_errors, sdpa_half, sdpa_blocks),
    "mha": (mha, mha_options),
    "kv_cache": (
        *(kv_cache, kv_cache_failures, kv_cache_half),
        *(caches_rotating, caches_paged, caches_prefix, caches_quantised),
        *(caches_latent, caches_steps, caches_moves),
        *(caches_policies, caches_policy_errors, caches_tracked, caches_per_head, caches_key_groups),
    ),
    "norms": (norms, activations),
    "cast": (cast,),
    "dropout": (dropout, dropout_sdpa),
    "linear": (linear_attention, gated_linear),
    "positions": (sinusoidal, rope, rope_scaling, biases),
    "sparse": (sparse, sparse_errors),
    "structured": (structured,),
    "cache_write": (cache_write,),
    "flash": (flash, merge),
    "varlen": (varlen,),
    "scoring": (scoring,),
    "mla": (mla,),
    "block": (block, transformer),
    "bench": (bench,),
}


def drafts(suite: str) -> Iterator[Draft]:
    """Every case of the suite, in the order of its modules."""
    for module in SUITES[suite]:
        yield from module.drafts()
