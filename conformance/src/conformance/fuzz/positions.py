"""Questions about positions, dropout and types."""

from typing import Any

import numpy as np

from ..cases.draft import Draft
from .draws import Chooser

INF, NAN = np.inf, np.nan


def cast(choose: Chooser) -> Draft:
    """Numbers of every size, ties of both halves among them."""
    x = choose.plain(choose.integer(0, 12)) * 2.0 ** choose.integer(-30, 20)
    if choose.maybe():
        x = np.round(x * 2.0 ** choose.one_of([11, 8, 25, 134])) / 2.0 ** choose.one_of([12, 9, 26, 135])
    for value in (NAN, INF, -0.0, 65520.0):
        if choose.rarely():
            x = choose.poisoned(x, value)
    return Draft(
        "cast", "cast", {"x": x}, {"to": choose.one_of(["f16", "bf16", "f32", "f64"])}, exact=("output",)
    )


def sinusoidal(choose: Chooser) -> Draft:
    """Both layouts, positions by offset and by tensor."""
    B, T, C = choose.batch(), choose.length(), 2 * choose.integer(1, 4)
    inputs, config = {"x": choose.plain(B, T, C)}, {"halves": choose.maybe()} | _base(choose)
    _place(choose, inputs, config, B, T)
    return Draft("sinusoidal", "sinusoidal", inputs, config)


def rope(choose: Chooser) -> Draft:
    """Every scaling, and tables in its place."""
    B, H, T, D = choose.batch(), choose.integer(1, 3), choose.length(), 2 * choose.integer(1, 4)
    inputs: dict[str, Any] = {"x": choose.plain(B, H, T, D)}
    config: dict[str, Any] = {"interleaved": choose.maybe()}
    R = D
    if choose.rarely():
        R = config["rotary_dim"] = 2 * choose.integer(1, D // 2)
    if choose.rarely():
        P = choose.integer(1, 6)
        angles = choose.plain(P, R // 2)
        inputs |= {"cos": np.cos(angles), "sin": np.sin(angles), "positions": choose.integers(0, P - 1, B, T)}
        return Draft("rope", "rope", inputs, config)
    _place(choose, inputs, config, B, T)
    config |= _base(choose)
    if choose.maybe():
        config["scaling"] = scaling(choose, R)
    return Draft("rope", "rope", inputs, config)


def scaling(choose: Chooser, R: int) -> dict[str, Any]:
    """One of the five."""
    kind = choose.one_of(["linear", "dynamic", "yarn", "llama3", "longrope"])
    fields: dict[str, Any] = {"type": kind, "factor": choose.one_of([2.0, 1.0, 4.0, 0.5])}
    if kind != "linear":
        fields["original_length"] = choose.one_of([4, 16, 2])
    if kind in ("dynamic", "longrope") and choose.maybe():
        fields["length"] = choose.integer(1, 40)
    if kind == "yarn" and choose.maybe():
        fields |= {"truncate": choose.maybe(), "beta_fast": 16, "beta_slow": 2}
    if kind in ("yarn", "longrope") and choose.rarely():
        fields["attention_factor"] = 1.25
    if kind == "llama3" and choose.maybe():
        fields |= {"low_freq_factor": 1, "high_freq_factor": choose.one_of([4, 2])}
    if kind == "longrope":
        fields |= {
            name: [1 + choose.integer(0, 8) / 4 for _ in range(R // 2)]
            for name in ("short_factor", "long_factor")
        }
    return fields


def _base(choose: Chooser) -> dict[str, Any]:
    return {"base": choose.one_of([100.0, 500000.0])} if choose.rarely() else {}


def _place(choose: Chooser, inputs: dict[str, Any], config: dict[str, Any], B: int, T: int) -> None:
    """Positions of the tokens: from 0, from an offset, or one by one."""
    if choose.rarely():
        inputs["positions"] = choose.integers(0, 40, B, T)
    elif choose.maybe():
        config["offset"] = choose.integer(0, 9)


def alibi(choose: Chooser) -> Draft:
    """Any number of heads."""
    scores = choose.plain(choose.batch(), choose.integer(1, 9), choose.length(), choose.length())
    return Draft("alibi", "alibi", {"scores": scores}, {"q_offset": choose.integer(0, 9)})


def relative_bias(choose: Chooser) -> Draft:
    """Both directions, near and far."""
    H, one_way = choose.integer(1, 3), choose.maybe()
    buckets = choose.integer(2, 9) if one_way else 2 * choose.integer(2, 8)
    inputs = {
        "scores": choose.plain(choose.batch(), H, choose.length(), choose.length()),
        "table": choose.plain(buckets, H),
    }
    config = {
        "bidirectional": not one_way,
        "max_distance": choose.one_of([9, 16, 20, 128]),
        "q_offset": choose.integer(0, 40),
    }
    return Draft("relative_bias", "relative_bias", inputs, config)


def dropout(choose: Chooser) -> Draft:
    """Any seed and offset."""
    x = choose.plain(choose.length(), choose.length())
    if choose.rarely():
        x = choose.poisoned(x, NAN)
    config = {
        "p": choose.number(0, 1),
        "seed": choose.integer(0, 2**53 - 1),
        "offset": choose.one_of([0, 1, 2, 3, 4, 2**34 - 2]),
    }
    return Draft("dropout", "dropout", {"x": x}, config)


def cache_write(choose: Chooser) -> Draft:
    """Linear where it fits, else around the end."""
    B, H, L, n, circular = (
        choose.integer(0, 3),
        choose.integer(1, 2),
        choose.integer(1, 8),
        choose.width(),
        choose.maybe(),
    )
    T = choose.integer(0, L)
    inputs = {"cache": choose.plain(B, H, L, n), "update": choose.plain(B, H, T, n)}
    if choose.maybe():
        inputs["write_indices"] = choose.integers(0, 3 * L if circular else L - T, B)
    return Draft("cache_write", "cache_write", inputs, {"circular": circular}, exact=("output",))
