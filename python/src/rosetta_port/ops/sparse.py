"""Sparse attention over a pattern."""

from typing import Any

from ..ask import Ask, Op, Plan
from ..config import pattern_option
from ..errors import InvalidRequest
from ..read import boolean, number, pick


def sparse(ask: Ask) -> Plan:
    """Only the pairs that the pattern shows are scored."""
    if ask.config.get("pattern") is None:
        raise InvalidRequest("config: expected pattern, got none")
    q, k, v = ask.due("q", "k", "v")
    pattern = pattern_option(ask.library, ask.config["pattern"], ask.tensors)
    causal = pick(ask.config, causal=boolean)
    options = causal | pick(ask.config, scale=number)

    def everything() -> tuple[Any, ...]:
        steps = ask.api.sparse_steps(q, k, v, pattern, **options)
        return (*steps, ask.api.sparse_mask(pattern, q.shape[2], k.shape[2], **causal))

    return Plan(
        ("output", "lse", "visited", "mask"), everything, lambda: ask.api.sparse(q, k, v, pattern, **options)
    )


OPS = {"sparse": Op(("output", "lse", "visited", "mask"), sparse)}
