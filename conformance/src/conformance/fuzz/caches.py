"""Questions about caches: scripts of random steps, some of which must fail and change nothing."""

from typing import Any

from ..cases.draft import Draft
from ..cases.script import Script
from .attention import conditions, heads
from .draws import Chooser

MOST_STEPS = 8


def kv_cache(choose: Chooser) -> Draft:
    """A script on one cache, replayed after a reset."""
    Hq, Hkv = heads(choose)
    batch, capacity = choose.integer(0, 2), choose.one_of([None, 6, 3, 0])
    script = Script("fuzz", batch, Hq, Hkv, choose.width(), choose.width(), capacity)
    held = _append(choose, script, [0] * batch)  # the first keys give the cache its type
    for _ in range(choose.integer(1, MOST_STEPS)):
        action = choose.one_of(["append", "attend", "read", "truncate", "reset"])
        if action == "append":
            held = _append(choose, script, held)
        elif action == "attend":
            _attend(choose, script, held)
        elif action == "read":
            script.read()
        elif action == "truncate":
            held = _truncate(choose, script, held)
        else:
            script.reset()
            held = [0] * batch
    return script.draft("")


def _append(choose: Chooser, script: Script, held: list[int]) -> list[int]:
    T = choose.integer(0, 4)
    lengths = [choose.integer(0, T) for _ in held] if choose.maybe() else [T] * len(held)
    after = [n + new for n, new in zip(held, lengths, strict=True)]
    fits = script.capacity is None or max(after, default=0) <= script.capacity
    k = choose.plain(script.batch, script.Hkv, T, script.D)
    v = choose.plain(script.batch, script.Hkv, T, script.Dv)
    script.append(T, lengths, k=k, v=v, code="ok" if fits else "capacity_exceeded")
    return after if fits else held


def _attend(choose: Chooser, script: Script, held: list[int]) -> None:
    Tq = choose.integer(0, 3)
    options: dict[str, Any] = conditions(choose)
    if choose.rarely():
        options["q_offset"] = choose.integer(-1, 6)
    if choose.rarely():
        options["mask"] = choose.flags(script.batch, 1, Tq, max(held, default=0))
    script.attend(Tq, q=choose.plain(script.batch, script.Hq, Tq, script.D), **options)


def _truncate(choose: Chooser, script: Script, held: list[int]) -> list[int]:
    lengths = [choose.integer(0, n) for n in held]
    if held and choose.rarely():
        script.truncate(*lengths[:-1], held[-1] + 1, code="invalid_config")
        return held
    script.truncate(*lengths)
    return lengths
