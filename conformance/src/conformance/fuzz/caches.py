"""Questions about caches: scripts of random steps on every kind, some of which must fail and change nothing.

The reference machine runs along: what it holds decides what is a likely step, and it says which code each must give.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np

from ..cases.cache_script import CacheScript, LatentScript
from ..cases.draft import Draft
from ..oracle.cache_checks import OK
from ..oracle.cache_state import EVICTING, PER_HEAD, Cache
from ..oracle.eviction import HEAVY_HITTERS, POLICIES
from ..oracle.kv_cache import MAIN, Machine, predict_codes
from .attention import conditions, heads
from .draws import Chooser

MOST_STEPS, LONG = 28, 60  # without their replay
KINDS = ("contiguous", "rotating", "paged", "quantised", "latent", "cross", "per_head")
FORMATS = ("int8", "int4", "fp8_e4m3", "f16", "bf16")
COMMON = (
    "append",
    "attend",
    "read",
    "append",
    "attend",
    "reset",
    "reorder",
    "fork",
    "drop",
    "save",
    "load",
    "stats",
)
MORE = ("append_attend", "truncate", "append_attend", "truncate")
MOVES = ("evict", "shift", "policy", "policy")
ALPHABET = 3  # tokens, so few that prefixes meet
NAMES = (MAIN, "b", "c")


def kv_cache(choose: Chooser) -> Draft:
    """A script on caches of one kind, replayed after a reset."""
    trace = Trace(choose)
    trace.append(MAIN)  # the first keys give the cache its type
    for _ in range(choose.integer(1, LONG if choose.rarely() else MOST_STEPS)):
        trace.step()
    draft = trace.script.draft("")
    return replace(draft, steps=tuple(predict_codes(draft.config, draft.inputs)))


class Trace:
    """A script as it grows, and the machine that has run it so far."""

    def __init__(self, choose: Chooser, script: CacheScript | None = None) -> None:
        self.choose = choose
        self.script = _script(choose, choose.one_of(KINDS)) if script is None else script
        self.kind = str(self.script.kind["kind"])
        self.machine = Machine(self.script.sizes(), self.script.inputs)
        self.tokens = self.kind == "paged" and choose.maybe()

    def step(self, among: Sequence[str] = ()) -> None:
        """Any step that the kind knows, mostly about a cache that exists; or about one of these."""
        choose = self.choose
        actions = COMMON + (MORE if self.kind != "cross" else ())
        actions += MOVES if self.kind in EVICTING else ()
        if self.kind == PER_HEAD:
            actions = tuple(action for action in actions if action != "truncate")
        action = choose.one_of(actions)
        names = list(self.machine.world.caches)
        name = (
            choose.one_of(among or NAMES) if among or choose.rarely() or not names else choose.one_of(names)
        )
        steps: dict[str, Callable[[str], None]] = {
            "append": self.append,
            "attend": self.attend,
            "append_attend": self.append_attend,
            "policy": self.policy,
        }
        if action in steps:
            steps[action](name)
        else:
            self._simple(action, name)

    def append(self, name: str) -> None:
        """Ragged or not, padded on either side."""
        T, options = self._append_options()
        self.script.append(T, **options)
        self.run(name)

    def attend(self, name: str) -> None:
        """With any options of sdpa."""
        Tq, options = self._attend_options(name, 0)
        self.script.attend(Tq, **options)
        self.run(name)

    def append_attend(self, name: str) -> None:
        """Both."""
        T, of_append = self._append_options()
        Tq, of_attend = self._attend_options(name, T)
        self.script.append_attend(T, Tq, **of_append, **of_attend)
        step = self.script.steps[-1] | {"cache": name}
        if self.choose.sometimes() and deepcopy(self.machine).do(step)[0] == OK:  # one fault at a time
            self.script.steps[-1]["softcap"] = 0  # the append is ok, the attend is not: neither happens
        self.run(name)

    def policy(self, name: str) -> None:
        """An evict by any policy, mostly one that can be followed."""
        choose, script = self.choose, self.script
        cache = self.machine.world.caches.get(name) or Cache.empty(self.machine.sizes.batch)
        most = max(map(len, cache.rows), default=0)
        free = tuple(policy for policy in POLICIES if policy != HEAVY_HITTERS)
        tracked = POLICIES if self.machine.sizes.track or choose.rarely() else free
        kind = choose.one_of(tracked)
        fields: dict[str, Any] = {}
        least = 0
        if choose.maybe():
            fields["sinks"] = choose.integer(0, 2)
            least += fields["sinks"]
        if kind != "window" and choose.maybe():
            fields["recent"] = choose.integer(0, 2)
            least += fields["recent"]
        if choose.rarely():
            least = 0  # so that the budget may be too small for both
        if kind == "snapkv":
            fields["q"] = choose.plain(script.batch, script.Hq, choose.integer(1, 3), script.D)
            fields |= {"pool": choose.one_of([3, 1, 5])} if choose.maybe() else {}
            fields |= {"scale": choose.one_of([1, 0.25])} if choose.rarely() else {}

        def budget() -> int:
            return choose.one_of([least, max(least, most - 1), max(least, most // 2), most + 1, 0])

        several = self.kind == PER_HEAD and choose.maybe()
        script.evict_by(kind, [budget() for _ in range(script.Hkv)] if several else budget(), **fields)
        self.run(name)

    def _simple(self, action: str, name: str) -> None:
        """The steps without tensors."""
        choose, script = self.choose, self.script
        cache = self.machine.world.caches.get(name) or Cache.empty(self.machine.sizes.batch)
        if action == "read":
            self.read(codes=choose.maybe(), positions=choose.maybe(), tracked=choose.maybe())
        elif action == "reset":
            script.reset()
        elif action == "stats":
            script.stats()
        elif action == "reorder":
            count = script.batch + (1 if choose.rarely() else 0)
            script.reorder(*[choose.integer(0, max(script.batch - 1, 0)) for _ in range(count)])
        elif action == "fork":
            into = choose.one_of([other for other in NAMES if other != MAIN])
            free = into not in self.machine.world.caches and name in self.machine.world.caches
            script.fork(into, "ok" if free else "invalid_config")
        elif action == "drop":
            if name == MAIN:
                return
            script.drop(name, "ok" if name in self.machine.world.caches else "invalid_config")
        elif action == "save":
            script.save()
        elif action == "load":
            saved = bool(self.machine.world.files)
            script.load("" if saved else "never-saved.safetensors")
        elif action == "truncate":
            script.truncate(*self._cut(cache))
        elif action == "evict":
            held = sorted({slot.position for row in cache.rows for slot in row})
            script.evict(*[choose.one_of(held) for _ in range(choose.integer(0, 3)) if held])
        elif action == "shift":
            script.shift(choose.integer(-2, 3), choose.integer(0, max(cache.next, default=0)))
        self.run(name)

    def read(self, *, codes: bool = True, positions: bool = True, tracked: bool = True) -> None:
        """Of these what the kind has. Codes of rotated keys are not the same in every right port."""
        script = self.script
        codes = codes and self.kind == "quantised" and script.exact_keys
        script.read(codes=codes, positions=positions, tracked=tracked and self.machine.sizes.track)

    def _cut(self, cache: Cache) -> list[int]:
        """How much each row keeps; at times more than there is, or less than a window allows."""
        held = cache.next if self.kind == "rotating" else [len(row) for row in cache.rows]
        if self.kind == "rotating" and not self.choose.rarely():
            return [max(0, n - self.choose.integer(0, 2)) for n in held]
        return [self.choose.integer(0, n + (1 if self.choose.rarely() else 0)) for n in held]

    def _append_options(self) -> tuple[int, dict[str, Any]]:
        choose, script = self.choose, self.script
        least = 1 if self.kind == "cross" else 0  # nothing, written once, is no question to ask
        T = choose.integer(least, 5)
        options: dict[str, Any] = {}
        if choose.maybe():
            options["lengths"] = [choose.integer(least, T) for _ in range(script.batch)]
        if choose.rarely():
            options["padding"] = choose.one_of(["left", "right"])
        if isinstance(script, LatentScript):
            options["v"] = choose.plain(script.batch, T, script.R)
            options["k"] = choose.plain(script.batch, T, script.Dr)
            return T, options
        k, v = (choose.plain(script.batch, script.Hkv, T, n) for n in (script.D, script.Dv))
        if self.tokens:  # equal tokens have equal keys and values
            named = choose.integers(0, ALPHABET - 1, script.batch, T)
            k, v = (x * 0 + named[:, None, :, None] + np.arange(x.shape[3]) for x in (k, v))
            if not choose.rarely():
                options["tokens"] = named
        elif script.capacity is None and choose.rarely():  # one fault at a time
            v = choose.poisoned(v, choose.one_of([np.nan, np.inf]))
            if self.kind != "quantised" and choose.rarely():
                k = choose.poisoned(k, np.nan)
        return T, options | {"k": k, "v": v}

    def _attend_options(self, name: str, new: int) -> tuple[int, dict[str, Any]]:
        choose, script = self.choose, self.script
        Tq = choose.integer(0, 4)
        options: dict[str, Any] = {"q": choose.plain(script.batch, script.Hq, Tq, script.D)}
        found = conditions(choose)
        if self.kind == "cross" and not choose.rarely():
            found = {field: x for field, x in found.items() if field not in ("causal", "window")}
        options |= found
        if choose.rarely():
            options["q_offset"] = choose.integer(-1, 6)
        cache = self.machine.world.caches.get(name)
        if choose.rarely() and cache is not None:
            slots = max(map(len, cache.rows), default=0) + new
            options["mask"] = choose.flags(script.batch, 1, Tq, slots)
        return Tq, options

    def run(self, name: str) -> None:
        """The step is run, and gets the code that it must have."""
        if name != MAIN:
            self.script.on(name)
        self.script.codes[-1], _ = self.machine.do(self.script.steps[-1])


def _script(choose: Chooser, kind: str) -> CacheScript:
    batch, capacity = choose.integer(1 if kind == "cross" else 0, 3), choose.one_of([None, 8, 4, 0])
    Hq, Hkv = heads(choose)
    if kind == "latent":
        return LatentScript(
            "fuzz", choose.width(), choose.integer(0, 4), batch=batch, H=Hq, capacity=capacity
        )
    D, Dv = choose.width(), choose.width()
    options: dict[str, Any] = {}
    if kind != "cross" and choose.rarely():
        D = 2 * choose.integer(1, 3)
        options["rope"] = {"base": choose.one_of([10000.0, 100.0]), "interleaved": choose.maybe()}
        options |= {"rope_at": choose.one_of(["attend", "append"])} if choose.maybe() else {}
    if kind in EVICTING and choose.maybe():
        options["track"] = True
    if kind == "rotating":
        options |= {"window": choose.integer(1, 5), "keep": choose.integer(0, 2)}
    if kind == "paged":
        options |= {"page_size": choose.integer(1, 4), "num_pages": choose.integer(0, 20)}
    if kind == "quantised":
        options["format"] = choose.one_of(FORMATS)
        if options["format"].startswith("int"):
            options |= {"zero_point": True} if choose.maybe() else {}
            options |= {"group": choose.integer(1, 4)} if choose.maybe() else {}
            options |= {"key_groups": choose.integer(1, 4)} if choose.maybe() else {}
    sizes: dict[str, Any] = {"batch": batch, "Hq": Hq, "Hkv": Hkv, "D": D, "Dv": Dv, "capacity": capacity}
    return CacheScript("fuzz", {"kind": kind} | options, **sizes)
