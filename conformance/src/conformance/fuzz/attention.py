"""Questions about softmax, sdpa with its variants, mha, and what is built on them."""

from typing import Any

import numpy as np

from ..cases.draft import Draft
from ..tensors import Tensors
from .draws import Chooser

INF, NAN = np.inf, np.nan


def softmax(choose: Chooser) -> Draft:
    """Any rank, with hidden slots and poison."""
    shape = [choose.length() for _ in range(choose.integer(1, 3))]
    x = choose.floats(*shape)
    for value in (-INF, NAN, INF):
        if choose.rarely():
            x = choose.poisoned(x, value)
    return Draft("softmax", "softmax", {"x": x})


def heads(choose: Chooser) -> tuple[int, int]:
    """Hq and Hkv."""
    Hkv = choose.integer(1, 3)
    return Hkv * choose.one_of([1, 2, 3]), Hkv


def sdpa(choose: Chooser) -> Draft:
    """All options of sdpa at once, each with its own chance."""
    (Hq, Hkv), B = heads(choose), choose.batch()
    Tq, Tk, D = choose.length(), choose.length(), choose.width()
    Dv = choose.width() if choose.maybe() else D
    inputs = {
        "q": choose.floats(B, Hq, Tq, D),
        "k": choose.floats(B, Hkv, Tk, D),
        "v": choose.floats(B, Hkv, Tk, Dv),
    }
    config = options(choose, inputs, B, Hq, Tq, Tk)
    if choose.rarely():
        inputs["sinks"] = choose.floats(Hq)
    if choose.rarely():
        name = choose.one_of(["v", "k", "q"])
        # Not infinity in v: times a weight that underflows in f32, but not in float64, it would be NaN there alone.
        value = NAN if name == "v" else choose.one_of([NAN, INF, -INF])
        inputs[name] = choose.poisoned(inputs[name], value)
    config |= {
        "block_q": choose.integer(1, 9),
        "block_k": choose.integer(1, 9),
        "splits": choose.integer(1, 5),
    }
    return Draft("sdpa", "sdpa", inputs, config)


def options(choose: Chooser, inputs: Tensors, B: int, Hq: int, Tq: int, Tk: int) -> dict[str, Any]:
    """The config that sdpa and mha share; masks and lengths go into the inputs."""
    config = conditions(choose)
    if choose.sometimes():
        inputs["mask"] = choose.flags(*_broadcast(choose, (B, Hq, Tq, Tk)))
    if choose.sometimes():
        bias = choose.plain(*_broadcast(choose, (B, Hq, Tq, Tk)))
        inputs["bias"] = np.where(choose.flags(*bias.shape), bias, -INF) if choose.maybe() else bias
    if choose.sometimes():
        inputs["kv_lengths"] = choose.integers(0, Tk, B)
    if choose.sometimes():
        if choose.maybe():
            inputs["q_offset"] = choose.integers(-2, Tk, B)
        else:
            config["q_offset"] = choose.integer(-2, 6)
    if choose.sometimes():
        config["dropout"] = {"p": choose.number(0, 1), "seed": choose.integer(0, 2**53 - 1)}
    return config


def conditions(choose: Chooser) -> dict[str, Any]:
    """causal, window, scale and softcap."""
    config: dict[str, Any] = {}
    if choose.maybe():
        config["causal"] = True
    if choose.sometimes():
        config["window"] = [choose.one_of([None, 0, 1, 3]), choose.one_of([None, 0, 2])]
    if choose.sometimes():
        config["scale"] = choose.one_of([0, 1, 0.25, -0.5])
    if choose.sometimes():
        config["softcap"] = choose.one_of([1.0, 0.5, 20.0])
    return config


