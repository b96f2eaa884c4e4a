"""The kinds of caches: what each is made of, and which steps it knows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .cache_policy import check_known
from .config import rope_object
from .errors import InvalidRequest, Unsupported
from .library import Library
from .read import Config, Reader, boolean, due, integer, pick, text

KEYS_AND_VALUES: dict[str, Reader] = {"num_kv_heads": integer, "head_dim": integer}
VALUE_DIM: dict[str, Reader] = {"value_dim": integer}
CAPACITY: dict[str, Reader] = {"capacity": integer}
TRACK: dict[str, Reader] = {"track": boolean}
FIRST_STEPS = ("append", "attend", "truncate", "reset", "read")
LATER_STEPS = ("append_attend", "reorder", "fork", "drop", "save", "load", "stats")
GAPS = ("evict", "shift")


@dataclass(frozen=True)
class Kind:
    """needs: the class in the api. must, may: the fields of config beside `batch`. steps: those that it knows.

    contents: what a token is made of, the fields of an append. rope: whether it can turn keys.
    """

    needs: str
    must: Mapping[str, Reader] = field(default_factory=lambda: KEYS_AND_VALUES)
    may: Mapping[str, Reader] = field(default_factory=lambda: VALUE_DIM)
    steps: tuple[str, ...] = (*FIRST_STEPS, *LATER_STEPS)
    contents: tuple[str, str] = ("k", "v")
    rope: bool = True


KINDS = {
    "contiguous": Kind(
        "KVCache", may=VALUE_DIM | CAPACITY | TRACK, steps=(*FIRST_STEPS, *LATER_STEPS, *GAPS)
    ),
    "per_head": Kind(
        "PerHeadCache",
        may=VALUE_DIM | CAPACITY | TRACK,
        steps=tuple(s for s in (*FIRST_STEPS, *LATER_STEPS, *GAPS) if s != "truncate"),
    ),
    "rotating": Kind(
        "RotatingCache", must=KEYS_AND_VALUES | {"window": integer}, may=VALUE_DIM | {"keep": integer}
    ),
    "paged": Kind("PagedCache", must=KEYS_AND_VALUES | {"page_size": integer, "num_pages": integer}),
    "quantised": Kind(
        "QuantisedCache",
        must=KEYS_AND_VALUES | {"format": text},
        may=VALUE_DIM | CAPACITY | TRACK | {"group": integer, "zero_point": boolean},
        steps=(*FIRST_STEPS, *LATER_STEPS, *GAPS),
    ),
    "latent": Kind(
        "LatentCache",
        must={"latent_dim": integer, "rope_dim": integer},
        may=CAPACITY,
        contents=("latent", "rope_key"),
        rope=False,
    ),
    "cross": Kind(
        "CrossCache",
        steps=tuple(s for s in (*FIRST_STEPS, *LATER_STEPS) if s not in ("truncate", "append_attend")),
        rope=False,
    ),
}

QUANTISED = KINDS["quantised"]
IN_KEY_GROUPS = replace(QUANTISED, needs="KiviCache", must={**QUANTISED.must, "key_groups": integer})


def cache_kind(library: Library, config: Config) -> Kind:
    """The kind that a script asks for. Raises Unsupported for one that the library lacks."""
    name = "contiguous" if config.get("kind") is None else config["kind"]
    if not isinstance(name, str) or name not in KINDS or not hasattr(library.api, KINDS[name].needs):
        raise Unsupported(f"kind.{name}")
    if name != "quantised" or config.get("key_groups") is None:
        return KINDS[name]
    if not hasattr(library.api, IN_KEY_GROUPS.needs):
        raise Unsupported("key_groups")
    return IN_KEY_GROUPS


def cache_maker(library: Library, kind: Kind, config: Config) -> Callable[[str], Any]:
    """A function that makes an empty cache of the script for a float type, by the protocol's name."""
    make = getattr(library.api, kind.needs)
    if "track" in kind.may and config.get("track") is not None and not hasattr(make, "tracked"):
        raise Unsupported("track")
    sizes = due(config, batch=integer, **kind.must) | pick(config, **kind.may)
    rope = cache_rope_option(library, make, config) if kind.rope else {}
    if kind.needs != "PagedCache":
        return lambda dtype: make(**sizes, **rope, dtype=library.cache_dtypes[dtype])
    batch = sizes.pop("batch")
    return lambda dtype: make(library.api.PagePool(**sizes, dtype=library.cache_dtypes[dtype]), batch, **rope)


def cache_rope_option(library: Library, make: Any, config: Config) -> dict[str, Any]:
    """`rope` and `rope_at`, where config has them. Raises Unsupported for what the library's cache lacks."""
    if config.get("rope") is not None and not hasattr(make, "append_attend"):
        raise Unsupported("rope")
    if config.get("rope_at") is not None and not hasattr(make, "held_rope"):
        raise Unsupported("rope_at")
    rope = {} if config.get("rope") is None else {"rope": rope_object(library, config)}
    return rope | pick(config, rope_at=text)


def check_steps(library: Library, kind: Kind, config: Config) -> list[dict[str, Any]]:
    """The steps of the script, each one that the kind knows and the library has."""
    steps = config.get("steps")
    if not isinstance(steps, list):
        raise InvalidRequest(f"config: expected steps, a list of objects, got {steps}")
    make = getattr(library.api, kind.needs)
    for step in steps:
        if not isinstance(step, dict) or not isinstance(step.get("do"), str):
            raise InvalidRequest(f"steps: expected an object with `do`, got {step}")
        do = step["do"]
        owner = library.api if do in ("save", "load") else make
        if do not in kind.steps or not hasattr(owner, "fork" if do == "drop" else do):
            raise Unsupported(f"step.{do}")
        if step.get("padding") is not None and not hasattr(make, "append_attend"):
            raise Unsupported("append_padding")
        if do == "read" and step.get("positions") and not hasattr(make, "slot_positions"):
            raise Unsupported("positions")
        if do == "evict":
            check_known(library, step.get("policy"))
    return steps
