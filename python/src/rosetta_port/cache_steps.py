"""The steps of a cache script. Each takes the script and the step, and gives what it writes, by name."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .cache_kinds import Kind
from .cache_policy import policy_object
from .config import named_tensor, step_options
from .errors import InvalidConfig, InvalidRequest
from .library import CacheRung, Library
from .read import boolean, integer, text, whole
from .tensors import DTYPES, Tensors, require

MAIN = "main"
DTYPE_NAMES = {DTYPES[name.upper()]: name for name in ("f32", "f64", "f16", "bf16")}

Step = dict[str, Any]
Written = dict[str, Any]


@dataclass
class Script:
    """The caches of a script that is being replayed, by name.

    dtype: of all of them. typed: whether an append or a file has settled it. folder: for relative paths. rung: what
    their attends go through; None = their own method.
    """

    library: Library
    kind: Kind
    make: Callable[[str], Any]
    tensors: Tensors
    dtype: str
    folder: Path | None
    rung: CacheRung | None = None
    typed: bool = False
    caches: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.caches[MAIN] = self.make(self.dtype)

    def cache(self, step: Step) -> Any:
        """The cache that the step speaks of."""
        return self.caches[self.name(step)]

    def name(self, step: Step) -> str:
        """The name of that cache."""
        name = MAIN if step.get("cache") is None else text("cache", step["cache"])
        if name not in self.caches:
            raise InvalidConfig(f"cache: expected one of {', '.join(self.caches) or 'none'}, got {name}")
        return name

    def tensor(self, step: Step, field: str) -> Any:
        """The library's array of a tensor that the step must name."""
        return self.library.convert(require(self.tensors, _name(step, field)))

    def take_type(self, step: Step, field: str) -> None:
        """While nothing has settled the type, caches are of the type of what meets them."""
        x = self.tensors.get(_name(step, field))
        if not self.typed and isinstance(x, np.ndarray) and x.dtype in DTYPE_NAMES:
            self.become(DTYPE_NAMES[x.dtype])

    def become(self, dtype: str) -> None:
        """All caches anew, in another type; they are empty."""
        if dtype != self.dtype:
            empty = self.make(dtype)
            # Forks, so that they share one pool of pages; where there was none, there is one cache.
            self.caches = {name: empty.fork() if n else empty for n, name in enumerate(self.caches)}
            self.dtype = dtype


def _append(script: Script, step: Step) -> Written:
    new, options = _new(script, step)
    script.cache(step).append(*new, **options)
    script.typed = True
    return {}


def _new(script: Script, step: Step) -> tuple[list[Any], dict[str, Any]]:
    """The two arrays that an append brings, and its options."""
    script.name(step)
    first, second = script.kind.contents
    new = [script.tensor(step, first), script.tensor(step, second)]
    script.take_type(step, first)
    options: dict[str, Any] = {}
    for name in ("lengths", "tokens"):
        if step.get(name) is not None:
            options[name] = script.library.convert(named_tensor(step, name, script.tensors))
    if "tokens" in options and script.kind.needs != "PagedCache":
        raise InvalidConfig("tokens: expected them for a paged cache alone")
    if step.get("padding") is not None:
        options["padding"] = text("padding", step["padding"])
    return new, options


def _attend(script: Script, step: Step) -> Written:
    script.name(step)
    q, out = script.tensor(step, "q"), _name(step, "out")
    script.take_type(step, "q")
    options = step_options(script.library, step, script.tensors)
    lse = None if step.get("lse") is None else _name(step, "lse")
    if script.rung is not None:
        return _given(out, lse, script.rung.attend(script.cache(step), q, **options))
    if lse is None:
        return {out: script.cache(step).attend(q, **options)}
    steps = script.cache(step).attend_steps(q, **options)
    return {out: steps.output, lse: steps.lse}


def _given(out: str, lse: str | None, result: tuple[Any, Any]) -> Written:
    """Output and log-sum-exp under the names that the step has for them."""
    return {out: result[0]} if lse is None else {out: result[0], lse: result[1]}


def _append_attend(script: Script, step: Step) -> Written:
    new, options = _new(script, step)
    q, out = script.tensor(step, "q"), _name(step, "out")
    lse = None if step.get("lse") is None else _name(step, "lse")
    options |= step_options(script.library, step, script.tensors)
    if script.rung is not None:
        result = script.rung.append_attend(script.cache(step), *new, q, **options)
    else:
        steps = script.cache(step).append_attend(*new, q, **options)
        result = steps.output, steps.lse
    script.typed = True
    return _given(out, lse, result)


def _truncate(script: Script, step: Step) -> Written:
    lengths = step.get("lengths")
    if not isinstance(lengths, list) or any(whole(n) is None for n in lengths):
        raise InvalidConfig(f"truncate: lengths: expected a list of integers, got {lengths}")
    script.cache(step).truncate([whole(n) for n in lengths])
    return {}


def _reset(script: Script, step: Step) -> Written:
    script.cache(step).reset()
    return {}