def _broadcast(choose: Chooser, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to this one: leading axes away, others of size 1."""
    kept = shape[choose.integer(0, 3) :]
    return tuple(1 if choose.rarely() else n for n in kept)


def mha(choose: Chooser) -> Draft:
    """A layer with what a layer can have."""
    (Hq, Hkv), B, C, D = heads(choose), choose.batch(), choose.width(), choose.width()
    Tq, packed, rope = choose.length(), choose.rarely(), choose.rarely()
    cross = not packed and not rope and choose.rarely()
    Dv = D if packed or not choose.rarely() else choose.width()
    Tk, Cc = (choose.length(), choose.width()) if cross else (Tq, C)
    inputs = {"x": choose.plain(B, Tq, C)} | ({"context": choose.plain(B, Tk, Cc)} if cross else {})
    config: dict[str, Any] = {"num_heads": Hq, "num_kv_heads": Hkv}
    inputs |= layer(choose, C, Cc, Hq, Hkv, D, Dv, packed=packed)
    if packed and choose.maybe():
        config["packing"] = "heads"
    if rope and D % 2 == 0:
        config["rope"] = {"interleaved": choose.maybe(), "offset": choose.integer(0, 5)}
    if choose.rarely():
        inputs |= {"q_norm": 1 + choose.plain(D) / 4, "k_norm": 1 + choose.plain(D) / 4}
    if choose.rarely():
        inputs["head_mask"] = choose.flags(Hq)
    return Draft("mha", "mha", inputs, config | options(choose, inputs, B, Hq, Tq, Tk))


def layer(
    choose: Chooser, C: int, Cc: int, Hq: int, Hkv: int, D: int, Dv: int, *, packed: bool = False
) -> Tensors:
    """Weights of a layer that keep the variance near 1, perhaps with biases."""
    shapes = {"w_q": (Hq * D, C), "w_k": (Hkv * D, Cc), "w_v": (Hkv * Dv, Cc), "w_o": (C, Hq * Dv)}
    if packed:
        shapes = {"w_qkv": ((Hq + 2 * Hkv) * D, C), "w_o": shapes["w_o"]}
    weights = {name: choose.plain(*shape) / np.sqrt(shape[1]) for name, shape in shapes.items()}
    if choose.maybe():
        weights |= {name.replace("w_", "b_"): choose.plain(shape[0]) / 4 for name, shape in shapes.items()}
    return weights


def scoring(choose: Chooser) -> Draft:
    """All four forms."""
    form = choose.one_of(["dot", "scaled", "general", "additive"])
    B, Tq, Tk, Dq, Dv = choose.batch(), choose.length(), choose.length(), choose.width(), choose.width()
    Dk = Dq if form in ("dot", "scaled") else choose.width()
    inputs = {
        "q": choose.plain(B, Tq, Dq),
        "k": choose.plain(B, Tk, Dk),
        "v": choose.plain(B, Tk, Dv),
    }
    if form == "general":
        inputs["w"] = choose.plain(Dq, Dk)
    if form == "additive":
        A = choose.width()
        inputs |= {"w_q": choose.plain(A, Dq), "w_k": choose.plain(A, Dk), "w_v": choose.plain(A)}
    if choose.maybe():
        inputs["kv_lengths"] = choose.integers(0, Tk, B)
    return Draft("scoring", "scoring", inputs, {"form": form})


def merge(choose: Chooser) -> Draft:
    """Two partial states, empty ones among them."""
    shape = tuple(choose.length() for _ in range(choose.integer(0, 2)))
    Dv = choose.width()
    inputs: Tensors = {}
    for side in ("a", "b"):
        lse = choose.floats(*shape)
        for value in (-INF, -INF, NAN):
            if choose.rarely() or (value == -INF and choose.maybe() and choose.maybe()):
                lse = choose.poisoned(lse, value)
        inputs |= {f"{side}_output": choose.plain(*shape, Dv), f"{side}_lse": lse}
    return Draft("merge", "merge", inputs)


def varlen(choose: Chooser) -> Draft:
    """Packed sequences, empty ones among them."""
    (Hq, Hkv), D, sequences = heads(choose), choose.width(), choose.integer(0, 4)
    q_lengths = [choose.length() for _ in range(sequences)]
    k_lengths = q_lengths if choose.maybe() else [choose.length() for _ in range(sequences)]
    cu_q, cu_k = (np.concatenate([[0], np.cumsum(x)]).astype(np.int64) for x in (q_lengths, k_lengths))
    Dv = choose.width() if choose.rarely() else D
    inputs = {
        "q": choose.floats(int(cu_q[-1]), Hq, D),
        "k": choose.floats(int(cu_k[-1]), Hkv, D),
        "v": choose.floats(int(cu_k[-1]), Hkv, Dv),
        "cu_seqlens_q": cu_q,
        "cu_seqlens_k": cu_k,
    }
    config = conditions(choose)
    if choose.rarely():
        inputs["q_offset"] = choose.integers(-2, 4, sequences)
    elif choose.rarely():
        config["q_offset"] = choose.integer(-2, 4)
    return Draft("varlen", "varlen", inputs, config)


def structured(choose: Chooser) -> Draft:
    """Hops over a sentence."""
    B, T, C, A = choose.batch(), choose.length(), choose.width(), choose.width()
    inputs = {
        "h": choose.plain(B, T, C),
        "w_1": choose.plain(A, C),
        "w_2": choose.plain(choose.integer(1, 4), A),
    }
    if choose.maybe():
        inputs["kv_lengths"] = choose.integers(0, T, B)
    return Draft("structured", "structured", inputs)


def mla(choose: Chooser) -> Draft:
    """Latent attention with all its optional parts."""
    B, T, C, H, R = (
        choose.batch(),
        choose.length(),
        choose.width(),
        choose.integer(1, 3),
        choose.width(),
    )
    Dn, Dr, Dv = choose.width(), 2 * choose.integer(1, 3), choose.width()
    inputs = {"x": choose.plain(B, T, C)}
    width = C
    if choose.maybe():
        width = choose.width()
        inputs["w_dq"] = choose.plain(width, C) / np.sqrt(C)
        if choose.maybe():
            inputs["q_norm"] = 1 + choose.plain(width) / 4
    for name, rows, columns in (
        ("w_q", H * (Dn + Dr), width),
        ("w_dkv", R, C),
        ("w_kr", Dr, C),
        ("w_uk", H * Dn, R),
        ("w_uv", H * Dv, R),
        ("w_o", C, H * Dv),
    ):
        inputs[name] = choose.plain(rows, columns) / np.sqrt(columns)
    if choose.maybe():
        inputs["kv_norm"] = 1 + choose.plain(R) / 4
    if choose.rarely():
        inputs["kv_lengths"] = choose.integers(0, T, B)
    config: dict[str, Any] = {"num_heads": H, "causal": choose.maybe()}
    if choose.rarely():
        config["scale"] = choose.one_of([0, 1, 0.25])
    if choose.rarely():
        config["rope"] = {"interleaved": choose.maybe(), "offset": choose.integer(0, 5)}
    return Draft("mla", "mla", inputs, config)
