"""Positions: sinusoidal, rope, alibi, relative_bias."""

from ..ask import Ask, Op, Plan
from ..config import refuse_both, rope_option
from ..errors import InvalidConfig
from ..read import boolean, integer, number, pick


def sinusoidal(ask: Ask) -> Plan:
    """A table is added."""
    (x,) = ask.due("x")
    options = ask.some("positions") | pick(ask.config, offset=integer, base=number, halves=boolean)
    refuse_both("offset", ask.config.get("offset"), options.get("positions"))
    return Plan(
        ("output", "table"),
        lambda: ask.api.sinusoidal_steps(x, **options),
        lambda: ask.api.sinusoidal(x, **options),
    )


def rope(ask: Ask) -> Plan:
    """Pairs of channels are rotated, perhaps by tables."""
    (x,) = ask.due("x")
    tables = dict(zip(("cos", "sin"), ask.due("cos", "sin"), strict=True)) if _has_table(ask) else {}
    for name in ("base", "scaling"):
        if tables and ask.config.get(name) is not None:
            raise InvalidConfig(f"{name}: expected none beside tables, got {ask.config[name]}")
    options = tables | ask.some("positions")
    refuse_both("offset", ask.config.get("offset"), options.get("positions"))
    turn = rope_option(ask.library, ask.config)
    return Plan(
        ("output", "cos", "sin"),
        lambda: ask.api.rope_steps(x, turn, **options),
        lambda: ask.api.rope(x, turn, **options),
    )


def _has_table(ask: Ask) -> bool:
    """Whether there is one; then both are due."""
    return "cos" in ask.tensors or "sin" in ask.tensors


def alibi(ask: Ask) -> Plan:
    """A slope a head."""
    (scores,) = ask.due("scores")
    options = pick(ask.config, q_offset=integer)
    return Plan(
        ("output", "slopes", "bias"),
        lambda: ask.api.alibi_steps(scores, **options),
        lambda: ask.api.alibi(scores, **options),
    )


def relative_bias(ask: Ask) -> Plan:
    """A number a bucket and head."""
    scores, table = ask.due("scores", "table")
    options = pick(ask.config, q_offset=integer, bidirectional=boolean, max_distance=integer)
    return Plan(
        ("output", "buckets"),
        lambda: ask.api.relative_bias_steps(scores, table, **options),
        lambda: ask.api.relative_bias(scores, table, **options),
    )


OPS = {
    "sinusoidal": Op(("output", "table"), sinusoidal),
    "rope": Op(("output", "cos", "sin"), rope),
    "alibi": Op(("output", "slopes", "bias"), alibi),
    "relative_bias": Op(("output", "buckets"), relative_bias),
}
