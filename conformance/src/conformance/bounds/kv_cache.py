"""The bounds of a cache script: each attend is an sdpa over what is held, and a read has no error at all.

Only rotated keys are uncertain (cache_keys), and what was tracked: a sum of weights.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..oracle.cache_attend import Attend, by_kv_head, gather
from ..oracle.cache_read import Written
from ..oracle.cache_state import Sizes, Slot
from ..oracle.kv_cache import events
from ..oracle.per_head import join_heads
from ..tensors import Tensors
from .arithmetic import Arithmetic, Bounded
from .attention import propagate_sdpa
from .cache_keys import Keys
from .rope import propagate_rope

F64 = Arithmetic.of("f64")


def bound_kv_cache(
    arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors, steps: Sequence[str] | None, dtype: str
) -> Tensors:
    """The op kv_cache, for the steps that must be ok."""
    sizes, bounds = Sizes.of(config), Tensors()
    held = Held(arithmetic, sizes, dtype)
    for _, event in events(config, inputs, steps):
        if isinstance(event, Attend):
            errors = held.attend(event)
            bounds[event.step["out"]] = join_heads(sizes, errors["output"].error)
            if event.step.get("lse"):
                bounds[event.step["lse"]] = join_heads(sizes, errors["lse"].error)
        elif isinstance(event, Written):
            bounds |= {name: np.zeros(x.shape) for name, x in event.tensors.items()}
            if event.rows is not None and sizes.rotates:
                bounds[f"{event.step['out']}.k"] = join_heads(sizes, held.keys.gather(event.rows))
            if event.rows is not None and event.step.get("tracked"):
                bounds[f"{event.step['out']}.tracked"] = join_heads(sizes, held.gather_tracked(event.rows))
    return bounds


class Held:
    """The errors of what a cache holds, each derived once: a slot never changes, nor does an attend."""

    def __init__(self, arithmetic: Arithmetic, sizes: Sizes, dtype: str) -> None:
        self.keys = Keys(arithmetic, sizes, dtype)
        self._arithmetic, self._sizes = arithmetic, sizes
        self._attends: dict[Attend, dict[str, Bounded]] = {}

    def attend(self, event: Attend) -> dict[str, Bounded]:
        """Every step of the sdpa that it amounts to."""
        if event not in self._attends:
            self._attends[event] = self._propagate(event)
        return self._attends[event]

    def _propagate(self, event: Attend) -> dict[str, Bounded]:
        q, k, v = (self._arithmetic.exact(event.inputs[name]) for name in ("q", "k", "v"))
        sizes = self._sizes
        if sizes.rope is not None:
            given = self._arithmetic.exact(event.q.astype(np.float64))
            q = propagate_rope(self._arithmetic, sizes.rope, {"positions": event.positions}, given)
        if sizes.rotates:
            k = Bounded(k.value, self.keys.gather(event.rows))
        elif sizes.rope is not None:
            places = {"positions": positions_of(event.rows)}
            came = self._arithmetic.exact(gather(sizes, event.rows)["k"])
            k = propagate_rope(self._arithmetic, sizes.rope, places, came)
        return propagate_sdpa(self._arithmetic, event.config, event.inputs, q, k, v)

    def tracked(self, reads: Sequence[tuple[Attend, int, int]]) -> Bounded:
        """(Hkv,): the sum of all weights of a slot, rounded in float64 once for each, in any order."""
        heads = self._sizes.parts["k"][0]
        value, error, count = np.zeros(heads), np.zeros(heads), 0
        for event, b, s in reads:
            weights = self.attend(event)["weights"]
            w, e = (by_kv_head(x, heads)[b, ..., s] for x in weights)  # (Hkv, G, Tq)
            count += w[0].size + 1
            value, error = value + w.sum(axis=(1, 2)), error + e.sum(axis=(1, 2))
        return Bounded(value, error + F64.gamma(count) * (value + error))

    def gather_tracked(self, rows: list[list[Slot]]) -> np.ndarray:
        """(B, Hkv, L), zero beyond each row's length."""
        heads = self._sizes.parts["k"][0]
        errors = np.zeros((len(rows), heads, max(map(len, rows), default=0)))
        for b, row in enumerate(rows):
            for s, slot in enumerate(row):
                errors[b, :, s] = self.tracked(slot.reads).error
        return errors


def positions_of(rows: list[list[Slot]]) -> np.ndarray:
    """int64 (B, L): where the slots stand, 0 beyond each row's length."""
    positions = np.zeros((len(rows), max(map(len, rows), default=0)), np.int64)
    for b, row in enumerate(rows):
        positions[b, : len(row)] = [slot.position for slot in row]
    return positions
