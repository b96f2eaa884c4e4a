"""The policies by which a cache script may evict."""

from typing import Any

from .errors import InvalidConfig, InvalidRequest, Unsupported
from .library import Library
from .read import Config, Reader, fields, integer, list_of, number, pick, text
from .tensors import Tensors, require


def budget(name: str, value: Any) -> int | list[int]:
    """An integer, or a list of them."""
    return list_of(integer)(name, value) if isinstance(value, list) else integer(name, value)


SINKS: dict[str, Reader] = {"sinks": integer}
ENDS: dict[str, Reader] = SINKS | {"recent": integer}
# By type of policy: the class, and the fields that it may have beside the budget.
POLICIES: dict[str, tuple[str, dict[str, Reader]]] = {
    "window": ("Window", SINKS),
    "heavy_hitters": ("HeavyHitters", ENDS),
    "snapkv": ("SnapKV", ENDS | {"scale": number, "pool": integer}),
    "key_norm": ("KeyNorm", ENDS),
}


def check_known(library: Library, policy: Any) -> None:
    """Raises Unsupported for a policy of a type that the library lacks; what is none at all fails its own step."""
    name = policy.get("type") if isinstance(policy, dict) else None
    if isinstance(name, str) and (name not in POLICIES or not hasattr(library.api, "eviction")):
        raise Unsupported(f"policy.{name}")


def policy_object(library: Library, value: Any, tensors: Tensors) -> Any:
    """The policy of an object with `type` and `budget`."""
    policy = fields("policy", value)
    kind = _due(policy, "type", text)
    name, readers = POLICIES[kind]
    found = {"budget": _due(policy, "budget", budget)} | pick(policy, **readers)
    if kind == "window" and policy.get("recent") is not None:
        raise InvalidConfig(f"recent: expected none for a window, got {policy['recent']}")
    if kind == "snapkv":
        found["q"] = library.convert(require(tensors, _due(policy, "q", _name)))
    return getattr(library.api.eviction, name)(**found)


def _due(policy: Config, name: str, reader: Reader) -> Any:
    """A field that a policy must have."""
    if policy.get(name) is None:
        raise InvalidRequest(f"policy: expected {name}, got none")
    return reader(name, policy[name])


def _name(name: str, value: Any) -> str:
    """The name of a tensor; without one the tensor is missing, as it is in an attend."""
    if not isinstance(value, str):
        raise InvalidRequest(f"policy: {name}: expected a name, got {value}")
    return value
