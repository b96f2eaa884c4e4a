"""A cache script on the reference machine: full history on plain lists, visibility by the rule, pages counted.

It also says which code each step must give, so that a trace of random steps can be judged.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..tensors import Tensors
from .cache_attend import Attend, read_attend
from .cache_checks import (
    CAPACITY,
    CONFIG,
    DTYPE,
    OK,
    REQUEST,
    Refused,
    check_append,
    check_attend,
    check_index,
    check_truncate,
    need,
    whole,
)
from .cache_pages import cut_pages, share_prefixes, take_pages
from .cache_read import Written, read, stats
from .cache_state import PAGED, ROTATING, Cache, Sizes, Slot, World, store
from .eviction import Chosen, choose
from .key_groups import loosen, quantise_full, regroup
from .per_head import as_rows, join_heads

Event = Attend | Written | Chosen
MAIN = "main"


def answer_kv_cache(config: dict[str, Any], inputs: Tensors, steps: Sequence[str] | None = None) -> Tensors:
    """What the ok steps write. `steps`: the code of each step; one that must fail is skipped."""
    written, sizes = Tensors(), Sizes.of(config)
    for _, event in events(config, inputs, steps):
        if isinstance(event, Written):
            written |= event.tensors
        elif isinstance(event, Attend):
            written[event.step["out"]] = join_heads(sizes, event.answer["output"])
            if event.step.get("lse"):
                written[event.step["lse"]] = join_heads(sizes, event.answer["lse"])
    return written


def events(
    config: dict[str, Any], inputs: Tensors, steps: Sequence[str] | None = None
) -> Iterator[tuple[int, Event]]:
    """Every step of the script that writes or chooses something, with its number."""
    machine = Machine(config, inputs)
    for number, step in enumerate(config["steps"]):
        if steps is None or steps[number] == OK:
            _, event = machine.do(step)
            if event is not None:
                yield number, event


def predict_codes(config: dict[str, Any], inputs: Tensors) -> list[str]:
    """The code that each step must give."""
    machine = Machine(config, inputs)
    return [machine.do(step)[0] for step in config["steps"]]


class Machine:
    """The caches of a script, which begins with one of the name `main`."""

    def __init__(self, config: dict[str, Any], inputs: Tensors) -> None:
        self.sizes, self.inputs = Sizes.of(config), inputs
        self.world = World({MAIN: Cache.empty(self.sizes.batch)})

    def do(self, step: dict[str, Any]) -> tuple[str, Event | None]:
        """The code of the step, and what it writes. A step that fails changes nothing."""
        before = self.world
        self.world = before.copy()
        try:
            name = step.get("cache") or MAIN
            need(name in self.world.caches, CONFIG)
            return OK, _STEPS[step["do"]](self, self.world.caches[name], step)
        except Refused as refused:
            self.world = before
            return refused.code, None

    def append(self, cache: Cache, step: dict[str, Any]) -> None:
        """Every counted position of every row, after what a rotating row forgets."""
        of_append: dict[str, Any] = {name: step[name] for name in ("k", "v", "lengths") if name in step}
        inputs = as_rows(self.sizes, cache, of_append, self.inputs)  # a mask is over what is held after it
        counted = check_append(self.sizes, cache, step, inputs)
        if self.sizes.kind == PAGED:
            counts = [part.stop - part.start for part in counted]
            need(take_pages(self.world, self.sizes, cache, counts), CAPACITY)
        given = {name: inputs[step[name]] for name in self.sizes.parts}
        given = {name: x if x.ndim == 4 else x[:, None] for name, x in given.items()}
        tokens = None if step.get("tokens") is None else inputs[step["tokens"]]
        cache.dtype = cache.dtype or next(iter(given.values())).dtype
        cache.written = True
        for b, part in enumerate(counted):
            if part.stop > part.start:
                self._forget(cache, b)
            for t in range(part.start, part.stop):
                position = cache.next[b]
                parts = {
                    name: store(self.sizes, name, x[b, :, t], position if self._rotates(name) else None)
                    for name, x in given.items()
                }
                cache.rows[b].append(Slot(position, parts, None if tokens is None else int(tokens[b, t])))
                cache.next[b] += 1
            cache.rows[b] = quantise_full(self.sizes, cache.rows[b])
        if tokens is not None:
            share_prefixes(self.world, self.sizes, cache)

    def attend(self, cache: Cache, step: dict[str, Any]) -> Event:
        """As sdpa; what every slot is given is tracked, where it is asked for."""
        inputs = as_rows(self.sizes, cache, step, self.inputs)
        q = check_attend(self.sizes, cache, step, inputs)
        event = read_attend(self.sizes, cache, step, inputs, q)
        if self.sizes.track:
            cache.rows = [
                [replace(slot, reads=(*slot.reads, (event, b, s))) for s, slot in enumerate(row)]
                for b, row in enumerate(cache.rows)
            ]
        return event

    def append_attend(self, cache: Cache, step: dict[str, Any]) -> Event:
        """Both or neither."""
        self.append(cache, step)
        return self.attend(cache, step)

    def truncate(self, cache: Cache, step: dict[str, Any]) -> None:
        """Each row keeps its first slots, or positions."""
        lengths = check_truncate(cache, self.sizes, step)
        for b, n in enumerate(lengths):
            row = cache.rows[b]
            if self.sizes.kind == ROTATING:
                cache.rows[b], cache.next[b] = [slot for slot in row if slot.position < n], n
            else:
                cache.rows[b] = row if n == len(row) else regroup(self.sizes, row[:n], n)
                cache.next[b] = row[n - 1].position + 1 if n else 0
        if self.sizes.kind == PAGED:
            cut_pages(self.sizes, cache)

    def reset(self, cache: Cache, step: dict[str, Any]) -> None:
        """Nothing is held but the type."""
        dtype = cache.dtype
        cache.become(Cache.empty(self.sizes.batch))
        cache.dtype = dtype

    def read(self, cache: Cache, step: dict[str, Any]) -> Event:
        """What is held."""
        need(self.sizes.form is not None or not step.get("codes"), CONFIG)
        need(self.sizes.track or not step.get("tracked"), CONFIG)
        return read(self.sizes, cache, step)

    def reorder(self, cache: Cache, step: dict[str, Any]) -> None:
        """New rows from old ones."""
        heads = range(self.sizes.split)
        cache.become(cache.take([b * len(heads) + h for b in check_index(self.sizes, step) for h in heads]))

    def fork(self, cache: Cache, step: dict[str, Any]) -> None:
        """Another name for the same content."""
        need(isinstance(step.get("into"), str), REQUEST)
        need(step["into"] not in self.world.caches, CONFIG)
        self.world.caches[step["into"]] = cache.copy()

    def drop(self, cache: Cache, step: dict[str, Any]) -> None:
        """The name is free again."""
        del self.world.caches[step.get("cache") or MAIN]

    def evict(self, cache: Cache, step: dict[str, Any]) -> Chosen | None:
        """Slots go, positions and the counter stay."""
        if step.get("policy") is not None:
            need(step.get("positions") is None, CONFIG)
            chosen = choose(self.sizes, cache, step, self.inputs)
            cache.rows = [self._kept(row, kept) for row, kept in zip(cache.rows, chosen.kept, strict=True)]
            return chosen
        need(isinstance(step.get("positions"), list), REQUEST)
        gone = {whole(j) for j in step["positions"]}
        cache.rows = [
            self._kept(row, [s for s, slot in enumerate(row) if slot.position not in gone])
            for row in cache.rows
        ]
        return None

    def shift(self, cache: Cache, step: dict[str, Any]) -> None:
        """Positions from `from` on move by `by`, and their rotated keys turn on."""
        need("by" in step and "from" in step, REQUEST)
        by, start = whole(step["by"]), whole(step["from"])
        for b, row in enumerate(cache.rows):
            stays = [slot.position for slot in row if slot.position < start]
            floor = max(stays, default=-1)
            after = cache.next[b] + (by if cache.next[b] > start else 0)
            if by and len(stays) < len(row) and self.sizes.rotates:
                row = loosen(self.sizes, row, len(stays))
            moved = [self._shifted(slot, by) if slot.position >= start else slot for slot in row]
            if (
                self.sizes.key_groups is not None
            ):  # what is not finite has no code, nor will the tail have one
                need(all(np.isfinite(slot.parts["k"].value).all() for slot in moved), CONFIG)
            need(all(slot.position > floor for slot in moved[len(stays) :]), CONFIG)
            need(after > max((slot.position for slot in moved), default=-1), CONFIG)
            cache.rows[b], cache.next[b] = quantise_full(self.sizes, moved), after

    def save(self, cache: Cache, step: dict[str, Any]) -> None:
        """A copy under the name of the file."""
        need(isinstance(step.get("file"), str), REQUEST)
        self.world.files[step["file"]] = cache.copy()

    def load(self, cache: Cache, step: dict[str, Any]) -> None:
        """What a file holds, without its tokens; pages are taken anew, row by row."""
        need(step.get("file") in self.world.files, REQUEST)
        file = self.world.files[step["file"]]
        dtype = cache.dtype or file.dtype
        need(file.dtype in (None, dtype), DTYPE)  # a cache without keys was saved before it had a type
        cache.become(file)
        cache.dtype = dtype
        if self.sizes.kind == PAGED:
            slots = [len(row) for row in file.rows]
            cache.rows = [[] for _ in slots]
            cache.tables = [[] for _ in slots]
            need(take_pages(self.world, self.sizes, cache, slots), CAPACITY)
            cache.rows = [[replace(slot, token=None) for slot in row] for row in file.rows]

    def stats(self, cache: Cache, step: dict[str, Any]) -> Event:
        """Slots, bytes, pages."""
        return stats(self.world, self.sizes, cache, step)

    def _forget(self, cache: Cache, b: int) -> None:
        """Before new ones come, what no query from now on can see."""
        if self.sizes.kind == ROTATING:
            last = cache.next[b] - self.sizes.window
            cache.rows[b] = [s for s in cache.rows[b] if s.position < self.sizes.keep or s.position > last]

    def _kept(self, row: list[Slot], kept: list[int]) -> list[Slot]:
        """The row with these slots alone."""
        first = next((s for s, slot in enumerate(kept) if s != slot), len(kept))  # before it all are kept
        return row if len(kept) == len(row) else regroup(self.sizes, [row[s] for s in kept], first)

    def _rotates(self, name: str) -> bool:
        return name == "k" and self.sizes.rotates

    def _shifted(self, slot: Slot, by: int) -> Slot:
        parts = {
            name: store(self.sizes, name, part, by) if self._rotates(name) and by else part
            for name, part in slot.parts.items()
        }
        return replace(slot, position=slot.position + by, parts=parts)


_STEPS: dict[str, Callable[[Machine, Cache, dict[str, Any]], Event | None]] = {
    "append": Machine.append,
    "attend": Machine.attend,
    "append_attend": Machine.append_attend,
    "truncate": Machine.truncate,
    "reset": Machine.reset,
    "read": Machine.read,
    "reorder": Machine.reorder,
    "fork": Machine.fork,
    "drop": Machine.drop,
    "evict": Machine.evict,
    "shift": Machine.shift,
    "save": Machine.save,
    "load": Machine.load,
    "stats": Machine.stats,
}
