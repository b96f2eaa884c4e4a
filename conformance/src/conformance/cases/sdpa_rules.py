"""sdpa cases for the rules of docs/semantics.md on random inputs: masks, lengths, bias, softcap, sinks, NaN and Inf."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from .draft import Draft, Tensors
from .sdpa_sizes import random_inputs

ALL = ("output", "weights", "lse")
STEPS = ("output", "weights", "lse", "scores", "capped", "biased")
SIZES = (2, 4, 2, 5, 7, 6, 3)  # B, Hq, Hkv, Tq, Tk, D, Dv: pairwise different where they can be
INF, NAN = np.inf, np.nan


def _case(
    name: str,
    note: str,
    *flags: str,
    inputs: Tensors | None = None,
    want: tuple[str, ...] = ALL,
    **config: Any,
) -> Draft:
    base = random_inputs(f"sdpa/{name}", *SIZES)
    return Draft(
        f"sdpa/{name}",
        "sdpa",
        base | (inputs or {}),
        config,
        want=want,
        flags=flags,
        note=note,
        native_rtol=1e-3,
    )


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _steps()
    yield from _mask_shapes()
    yield from _lengths_and_offsets()
    yield from _softcap_and_bias()
    yield from _sinks()
    yield from _poison()
    yield from _not_finite()
    yield from _extreme()


def _steps() -> Iterator[Draft]:
    bias = Draw("sdpa/steps/bias").normal(5, 7)
    yield _case("steps/plain", "every intermediate of the plain call", "ByHand", want=STEPS)
    yield _case("steps/softcap", "every intermediate with a softcap", "SoftcapOrder", softcap=1.5, want=STEPS)
    yield _case(
        "steps/bias", "every intermediate with a bias", "BiasIsNotMask", inputs={"bias": bias}, want=STEPS
    )
    yield _case(
        "steps/all",
        "scores, capped and biased are before the mask; hidden slots included",
        "MaskComposition",
        inputs={"bias": bias, "sinks": Draw("sdpa/steps/sinks").normal(4)},
        causal=True,
        window=[3, None],
        softcap=2.0,
        scale=0.7,
        want=STEPS,
    )


def _mask_shapes() -> Iterator[Draft]:
    B, Hq, _, Tq, Tk, _, _ = SIZES
    shapes = {
        "full": (B, Hq, Tq, Tk),
        "heads": (Hq, Tq, Tk),
        "queries": (Tq, Tk),
        "keys": (Tk,),
        "one": (1,),
        "scalar": (),
        "batch-keys": (B, 1, 1, Tk),
        "batch-queries": (B, 1, Tq, 1),
        "head-only": (Hq, 1, 1),
        "query-only": (Tq, 1),
    }
    for name, shape in shapes.items():
        mask = Draw(f"sdpa/mask/{name}").choice(0.6, *shape)
        bias = Draw(f"sdpa/bias/{name}").normal(*shape)
        if name in ("one", "scalar"):
            mask = np.ones(shape, dtype=bool)
        yield _case(
            f"mask/broadcast-{name}",
            f"a mask of shape {shape}, aligned to the right",
            "MaskBroadcast",
            inputs={"mask": mask},
        )
        yield _case(
            f"bias/broadcast-{name}",
            f"a bias of shape {shape}, aligned to the right",
            "MaskBroadcast",
            inputs={"bias": bias},
        )
    none = np.zeros((Tq, Tk), dtype=bool)
    yield _case(
        "mask/all-hidden",
        "nothing visible: output 0, weights 0, lse -inf",
        "FullyMaskedRow",
        inputs={"mask": none},
    )
    some = Draw("sdpa/mask/some-rows").choice(0.7, B, Hq, Tq, Tk)
    some[0, :, 1] = False
    some[1, 2] = False
    yield _case(
        "mask/some-rows",
        "some rows hidden, their neighbours not",
        "FullyMaskedRow",
        "RowIndependence",
        inputs={"mask": some},
    )
    last = np.zeros(Tk, dtype=bool)
    last[-1] = True
    yield _case("mask/last-only", "only the last key", "MaskPolarity", "VectorTail", inputs={"mask": last})


def _lengths_and_offsets() -> Iterator[Draft]:
    yield _case(
        "lengths/ragged", "a length a row", "RowIndependence", inputs={"kv_lengths": np.array([3, 7])}
    )
    yield _case(
        "lengths/zero-and-full",
        "an empty row beside a full one",
        "RowIndependence",
        "FullyMaskedRow",
        inputs={"kv_lengths": np.array([0, 7])},
    )
    ragged = {"kv_lengths": np.array([4, 7]), "q_offset": np.array([-1, 2])}
    yield _case(
        "lengths/causal",
        "lengths with the alignment of each row",
        "RowIndependence",
        "CausalAlignment",
        inputs=ragged,
        causal=True,
    )
    yield _case(
        "lengths/window",
        "lengths, window and offsets",
        "RowIndependence",
        "WindowOffByOne",
        inputs=ragged,
        window=[1, 1],
    )
    negative = {"q_offset": np.array([-3, -9])}
    yield _case(
        "causal/negative-offsets",
        "offsets before the first key: leading rows are empty, all of row 1",
        "CausalAlignment",
        "FullyMaskedRow",
        inputs=negative,
        causal=True,
    )
    for offset in (-2, 0, 1, 2, 6):
        yield _case(
            f"causal/offset-{offset}",
            f"causal with q_offset {offset}",
            "CausalAlignment",
            causal=True,
            q_offset=offset,
        )
    for left, right in ((0, None), (2, None), (None, 0), (0, 2), (1, 1), (3, 0), (2, 5), (100, 100)):
        name = f"{'open' if left is None else left}-{'open' if right is None else right}"
        yield _case(
            f"window/{name}", f"window {left}, {right}", "WindowOffByOne", window=[left, right], q_offset=1
        )
    yield _case(
        "window/enormous",
        "the largest integer hides nothing: p + right must not wrap around",
        "WindowOffByOne",
        "Overflow",
        window=[2**63 - 1, 2**63 - 1],
        q_offset=1,
    )
    yield _case(
        "window/causal",
        "the window's right side cut by causal",
        "WindowOffByOne",
        "MaskComposition",
        window=[2, 3],
        causal=True,
        q_offset=2,
    )
    mask = Draw("sdpa/composition/mask").choice(0.7, 5, 7)
    yield _case(
        "composition/mask-causal",
        "mask and causal intersect",
        "MaskComposition",
        inputs={"mask": mask},
        causal=True,
        q_offset=2,
    )
    yield _case(
        "composition/mask-window",
        "mask and window intersect",
        "MaskComposition",
        inputs={"mask": mask},
        window=[1, 2],
    )
    yield _case(
        "composition/mask-lengths",
        "mask and lengths intersect",
        "MaskComposition",
        inputs={"mask": mask, "kv_lengths": np.array([5, 2])},
    )


def _softcap_and_bias() -> Iterator[Draft]:
    causal: dict[str, Any] = {"causal": True, "q_offset": 2}
    yield _case("softcap/plain", "c · tanh(s / c)", "SoftcapOrder", softcap=3.0)
    yield _case("softcap/small", "a cap that nearly flattens", "SoftcapOrder", softcap=0.05)
    yield _case("softcap/large", "a cap that nearly does nothing", "SoftcapOrder", softcap=1e4)
    yield _case("softcap/causal", "hidden keys stay hidden", "SoftcapOrder", softcap=1.0, **causal)
    yield _case("softcap/null", "null is absent", "AbsentIsNotZero", softcap=None)
    bias = Draw("sdpa/softcap/bias").normal(4, 5, 7)
    yield _case(
        "softcap/bias",
        "the bias is added after the cap",
        "SoftcapOrder",
        inputs={"bias": 4 * bias},
        softcap=1.0,
    )
    hiding = np.where(Draw("sdpa/bias/hiding").choice(0.3, 5, 7), -INF, 0.5)
    yield _case(
        "bias/hides", "-inf hides its slot", "BiasIsNotMask", "FullyMaskedRow", inputs={"bias": hiding}
    )
    rows = hiding.copy()
    rows[2] = -INF
    yield _case("bias/hides-row", "a row of -inf has output 0", "FullyMaskedRow", inputs={"bias": rows})
    yield _case(
        "bias/finite-sentinel",
        "-1e9 everywhere in a row is no mask: the row still sums to 1",
        "BiasIsNotMask",
        inputs={"bias": np.where(np.arange(5)[:, None] == 1, -1e9, 0.0) + np.zeros((5, 7))},
    )
    yield _case(
        "bias/mask-and-bias",
        "mask and bias are two arguments",
        "BiasIsNotMask",
        "MaskComposition",
        inputs={"bias": bias, "mask": Draw("sdpa/bias/mask").choice(0.6, 5, 7)},
    )
    yield _case("scale/large", "logits in the hundreds", "Overflow", scale=40.0)
    yield _case("scale/tiny", "nearly uniform weights", "AbsentIsNotZero", scale=1e-6)
    yield _case(
        "scale/zero-masked",
        "scale 0 with a causal mask: running means",
        "AbsentIsNotZero",
        scale=0.0,
        **causal,
    )


def _sinks() -> Iterator[Draft]:
    sinks = Draw("sdpa/sinks").normal(4)
    yield _case("sinks/plain", "weights sum to less than 1", "Sink", inputs={"sinks": sinks})
    yield _case("sinks/causal", "with a causal mask", "Sink", inputs={"sinks": sinks}, causal=True)
    yield _case(
        "sinks/large",
        "a sink above every score takes part in the maximum",
        "Sink",
        "Overflow",
        inputs={"sinks": sinks + 200},
    )
    yield _case(
        "sinks/small", "a sink far below every score changes nothing", "Sink", inputs={"sinks": sinks - 200}
    )
    yield _case(
        "sinks/softcap",
        "the sink is not capped",
        "Sink",
        "SoftcapOrder",
        inputs={"sinks": sinks + 5},
        softcap=1.0,
    )
    yield _case("sinks/scale", "the sink is not scaled", "Sink", inputs={"sinks": sinks + 2}, scale=0.1)
    mask = np.zeros((5, 7), dtype=bool)
    mask[1, 3] = mask[4] = True
    yield _case(
        "sinks/empty-rows",
        "rows with a sink and no key: output 0, lse = sink",
        "Sink",
        "FullyMaskedRow",
        inputs={"sinks": sinks, "mask": mask},
    )


def _poison() -> Iterator[Draft]:
    """NaN and Inf where nothing may be read. Every variant hides the last two keys in another way."""
    hidden = np.arange(7) < 5
    hiding: dict[str, tuple[Tensors, dict[str, Any]]] = {
        "mask": ({"mask": hidden}, {}),
        "bias": ({"bias": np.where(hidden, 0.25, -INF)}, {}),
        "lengths": ({"kv_lengths": np.array([5, 5])}, {}),
        "causal": ({}, {"causal": True, "q_offset": 0}),
        "window": ({}, {"window": [None, 0]}),
    }
    for way, (inputs, config) in hiding.items():
        for poison in (NAN, INF, -INF):
            name = f"poison/{way}-{'nan' if np.isnan(poison) else 'inf' if poison > 0 else 'minus-inf'}"
            base = random_inputs(f"sdpa/{name}", *SIZES)
            base["k"][:, :, 5:] = poison
            base["v"][:, :, 5:] = poison
            yield _case(
                name,
                f"{poison} in hidden K and V, hidden by {way}",
                "HiddenPoison",
                inputs=base | inputs,
                **config,
            )
    base = random_inputs("sdpa/poison/some-rows", *SIZES)
    base["v"][0, 1, 3] = NAN
    mask = np.ones((5, 7), dtype=bool)
    mask[1:4, 3] = False
    yield _case(
        "poison/some-rows",
        "NaN in one value: rows that see it are NaN, the others untouched",
        "HiddenPoison",
        "VisibleNaN",
        inputs=base | {"mask": mask},
    )
    base = random_inputs("sdpa/poison/all-hidden", *SIZES)
    base["k"][:], base["v"][:] = NAN, NAN
    yield _case(
        "poison/all-hidden",
        "nothing but NaN, and all of it hidden: 0",
        "HiddenPoison",
        "FullyMaskedRow",
        inputs=base | {"mask": np.zeros((1, 1), bool)},
    )
    base = random_inputs("sdpa/poison/softcap", *SIZES)
    base["k"][:, :, 5:] = NAN
    yield _case(
        "poison/softcap",
        "NaN scores behind softcap and mask",
        "HiddenPoison",
        "SoftcapOrder",
        inputs=base | {"mask": hidden},
        softcap=2.0,
    )
    base = random_inputs("sdpa/poison/sinks", *SIZES)
    base["k"][:, :, 5:], base["v"][:, :, 5:] = NAN, INF
    yield _case(
        "poison/sinks",
        "NaN hidden beside a sink",
        "HiddenPoison",
        "Sink",
        inputs=base | {"mask": hidden, "sinks": np.ones(4)},
    )


def _not_finite() -> Iterator[Draft]:
    for name, tensor, index, note in (
        ("query", "q", (0, 1, 2, 3), "NaN in one query: its row is NaN, no other"),
        ("key", "k", (1, 0, 2, 4), "NaN in one visible key: NaN wherever it is seen"),
        ("value", "v", (1, 1, 6, 2), "NaN in one visible value: NaN in that channel only"),
    ):
        base = random_inputs(f"sdpa/nan/{name}", *SIZES)
        base[tensor][index] = NAN
        yield _case(f"nan/{name}", note, "VisibleNaN", inputs=base, causal=True, q_offset=4)
    bias = np.zeros((5, 7))
    bias[2, 3] = NAN
    yield _case("nan/bias", "NaN in the bias of a visible slot", "VisibleNaN", inputs={"bias": bias})
    bias = np.zeros((5, 7))
    bias[2, 3] = INF
    yield _case("inf/bias", "a visible +inf score makes its row NaN", "InfiniteScore", inputs={"bias": bias})
    base = random_inputs("sdpa/inf/value", *SIZES)
    base["v"][0, 0, 2, 1] = INF
    yield _case("inf/value", "Inf in a visible value reaches the output", "VisibleNaN", inputs=base)
    base = random_inputs("sdpa/inf/values", *SIZES)
    base["v"][0, 0, 2, 1], base["v"][0, 0, 4, 1] = INF, -INF
    yield _case("inf/values", "Inf and -Inf in one channel are NaN", "VisibleNaN", inputs=base)
    yield Draft(
        "sdpa/inf/vanished-weight",
        "sdpa",
        {
            "q": np.ones((1, 1, 1, 1)),
            "k": np.array([0.0, -1e5]).reshape(1, 1, 2, 1),
            "v": np.array([3, INF]).reshape(1, 1, 2, 1),
        },
        {"scale": 1},
        ALL,
        ("VisibleNaN",),
        "a weight that underflows to 0 is still visible: 0 · Inf is NaN",
    )


def _extreme() -> Iterator[Draft]:
    def score(scores: Any, values: Any) -> Tensors:
        s, v = np.array(scores, float), np.array(values, float)
        return {"q": np.ones((1, 1, 1, 1)), "k": s.reshape(1, 1, -1, 1), "v": v.reshape(1, 1, -1, 1)}

    def extreme(name: str, inputs: Tensors, note: str, **more: Any) -> Draft:
        config = {"scale": more.pop("scale", 1)}
        return Draft(f"sdpa/extreme/{name}", "sdpa", inputs, config, ALL, ("Overflow",), note, **more)

    yield extreme(
        "very-negative",
        score([-1e5, -1e5 + np.log(2)], [3, 6]),
        "5: a maximum that starts at 0 underflows",
        native_rtol=1e-2,
    )
    yield extreme(
        "very-large", score([3e4, 3e4 - 1], [3, 6]), "exp would overflow in either type", native_rtol=1e-2
    )
    yield extreme("spread", score([-1e30, 0, 1e30], [1, 2, 3]), "3: one key takes all")
    big = np.full((1, 1, 1, 64), 3e18)
    yield extreme(
        "scaled-sum",
        {
            "q": big,
            "k": np.concatenate([big, np.zeros_like(big)], axis=2),
            "v": np.array([7.0, 1]).reshape(1, 1, 2, 1),
        },
        "q · k is 5.76e38, beyond f32; scaled first it is 7.2e37, and the output is V[0]",
        scale=None,
    )
    tiny = 2.0**-130
    yield Draft(
        "sdpa/extreme/subnormal",
        "sdpa",
        {"q": np.zeros((1, 1, 1, 1)), "k": np.ones((1, 1, 2, 1)), "v": np.full((1, 1, 2, 1), tiny)},
        {},
        ("output",),
        ("Subnormal",),
        "the mean of two equal subnormal values is that value, exactly",
        exact=("output",),
    )
    yield Draft(
        "sdpa/file/unaligned",
        "sdpa",
        random_inputs("sdpa/file/unaligned", *SIZES),
        {},
        ALL,
        ("FileLayout",),
        "the file's header is 8n + 7 bytes long, its tensors stand in reverse order",
        unaligned_file=True,
        native_rtol=1e-3,
    )
