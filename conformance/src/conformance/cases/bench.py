"""The suite `bench`: the shapes of the speed table, f32. Small enough for the readable rungs, which are loops."""

from collections.abc import Iterator

import numpy as np

from ..inputs import Draw
from .draft import Draft
from .mha import layer_inputs, with_biases
from .script import Script
from .sdpa_sizes import random_inputs


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield _draft(
        "softmax/1024x1024", "softmax", {"x": 3 * Draw("bench/softmax").normal(1024, 1024)}, "rows of 1024"
    )
    for name, sizes, config, note in (
        ("small", (1, 4, 4, 16, 16, 32, 32), {}, "a call that is mostly overhead"),
        ("prefill-256", (1, 8, 8, 256, 256, 64, 64), {}, "prefill of 256 tokens"),
        ("causal-256", (1, 8, 8, 256, 256, 64, 64), {"causal": True}, "the same, causal"),
        ("decode-1024", (1, 32, 8, 1, 1024, 128, 128), {}, "one token, 32 heads on 8, a past of 1024"),
    ):
        yield _draft(f"sdpa/{name}", "sdpa", random_inputs(f"bench/{name}", *sizes), note, **config)
    layer = with_biases(layer_inputs("bench/mha", 4, 32, 384, 12, 12, 32, 32, 384), "bench/mha")
    yield _draft("mha/encoder", "mha", layer, "a MiniLM layer on four sentences", num_heads=12)
    script = Script("decode", batch=1, Hq=8, Hkv=2, D=64, Dv=64, capacity=320).append(256)
    for _ in range(32):
        script.append(1).attend(1, lse=False)
    draft = script.draft("", "Bench")
    config = draft.config | {"steps": script.steps}  # without the replay after reset
    yield Draft(
        "bench/kv_cache/decode-32",
        "kv_cache",
        draft.inputs,
        config,
        want=("out31",),
        flags=("Bench",),
        note="prefill of 256, then 32 tokens one by one",
        steps=tuple(script.codes),
        dtypes=("f32",),
    )


def _draft(name: str, op: str, inputs: dict[str, np.ndarray], note: str, **config: object) -> Draft:
    return Draft(f"bench/{name}", op, inputs, config, flags=("Bench",), note=note, dtypes=("f32",))
