"""sdpa cases for the rules of docs/semantics.md on random inputs: masks, lengths, bias, softcap, sinks."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Draw
from ..tensors import Tensors
from .draft import Draft
from .sdpa_sizes import random_inputs

ALL = ("output", "weights", "lse")
STEPS = ("output", "weights", "lse", "scores", "capped", "biased")
SIZES = (2, 4, 2, 5, 7, 6, 3)  # B, Hq, Hkv, Tq, Tk, D, Dv: pairwise different where they can be
INF, NAN = np.inf, np.nan


def rule(
    name: str,
    note: str,
    *flags: str,
    inputs: Tensors | None = None,
    want: tuple[str, ...] = ALL,
    **config: Any,
) -> Draft:
    """A case on random inputs of SIZES, some of which `inputs` replaces."""
    base = random_inputs(f"sdpa/{name}", *SIZES)
    return Draft(
        f"sdpa/{name}",
        "sdpa",
        base | (inputs or {}),
        config,
        want=want,
        flags=flags,
        note=note,
    )


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _steps()
    yield from _mask_shapes()
    yield from _lengths_and_offsets()
    yield from _softcap_and_bias()
    yield from _sinks()


def _steps() -> Iterator[Draft]:
    bias = Draw("sdpa/steps/bias").normal(5, 7)
    yield rule("steps/plain", "every intermediate of the plain call", "ByHand", want=STEPS)
    yield rule("steps/softcap", "every intermediate with a softcap", "SoftcapOrder", softcap=1.5, want=STEPS)
    yield rule(
        "steps/bias", "every intermediate with a bias", "BiasIsNotMask", inputs={"bias": bias}, want=STEPS
    )
    yield rule(
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
        yield rule(
            f"mask/broadcast-{name}",
            f"a mask of shape {shape}, aligned to the right",
            "MaskBroadcast",
            inputs={"mask": mask},
        )
        yield rule(
            f"bias/broadcast-{name}",
            f"a bias of shape {shape}, aligned to the right",
            "MaskBroadcast",
            inputs={"bias": bias},
        )
    none = np.zeros((Tq, Tk), dtype=bool)
    yield rule(
        "mask/all-hidden",
        "nothing visible: output 0, weights 0, lse -inf",
        "FullyMaskedRow",
        inputs={"mask": none},
    )
    some = Draw("sdpa/mask/some-rows").choice(0.7, B, Hq, Tq, Tk)
    some[0, :, 1] = False
    some[1, 2] = False
    yield rule(
        "mask/some-rows",
        "some rows hidden, their neighbours not",
        "FullyMaskedRow",
        "RowIndependence",
        inputs={"mask": some},
    )
    last = np.zeros(Tk, dtype=bool)
    last[-1] = True
    yield rule("mask/last-only", "only the last key", "MaskPolarity", "VectorTail", inputs={"mask": last})


def _lengths_and_offsets() -> Iterator[Draft]:
    yield rule("lengths/ragged", "a length a row", "RowIndependence", inputs={"kv_lengths": np.array([3, 7])})
    yield rule(
        "lengths/zero-and-full",
        "an empty row beside a full one",
        "RowIndependence",
        "FullyMaskedRow",
        inputs={"kv_lengths": np.array([0, 7])},
    )
    ragged = {"kv_lengths": np.array([4, 7]), "q_offset": np.array([-1, 2])}
    yield rule(
        "lengths/causal",
        "lengths with the alignment of each row",
        "RowIndependence",
        "CausalAlignment",
        inputs=ragged,
        causal=True,
    )
    yield rule(
        "lengths/window",
        "lengths, window and offsets",
        "RowIndependence",
        "WindowOffByOne",
        inputs=ragged,
        window=[1, 1],
    )
    negative = {"q_offset": np.array([-3, -9])}
    yield rule(
        "causal/negative-offsets",
        "offsets before the first key: leading rows are empty, all of row 1",
        "CausalAlignment",
        "FullyMaskedRow",
        inputs=negative,
        causal=True,
    )
    for offset in (-2, 0, 1, 2, 6):
        yield rule(
            f"causal/offset-{offset}",
            f"causal with q_offset {offset}",
            "CausalAlignment",
            causal=True,
            q_offset=offset,
        )
    for left, right in ((0, None), (2, None), (None, 0), (0, 2), (1, 1), (3, 0), (2, 5), (100, 100)):
        name = f"{'open' if left is None else left}-{'open' if right is None else right}"
        yield rule(
            f"window/{name}", f"window {left}, {right}", "WindowOffByOne", window=[left, right], q_offset=1
        )
    yield rule(
        "window/enormous",
        "the largest integer hides nothing: p + right must not wrap around",
        "WindowOffByOne",
        "Overflow",
        window=[2**63 - 1, 2**63 - 1],
        q_offset=1,
    )
    yield rule(
        "window/causal",
        "the window's right side cut by causal",
        "WindowOffByOne",
        "MaskComposition",
        window=[2, 3],
        causal=True,
        q_offset=2,
    )
    mask = Draw("sdpa/composition/mask").choice(0.7, 5, 7)
    yield rule(
        "composition/mask-causal",
        "mask and causal intersect",
        "MaskComposition",
        inputs={"mask": mask},
        causal=True,
        q_offset=2,
    )
    yield rule(
        "composition/mask-window",
        "mask and window intersect",
        "MaskComposition",
        inputs={"mask": mask},
        window=[1, 2],
    )
    yield rule(
        "composition/mask-lengths",
        "mask and lengths intersect",
        "MaskComposition",
        inputs={"mask": mask, "kv_lengths": np.array([5, 2])},
    )


def _softcap_and_bias() -> Iterator[Draft]:
    causal: dict[str, Any] = {"causal": True, "q_offset": 2}
    yield rule("softcap/plain", "c · tanh(s / c)", "SoftcapOrder", softcap=3.0)
    yield rule("softcap/small", "a cap that nearly flattens", "SoftcapOrder", softcap=0.05)
    yield rule("softcap/large", "a cap that nearly does nothing", "SoftcapOrder", softcap=1e4)
    yield rule("softcap/causal", "hidden keys stay hidden", "SoftcapOrder", softcap=1.0, **causal)
    yield rule("softcap/null", "null is absent", "AbsentIsNotZero", softcap=None)
    bias = Draw("sdpa/softcap/bias").normal(4, 5, 7)
    yield rule(
        "softcap/bias",
        "the bias is added after the cap",
        "SoftcapOrder",
        inputs={"bias": 4 * bias},
        softcap=1.0,
    )
    hiding = np.where(Draw("sdpa/bias/hiding").choice(0.3, 5, 7), -INF, 0.5)
    yield rule(
        "bias/hides", "-inf hides its slot", "BiasIsNotMask", "FullyMaskedRow", inputs={"bias": hiding}
    )
    rows = hiding.copy()
    rows[2] = -INF
    yield rule("bias/hides-row", "a row of -inf has output 0", "FullyMaskedRow", inputs={"bias": rows})
    yield rule(
        "bias/finite-sentinel",
        "-1e9 everywhere in a row is no mask: the row still sums to 1",
        "BiasIsNotMask",
        inputs={"bias": np.where(np.arange(5)[:, None] == 1, -1e9, 0.0) + np.zeros((5, 7))},
    )
    yield rule(
        "bias/mask-and-bias",
        "mask and bias are two arguments",
        "BiasIsNotMask",
        "MaskComposition",
        inputs={"bias": bias, "mask": Draw("sdpa/bias/mask").choice(0.6, 5, 7)},
    )
    yield rule("scale/large", "logits in the hundreds", "Overflow", scale=40.0)
    yield rule("scale/tiny", "nearly uniform weights", "AbsentIsNotZero", scale=1e-6)
    yield rule(
        "scale/zero-masked",
        "scale 0 with a causal mask: running means",
        "AbsentIsNotZero",
        scale=0.0,
        **causal,
    )


def _sinks() -> Iterator[Draft]:
    sinks = Draw("sdpa/sinks").normal(4)
    yield rule("sinks/plain", "weights sum to less than 1", "Sink", inputs={"sinks": sinks})
    yield rule("sinks/causal", "with a causal mask", "Sink", inputs={"sinks": sinks}, causal=True)
    yield rule(
        "sinks/large",
        "a sink above every score takes part in the maximum",
        "Sink",
        "Overflow",
        inputs={"sinks": sinks + 200},
    )
    yield rule(
        "sinks/small", "a sink far below every score changes nothing", "Sink", inputs={"sinks": sinks - 200}
    )
    yield rule(
        "sinks/softcap",
        "the sink is not capped",
        "Sink",
        "SoftcapOrder",
        inputs={"sinks": sinks + 5},
        softcap=1.0,
    )
    yield rule("sinks/scale", "the sink is not scaled", "Sink", inputs={"sinks": sinks + 2}, scale=0.1)
    mask = np.zeros((5, 7), dtype=bool)
    mask[1, 3] = mask[4] = True
    yield rule(
        "sinks/empty-rows",
        "rows with a sink and no key: output 0, lse = sink",
        "Sink",
        "FullyMaskedRow",
        inputs={"sinks": sinks, "mask": mask},
    )
