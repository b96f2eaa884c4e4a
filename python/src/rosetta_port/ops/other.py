"""Attention of other kinds: scoring, merge, structured."""

from ..ask import Ask, Op, Plan
from ..read import due, text

# The weights of each score function; an unknown one, and weights of another one, are the library's to refuse.
WEIGHTS = {"additive": ("w_q", "w_k", "w_v"), "general": ("w",)}
ALL_WEIGHTS = [name for names in WEIGHTS.values() for name in names]


def scoring(ask: Ask) -> Plan:
    """A score function before a softmax."""
    form = due(ask.config, form=text)["form"]
    arrays = ask.due("q", "k", "v")
    ask.due(*WEIGHTS.get(form, ()))
    options = ask.some(*ALL_WEIGHTS, "kv_lengths")
    return Plan(
        ("output", "weights", "scores"),
        lambda: ask.api.scoring_steps(form, *arrays, **options),
        lambda: ask.api.scoring(form, *arrays, **options),
    )


def merge(ask: Ask) -> Plan:
    """Two partial results in one."""
    arrays = ask.due("a_output", "a_lse", "b_output", "b_lse")
    return Plan(("output", "lse"), lambda: ask.api.merge(*arrays))


def structured(ask: Ask) -> Plan:
    """A sentence as a few weighted means."""
    arrays = ask.due("h", "w_1", "w_2")
    options = ask.some("kv_lengths")
    return Plan(
        ("output", "weights", "penalty"),
        lambda: ask.api.structured_steps(*arrays, **options),
        lambda: ask.api.structured(*arrays, **options),
    )


OPS = {
    "scoring": Op(("output", "weights", "scores"), scoring),
    "merge": Op(("output", "lse"), merge),
    "structured": Op(("output", "weights", "penalty"), structured),
}
