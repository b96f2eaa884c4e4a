"""Questions about linear attention and sparse patterns."""

from typing import Any

from ..cases.draft import Draft
from .attention import heads
from .draws import Chooser


def linear_attention(choose: Chooser) -> Draft:
    """With and without a state, a mask, groups."""
    (Hq, Hkv), B, D, Dv = heads(choose), choose.batch(), choose.width(), choose.width()
    causal = choose.maybe()
    Tk = choose.length()
    Tq = Tk if causal else choose.length()
    inputs = {
        "q": choose.plain(B, Hq, Tq, D),
        "k": choose.plain(B, Hkv, Tk, D),
        "v": choose.plain(B, Hkv, Tk, Dv),
    }
    if choose.maybe():
        inputs |= {"state": choose.plain(B, Hkv, D, Dv), "norm": abs(choose.plain(B, Hkv, D))}
    return Draft(
        "linear_attention", "linear_attention", inputs, {"causal": causal, "chunk": choose.integer(1, 9)}
    )


def gated_linear(choose: Chooser) -> Draft:
    """All four rules; decays are negative and keys short, as the rules are meant, so that nothing explodes."""
    (Hq, Hkv), B, T, D, Dv = (
        heads(choose),
        choose.batch(),
        choose.length(),
        choose.width(),
        choose.width(),
    )
    rule = choose.one_of(["linear", "gated", "delta", "gated_delta"])
    inputs = {
        "q": choose.plain(B, Hq, T, D),
        "k": choose.plain(B, Hkv, T, D) / (3 * D**0.5),
        "v": choose.plain(B, Hkv, T, Dv),
    }
    if choose.maybe():
        inputs["state"] = choose.plain(B, Hkv, D, Dv)
    if "gated" in rule:
        inputs["decay"] = -abs(choose.plain(B, Hkv, T, D if choose.maybe() else 1))
    if "delta" in rule:
        inputs["beta"] = abs(choose.plain(B, 1 if choose.maybe() else Hkv, T, 1)) / 3
    config: dict[str, Any] = {"rule": rule}
    if choose.rarely():
        config["scale"] = choose.one_of([0, 1, 0.25])
    return Draft("gated_linear", "gated_linear", inputs, config)


def sparse(choose: Chooser) -> Draft:
    """All seven patterns."""
    (Hq, Hkv), B, Tq, Tk, D = (
        heads(choose),
        choose.batch(),
        choose.length(),
        choose.length(),
        choose.width(),
    )
    Dv = choose.width() if choose.rarely() else D
    inputs = {
        "q": choose.floats(B, Hq, Tq, D),
        "k": choose.floats(B, Hkv, Tk, D),
        "v": choose.floats(B, Hkv, Tk, Dv),
    }
    shape = pattern(choose)
    if shape["type"] == "blocks":
        inputs["block_mask"] = choose.flags(-(-Tq // shape["block"]), -(-Tk // shape["block"]))
    config: dict[str, Any] = {"pattern": shape, "causal": choose.maybe()}
    if choose.rarely():
        config["scale"] = choose.one_of([0, 1, 0.25])
    return Draft("sparse", "sparse", inputs, config)


def pattern(choose: Chooser) -> dict[str, Any]:
    """One of the seven with its fields."""
    kind = choose.one_of(["window", "dilated", "strided", "fixed", "global", "bigbird", "blocks"])
    fields: dict[str, Any] = {"type": kind}
    if kind in ("window", "dilated", "global"):
        fields |= {"left": choose.integer(0, 4), "right": choose.integer(0, 4)}
    if kind == "dilated":
        fields["dilation"] = choose.integer(1, 3)
    if kind in ("strided", "fixed"):
        fields["stride"] = choose.integer(1, 5)
    if kind == "fixed":
        fields["summary"] = choose.integer(0, fields["stride"])
    if kind == "global":
        fields["tokens"] = sorted({choose.integer(0, 9) for _ in range(choose.integer(0, 3))})
    if kind in ("bigbird", "blocks"):
        fields["block"] = choose.integer(1, 4)
    if kind == "bigbird":
        fields |= {name: choose.integer(0, 2) for name in ("window", "global", "random")}
        fields["seed"] = choose.integer(0, 2**53 - 1)
    return fields
