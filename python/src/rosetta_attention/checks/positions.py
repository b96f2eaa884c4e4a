"""Positions: sinusoidal tables, rotations with their scalings, ALiBi, relative buckets."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from .call import Call, is_number


def check_positions(call: Call, positions: Any, offset: Any, batch: int, length: int) -> None:
    """positions int64 (B, T) or None; then, and only then, an offset that is not 0."""
    call.integer("offset", offset)
    if positions is not None:
        call.dtype("positions", positions, "int64")
        call.has_shape("positions", positions, (batch, length))
        call.config(offset == 0, "offset", "0 beside positions", offset)


def check_sinusoidal(name: str, x: Any, *, positions: Any, offset: Any, base: Any, halves: Any) -> None:
    """x (B, T, C) with an even C."""
    call = Call(name)
    call.floats(x=x)
    call.rank("x", x, "(B, T, C)")
    B, T, C = x.shape
    call.shape(C % 2 == 0, "x", "an even width", C)
    call.positive("base", base)
    call.boolean("halves", halves)
    check_positions(call, positions, offset, B, T)


def check_rope(
    name: str,
    options: Any,
    shape: tuple[int, ...],
    kind: str,
    *,
    positions: Any = None,
    cos: Any = None,
    sin: Any = None,
) -> None:
    """Against the shape (B, H, T, D) and the type of what is to be rotated."""
    call = Call(name)
    known = all(
        hasattr(options, field) for field in ("base", "interleaved", "rotary_dim", "offset", "scaling")
    )
    call.config(known, "rope", "a Rope", options)
    for argument, table in (("cos", cos), ("sin", sin)):
        if table is not None:
            call.dtype(argument, table, kind)
            call.rank(argument, table, "(P, R/2)")
    B, _, T, D = shape
    call.positive("base", options.base)
    call.boolean("interleaved", options.interleaved)
    if options.rotary_dim is None:
        call.shape(D >= 2 and D % 2 == 0, "x", "an even head size without a rotary_dim", D)
        R = D
    else:
        call.integer("rotary_dim", options.rotary_dim)
        R = options.rotary_dim
        call.config(2 <= R <= D and R % 2 == 0, "rotary_dim", f"an even number from 2 to {D}", R)
    check_positions(call, positions, options.offset, B, T)
    if cos is None and sin is None:
        if options.scaling is not None:
            _check_scaling(call, options.scaling, options.base, R)
    else:
        call.config(cos is not None and sin is not None, "cos", "both of cos and sin", "one")
        _check_tables(call, options, cos, sin, R, T if positions is None else positions.reshape(-1).tolist())


def _check_tables(call: Call, options: Any, cos: Any, sin: Any, R: int, positions: int | list[int]) -> None:
    """Tables (P, R/2) that reach every position; a bare length stands for consecutive ones."""
    call.shape(cos.shape[1] == R // 2, "cos", f"{R // 2} columns", cos.shape[1])
    call.has_shape("sin", sin, tuple(cos.shape))
    call.config(options.base == 10000.0, "base", "its default beside tables", options.base)
    call.config(options.scaling is None, "scaling", "None beside tables", type(options.scaling).__name__)
    if isinstance(positions, int):  # the first and the last one say it all
        ends = [options.offset, options.offset + positions - 1] if positions else []
    else:
        ends = positions
    P = cos.shape[0]
    good = all(0 <= p < P for p in ends)
    call.config(good, "positions", f"positions from 0 to {P - 1}, as in cos", ends)


def _check_scaling(call: Call, scaling: Any, base: float, R: int) -> None:
    """Every number of a scaling; which it has is the matter of its type."""
    values = {field.name: getattr(scaling, field.name) for field in fields(scaling)}
    for field in (
        "factor",
        "beta_fast",
        "beta_slow",
        "attention_factor",
        "low_freq_factor",
        "high_freq_factor",
    ):
        optional = field == "attention_factor" or (field == "factor" and "short_factor" in values)
        if field in values and not (optional and values[field] is None):
            call.positive(field, values[field])
    for field in ("original_length", "length"):
        if field in values and not (field == "length" and values[field] is None):
            call.integer(field, values[field], 1)
    for field in ("short_factor", "long_factor"):
        if field in values:
            x = values[field]
            good = isinstance(x, Sequence) and len(x) == R // 2 and all(is_number(n) and n > 0 for n in x)
            call.config(good, field, f"{R // 2} finite numbers > 0", x)
    if "truncate" in values:
        call.boolean("truncate", values["truncate"])
        call.config(base != 1, "base", "another one than 1 with yarn", base)
    if "high_freq_factor" in values:
        low, high = values["low_freq_factor"], values["high_freq_factor"]
        call.config(low < high, "high_freq_factor", f"more than low_freq_factor = {low}", high)
    if "short_factor" in values and values["attention_factor"] is None and (values["factor"] or 1) > 1:
        call.integer("original_length", values["original_length"], 2)


def check_alibi(name: str, scores: Any, *, q_offset: Any) -> None:
    """scores (B, H, Tq, Tk)."""
    call = Call(name)
    call.floats(scores=scores)
    call.rank("scores", scores, "(B, H, Tq, Tk)")
    call.integer("q_offset", q_offset)


def check_relative_bias(
    name: str, scores: Any, table: Any, *, q_offset: Any, bidirectional: Any, max_distance: Any
) -> None:
    """scores (B, H, Tq, Tk), table (buckets, H) with at least 2 buckets for each direction."""
    call = Call(name)
    call.floats(scores=scores, table=table)
    call.rank("scores", scores, "(B, H, Tq, Tk)")
    call.rank("table", table, "(buckets, H)")
    call.shape(table.shape[1] == scores.shape[1], "table", f"{scores.shape[1]} columns", table.shape[1])
    call.integer("q_offset", q_offset)
    call.boolean("bidirectional", bidirectional)
    rows = table.shape[0]
    good = rows >= 4 and rows % 2 == 0 if bidirectional else rows >= 2
    expected = "an even number of rows, at least 4" if bidirectional else "at least 2 rows"
    call.shape(good, "table", expected, rows)
    exact = (rows // 2 if bidirectional else rows) // 2
    call.integer("max_distance", max_distance)
    call.config(max_distance > exact, "max_distance", f"more than {exact}", max_distance)
