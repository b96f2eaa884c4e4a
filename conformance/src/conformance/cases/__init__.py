"""The cases, a module a subject. A suite is a name and the drafts that belong to it."""

from collections.abc import Iterator

from . import (
    bench,
    kv_cache,
    kv_cache_failures,
    mha,
    sdpa_errors,
    sdpa_examples,
    sdpa_poison,
    sdpa_rules,
    sdpa_sizes,
    softmax,
)
from .draft import Draft

SUITES = {
    "softmax": (softmax,),
    "sdpa": (sdpa_examples, sdpa_rules, sdpa_poison, sdpa_sizes, sdpa_errors),
    "mha": (mha,),
    "kv_cache": (kv_cache, kv_cache_failures),
    "bench": (bench,),
}


def drafts(suite: str) -> Iterator[Draft]:
    """Every case of the suite, in the order of its modules."""
    for module in SUITES[suite]:
        yield from module.drafts()