def _read(script: Script, step: Step) -> Written:
    cache, out = script.cache(step), _name(step, "out")
    codes, positions, tracked = (_flag(step, name) for name in ("codes", "positions", "tracked"))
    if codes and not hasattr(cache, "codes"):
        raise InvalidConfig("codes: expected a quantised cache")
    if tracked and not getattr(cache, "track", False):
        raise InvalidConfig("tracked: expected a cache that tracks")
    written = dict(zip((*script.kind.contents, "lengths"), cache.read(), strict=True))
    if positions:
        written["positions"] = cache.slot_positions()
    if tracked:
        written["tracked"] = cache.tracked()
    if codes:
        written |= _codes(cache)
    return {f"{out}.{name}": x for name, x in written.items()}


def _codes(cache: Any) -> Written:
    """k_codes, k_scale, k_zero and those of v, where the format has them; in groups of tokens also k_tail."""
    if hasattr(cache, "code_arrays"):
        return dict(cache.code_arrays())
    parts: Written = {}
    for name, codes in zip(("k", "v"), cache.codes(), strict=True):
        parts |= {f"{name}_{part}": getattr(codes, part) for part in ("codes", "scale", "zero")}
    return {name: x for name, x in parts.items() if x is not None}


def _reorder(script: Script, step: Step) -> Written:
    script.cache(step).reorder(_integers(step, "index"))
    return {}


def _fork(script: Script, step: Step) -> Written:
    cache, into = script.cache(step), _name(step, "into")
    if into in script.caches:
        raise InvalidConfig(f"fork: into: expected a new name, got {into}")
    script.caches[into] = cache.fork()
    return {}


def _drop(script: Script, step: Step) -> Written:
    script.caches.pop(script.name(step)).reset()  # pages go back to their pool
    return {}


def _evict(script: Script, step: Step) -> Written:
    cache = script.cache(step)
    if step.get("policy") is None:
        cache.evict(_integers(step, "positions"))
        return {}
    if step.get("positions") is not None:
        raise InvalidConfig("evict: expected positions or a policy, got both")
    policy = policy_object(script.library, step["policy"], script.tensors)
    if hasattr(policy, "q"):
        script.take_type({"do": "evict", **step["policy"]}, "q")
        cache = script.cache(step)
    cache.evict_by(policy)
    return {}


def _shift(script: Script, step: Step) -> Written:
    cache = script.cache(step)
    for name in ("by", "from"):
        if step.get(name) is None:
            raise InvalidRequest(f"shift: {name}: expected an integer, got none")
    cache.shift(integer("by", step["by"]), integer("from", step["from"]))
    return {}


def _save(script: Script, step: Step) -> Written:
    cache = script.cache(step)
    script.library.api.save(cache, _path(script, step))
    return {}


def _load(script: Script, step: Step) -> Written:
    script.name(step)
    path, before = _path(script, step), script.dtype
    others = [] if script.typed else [dtype for dtype in script.library.cache_dtypes if dtype != before]
    for dtype in [*others, before]:  # without a type, a cache takes the file's
        script.become(dtype)
        try:
            script.library.api.load(script.cache(step), path)
        except Exception as error:
            if dtype == before or getattr(error, "code", None) != "dtype_mismatch":
                script.become(before)
                raise
        else:
            script.typed = True
            break
    return {}


def _stats(script: Script, step: Step) -> Written:
    stats, out = script.cache(step).stats(), _name(step, "out")
    counts = {"bytes": [stats.num_bytes]} | ({} if stats.pages is None else {"pages": list(stats.pages)})
    arrays = {name: script.library.from_numpy(np.array(n, np.int64)) for name, n in counts.items()}
    return {f"{out}.{name}": x for name, x in ({"positions": stats.positions} | arrays).items()}


STEPS = {
    "append": _append,
    "attend": _attend,
    "append_attend": _append_attend,
    "truncate": _truncate,
    "reset": _reset,
    "read": _read,
    "reorder": _reorder,
    "fork": _fork,
    "drop": _drop,
    "evict": _evict,
    "shift": _shift,
    "save": _save,
    "load": _load,
    "stats": _stats,
}


def _name(step: Step, field: str) -> str:
    """A name that a step must have."""
    name = step.get(field)
    if not isinstance(name, str):
        raise InvalidRequest(f"{step['do']}: {field}: expected a name, got {name}")
    return name


def _integers(step: Step, field: str) -> list[int]:
    """A list of integers that a step must have."""
    values = step.get(field)
    if not isinstance(values, list):
        raise InvalidRequest(f"{step['do']}: {field}: expected a list of integers, got {values}")
    return [integer(field, n) for n in values]


def _flag(step: Step, field: str) -> bool:
    """true or false, which it is when it is absent."""
    return step.get(field) is not None and boolean(field, step[field])


def _path(script: Script, step: Step) -> Path:
    """The file that a step names, in the folder of the request's outputs unless it says where."""
    path = Path(_name(step, "file"))
    if script.folder is None and not path.is_absolute():
        raise InvalidRequest(f"{step['do']}: file: expected an absolute path without outputs, got {path}")
    return path if script.folder is None else script.folder / path
