"""Two ways to the same answer: caches of another kind, another order of the same steps, and what must leave no trace.

None of these needs an expected value. A twin is a script, and perhaps a second one, with pairs of their outputs that
must be equal: not a bit apart where the same sums are made, and within both bounds where an order may differ.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import hypothesis
import numpy as np

from ..cases.cache_script import CacheScript
from ..cases.draft import Draft
from ..oracle.cache_attend import gather
from ..oracle.cache_state import EVICTING, PER_HEAD
from ..oracle.kv_cache import MAIN, Machine, predict_codes
from . import caches
from .cache_family import Family, add, draw_format, draw_rope, draw_sizes, draw_tensors
from .draws import Chooser

BITS, ORDER = "bits", "order"  # how near: never a bit apart; not a bit where sums have a fixed order
FIELDS = ("out", "lse")
AGAIN = "again."


@dataclass(frozen=True)
class Pair:
    """Outputs that must be equal. second: of the second script where there is one; several are joined along axis 2.

    rows: which rows of the first are the second's; None means all.
    """

    first: str
    second: tuple[str, ...]
    rows: slice | None = None


@dataclass(frozen=True)
class Twin:
    """name: of the property. drafts: one script, or two. near: BITS or ORDER."""

    name: str
    drafts: tuple[Draft, ...]
    pairs: tuple[Pair, ...]
    near: str


def draw_twin(choose: Chooser) -> Twin:
    """Any of the properties, on small caches."""
    return choose.one_of(TWINS)(choose)


def chunks(choose: Chooser) -> Twin:
    """All at once, in chunks, or one by one: every query sees the same."""
    kind = choose.one_of(["contiguous", "rotating", "paged", "quantised", "latent", "per_head"])
    family = Family(choose, kind)
    whole, parts = family.script(), family.script()
    cuts = [choose.integer(1, 3) for _ in range(choose.integer(1, 4))]
    T = sum(cuts)
    k, v, q = draw_tensors(choose, whole, T, T)
    add(whole, k, v, causal=True, q=q)
    start = 0
    for n in cuts:
        some = slice(start, start + n)
        add(parts, k[..., some, :], v[..., some, :], causal=True, q=q[:, :, some])
        start += n
    names = tuple(f"out{i}" for i in range(len(cuts)))
    lse = tuple(f"lse{i}" for i in range(len(cuts)))
    pairs = (Pair("out0", names), Pair("lse0", lse))
    return Twin("chunks", (_finish(whole), _finish(parts)), pairs, ORDER)


def replay(choose: Chooser) -> Twin:
    """A trace, a reset, and the same trace: the same, if every step ends as it did."""
    draft = caches.kv_cache(choose)
    steps, codes = draft.config["steps"], draft.steps or ()
    named = {
        step[field]: code
        for step, code in zip(steps, codes, strict=True)
        for field in FIELDS
        if field in step
    }
    first = [name for name in named if not name.startswith(AGAIN)]
    again = [name for name in named if name.startswith(AGAIN)]
    # A load of what was saved later, or a step on what was dropped since, is another trace.
    same = [named[name] for name in first] == [named[name] for name in again]
    ok = [name for name in first if named[name] == "ok"]
    if not same:
        hypothesis.reject()
    return Twin(
        "replay",
        (replace(draft, id="fuzz/kv_cache"),),
        tuple(Pair(name, (AGAIN + name,)) for name in ok),
        ORDER,
    )


def failure(choose: Chooser) -> Twin:
    """A step that fails changes no bit of what is held."""
    trace = _trace(choose)
    script = trace.script
    half: list[dict[str, Any]] = []  # always asked: the one step of which a half can be left behind
    steps: list[dict[str, Any]] = [
        {"do": "attend", "q": "nothing", "out": "x"},
        {"do": "reorder", "index": [*range(1, script.batch), script.batch]},
        {"do": "load", "file": "never-saved.safetensors"},
        {"do": "fork", "into": MAIN},
        {"do": "drop", "cache": "nobody"},
    ]
    if trace.kind in EVICTING:
        steps += [
            {"do": "evict", "policy": {"type": "window", "budget": 1, "sinks": 2}},
            {"do": "evict", "policy": {"type": "key_norm", "budget": -1}},
            {"do": "evict", "positions": [0.5]},
            {"do": "shift", "by": -1, "from": 0},
        ]
    if trace.kind not in ("cross", PER_HEAD):
        steps.append({"do": "truncate", "lengths": [99] * script.batch})
    if trace.kind != "latent":
        script.inputs["wrong"] = choose.plain(script.batch, script.Hkv, 1, script.D + 1)
        k, v, _ = draw_tensors(choose, script, 1, 0)
        script.inputs |= {"right_k": k, "right_v": v}
        append = {"do": "append", "k": "right_k", "v": "right_v"}
        fits = _code(trace, append) == "ok"  # else there would be two faults, and it is open which is told
        steps.append(append)  # beyond a capacity, or to what is written once
        if fits:
            steps += [append | {"k": "wrong"}, append | {"v": "nothing"}, append | {"padding": "middle"}]
        if fits and trace.kind != "cross":
            half = [append | {"do": "append_attend", "q": "wrong", "out": "x"}]  # the append alone would do
    before = _look(trace, stats=True)
    for step in [*half, *(choose.one_of(steps) for _ in range(choose.integer(1, 3)))]:
        if _code(trace, step) != "ok":
            script.steps.append(step)
    after = _look(trace, stats=True)
    return Twin("failure", (_finish(script),), _pairs(before, after), BITS)


def _code(trace: caches.Trace, step: dict[str, Any]) -> str:
    """What the step would give, were it tried."""
    world = trace.machine.world
    code, _ = trace.machine.do(step)
    trace.machine.world = world
    return code


def fork(choose: Chooser) -> Twin:
    """What happens to a fork, and to other rows of a pool, changes no bit of its origin."""
    trace = _trace(choose)
    script = trace.script
    for name in list(trace.machine.world.caches):
        if name != MAIN:
            script.drop(name)
            trace.run(MAIN)
    before = _look(trace, stats=False)
    script.fork("b")
    trace.run(MAIN)
    for _ in range(choose.integer(1, 8)):
        trace.step(("b",))
    after = _look(trace, stats=False)
    return Twin("fork", (_finish(script),), _pairs(before, after), BITS)


def paged(choose: Chooser) -> Twin:
    """Pages are a matter of memory alone."""
    sizes = draw_sizes(choose)
    rope = draw_rope(choose, sizes)
    one = CacheScript("fuzz", {"kind": "contiguous"} | rope, **sizes)
    pages = {"kind": "paged", "page_size": choose.integer(1, 4), "num_pages": 60}
    other = CacheScript("fuzz", pages | rope, **sizes)
    held = [1] * one.batch
    k, v, _ = draw_tensors(choose, one, 1, 0)
    for script in (one, other):
        script.append(1, k=k, v=v)
    for _ in range(choose.integer(1, 8)):
        action = choose.one_of(["append", "attend", "append", "truncate", "reorder", "append_attend"])
        if action in ("append", "append_attend"):
            T = choose.integer(0, 4)
            lengths = [choose.integer(0, T) for _ in held]
            held = [a + b for a, b in zip(held, lengths, strict=True)]
            k, v, q = draw_tensors(choose, one, T, choose.integer(1, 2))
            for script in (one, other):
                add(script, k, v, lengths=lengths, **({"q": q} if action == "append_attend" else {}))
        elif action == "attend":
            _, _, q = draw_tensors(choose, one, 0, choose.integer(1, 3))
            options: dict[str, Any] = {"causal": choose.maybe()}
            for script in (one, other):
                script.attend(q.shape[2], q=q, **options)
        elif action == "truncate":
            held = [choose.integer(0, n) for n in held]
            for script in (one, other):
                script.truncate(*held)
        else:
            index = [choose.integer(0, len(held) - 1) for _ in held]
            held = [held[b] for b in index]
            for script in (one, other):
                script.reorder(*index)
    for script in (one, other):
        script.read(positions=True)
    return _same_outputs("paged", one, other)


def rotating(choose: Chooser) -> Twin:
    """What is forgotten is what a mask hides: a full cache with that mask, and the rotating one."""
    sizes = draw_sizes(choose)
    rope = draw_rope(choose, sizes)
    window, keep = choose.integer(1, 5), choose.integer(0, 2)
    full = CacheScript("fuzz", {"kind": "contiguous"} | rope, **sizes)
    other = CacheScript("fuzz", {"kind": "rotating", "window": window, "keep": keep} | rope, **sizes)
    next_ = np.zeros(full.batch, np.int64)
    for _ in range(choose.integer(1, 6)):
        T = choose.integer(1, 5)
        lengths = [choose.integer(1, T) for _ in range(full.batch)]
        Tq = choose.integer(1, min(lengths, default=1))
        k, v, q = draw_tensors(choose, full, T, Tq)
        next_ = next_ + np.array(lengths, np.int64)
        j = np.arange(max(next_, default=0))
        p = (next_[:, None] - Tq + np.arange(Tq))[:, None, :, None]
        seen = (j <= p) & ((p - j < window) | (j < keep))
        add(full, k, v, lengths=lengths, q=q, mask=seen)
        add(other, k, v, lengths=lengths, q=q)
    return _same_outputs("rotating", full, other)


def dequantised(choose: Chooser) -> Twin:
    """A quantised cache is a contiguous one of what its codes stand for."""
    sizes = draw_sizes(choose)
    kind: dict[str, Any] = {"kind": "quantised"} | draw_format(choose)
    if kind["format"].startswith("int") and choose.maybe():
        kind["key_groups"] = choose.integer(1, 4)
    one = CacheScript("fuzz", kind, **sizes)
    T = choose.integer(1, 9)
    k, v, q = (
        x.astype(np.float32).astype(np.float64) for x in draw_tensors(choose, one, T, choose.integer(1, 3))
    )
    lengths = [choose.integer(0, T) for _ in range(one.batch)]
    causal = choose.maybe()
    add(one, k, v, lengths=lengths, q=q, causal=causal)
    machine = Machine(one.sizes(), one.inputs)
    machine.do(one.steps[0])
    values = gather(machine.sizes, machine.world.caches[MAIN].rows)
    other = CacheScript("fuzz", {"kind": "contiguous"}, **sizes)
    add(other, values["k"], values["v"], lengths=lengths, q=q, causal=causal)
    return _same_outputs("dequantised", one, other)


def evicted(choose: Chooser) -> Twin:
    """Slots that are gone are slots that a mask hides; by positions or by what a policy chose."""
    kind = choose.one_of(["contiguous", "per_head", "quantised"])
    script = Family(choose, kind).script()
    trace = caches.Trace(choose, script)
    T = choose.integer(1, 9)
    k, v, q = draw_tensors(choose, script, T, choose.integer(1, 2))
    script.append(T, [choose.integer(0, T) for _ in range(script.batch)], k=k, v=v)
    trace.run(MAIN)
    before = [[slot.position for slot in row] for row in trace.machine.world.caches[MAIN].rows]
    script.fork("b")
    trace.run(MAIN)
    if choose.maybe():
        trace.policy("b")
    else:
        script.evict(*[choose.integer(0, T) for _ in range(choose.integer(1, 3))])
        trace.run("b")
    after = [{slot.position for slot in row} for row in trace.machine.world.caches["b"].rows]
    left = np.zeros((len(before), max(map(len, before), default=0)), bool)
    for b, (held, kept) in enumerate(zip(before, after, strict=True)):
        left[b, : len(held)] = [position in kept for position in held]
    split = trace.machine.sizes.split  # a row of the machine for each KV head that holds its own
    shown = np.repeat(left.reshape(script.batch, split, -1), script.Hq // split, axis=1)[:, :, None]
    options: dict[str, Any] = {"causal": True} if choose.maybe() else {}
    if choose.maybe():  # by positions, which have gaps now
        options["window"] = [choose.integer(0, 4), None]
    script.attend(q.shape[2], q=q, mask=shown, **options)
    trace.run(MAIN)
    script.attend(q.shape[2], q=q, **options)
    trace.run("b")
    pairs = (Pair("out0", ("out1",)), Pair("lse0", ("lse1",)))
    return Twin("evicted", (_finish(script),), pairs, ORDER)


def row_alone(choose: Chooser) -> Twin:
    """The last row without the others."""
    kind = choose.one_of(["contiguous", "rotating", "quantised", "per_head", "latent", "paged"])
    family = Family(choose, kind)
    several, alone = family.script(choose.integer(2, 3)), family.script(1)
    for _ in range(choose.integer(1, 4)):
        T = choose.integer(1, 4)
        k, v, q = draw_tensors(choose, several, T, choose.integer(1, 2))
        lengths = [choose.integer(1, T) for _ in range(several.batch)]
        add(several, k, v, lengths=lengths, q=q, causal=True)
        add(alone, k[-1:], v[-1:], lengths=lengths[-1:], q=q[-1:], causal=True)
        if kind in EVICTING and choose.rarely():
            gone = [choose.integer(0, 4)]
            several.evict(*gone)
            alone.evict(*gone)
    number = sum("out" in step for step in several.steps)
    names = [f"{name}{n}" for n in range(number) for name in FIELDS]
    last = slice(several.batch - 1, None)
    pairs = tuple(Pair(name, (name,), last) for name in names)
    return Twin("row-alone", (_finish(several), _finish(alone)), pairs, ORDER)


TWINS: tuple[Callable[[Chooser], Twin], ...] = (
    chunks,
    replay,
    failure,
    fork,
    paged,
    rotating,
    dequantised,
    evicted,
    row_alone,
)


def _trace(choose: Chooser) -> caches.Trace:
    """A few random steps."""
    trace = caches.Trace(choose)
    trace.append(MAIN)
    for _ in range(choose.integer(0, 10)):
        trace.step()
    return trace


def _look(trace: caches.Trace, *, stats: bool) -> list[str]:
    """All that can be seen of the first cache; the names of what that writes."""
    script = trace.script
    trace.read()
    trace.run(MAIN)
    names = [script.steps[-1]["out"]]
    if stats:
        script.stats()
        trace.run(MAIN)
        names.append(script.steps[-1]["out"])
    if not trace.machine.sizes.track:  # else looking would leave a trace
        script.attend(1, q=np.ones((script.batch, script.Hq, 1, script.D)))
        trace.run(MAIN)
        names += [script.steps[-1]["out"], script.steps[-1]["lse"]]
    return names


def _pairs(before: list[str], after: list[str]) -> tuple[Pair, ...]:
    return tuple(Pair(a, (b,)) for a, b in zip(before, after, strict=True))


def _same_outputs(name: str, one: CacheScript, other: CacheScript) -> Twin:
    """Two scripts whose outputs have the same names, and must be the same."""
    drafts = _finish(one), _finish(other)
    names = [step[field] for step in one.steps for field in FIELDS if field in step]
    return Twin(name, drafts, tuple(Pair(x, (x,)) for x in names), ORDER)


def _finish(script: CacheScript) -> Draft:
    """The script as it stands, not replayed, with the codes that it must give."""
    config = script.sizes() | {"steps": script.steps}
    codes = tuple(predict_codes(config, script.inputs))
    exact = tuple(script.exact)
    return Draft("fuzz/kv_cache", "kv_cache", script.inputs, config, want=(), steps=codes, exact=exact)
