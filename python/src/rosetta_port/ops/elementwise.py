"""Types, dropout, norms, activations, and the plain write into a cache."""

from ..ask import Ask, Op, Plan, single
from ..read import boolean, due, integer, number, pick, text


def cast(ask: Ask) -> Plan:
    """Another float type."""
    to = due(ask.config, to=text)["to"]
    (x,) = ask.due("x")
    return single(lambda: ask.api.cast(x, to))


def dropout(ask: Ask) -> Plan:
    """Elements are dropped by index and seed."""
    options = ask.api.Dropout(**due(ask.config, p=number, seed=integer))
    (x,) = ask.due("x")
    offset = pick(ask.config, offset=integer)
    return Plan(
        ("output", "keep"),
        lambda: ask.api.dropout_steps(x, options, **offset),
        lambda: ask.api.dropout(x, options, **offset),
    )


def layer_norm(ask: Ask) -> Plan:
    """Mean 0, variance 1."""
    (x,) = ask.due("x")
    options = ask.some("weight", "bias") | pick(ask.config, eps=number)
    return Plan(
        ("output", "mean", "inv_std"),
        lambda: ask.api.layer_norm_steps(x, **options),
        lambda: ask.api.layer_norm(x, **options),
    )


def rms_norm(ask: Ask) -> Plan:
    """Root mean square 1."""
    (x,) = ask.due("x")
    options = ask.some("weight") | pick(ask.config, eps=number)
    return single(lambda: ask.api.rms_norm(x, **options))


def gelu(ask: Ask) -> Plan:
    """Exact, or by tanh."""
    (x,) = ask.due("x")
    options = pick(ask.config, approximate=text)
    return single(lambda: ask.api.gelu(x, **options))


def swiglu(ask: Ask) -> Plan:
    """A gate times its partner."""
    a, b = ask.due("a", "b")
    options = pick(ask.config, alpha=number)
    return single(lambda: ask.api.swiglu(a, b, **options))


def cache_write(ask: Ask) -> Plan:
    """New positions over old ones."""
    arrays = ask.due("cache", "update")
    options = ask.some("write_indices") | pick(ask.config, circular=boolean)
    return single(lambda: ask.api.cache_write(*arrays, **options))


OPS = {
    "cast": Op(("output",), cast),
    "dropout": Op(("output", "keep"), dropout),
    "layer_norm": Op(("output", "mean", "inv_std"), layer_norm),
    "rms_norm": Op(("output",), rms_norm),
    "gelu": Op(("output",), gelu),
    "swiglu": Op(("output",), swiglu),
    "cache_write": Op(("output",), cache_write),
}
