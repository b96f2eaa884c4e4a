"""From JSON values to the library's arguments. Only JSON types are checked here, not what numbers make sense.

A reader takes the name of a field and its value, which is there, and raises InvalidConfig for the wrong type.
"""

from collections.abc import Callable
from typing import Any

from .errors import InvalidConfig, InvalidRequest

FARTHEST = 2**62

Config = dict[str, Any]
Reader = Callable[[str, Any], Any]


def number(name: str, value: Any) -> float:
    """A number, as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidConfig(f"{name}: expected a number, got {value}")
    try:
        return float(value)
    except OverflowError as error:
        raise InvalidConfig(f"{name}: expected a finite number, got {value}") from error


def integer(name: str, value: Any) -> int:
    """An integer, written 2 or 2.0."""
    n = whole(value)
    if n is None:
        raise InvalidConfig(f"{name}: expected an integer, got {value}")
    return n


def boolean(name: str, value: Any) -> bool:
    """true or false, and no number."""
    if not isinstance(value, bool):
        raise InvalidConfig(f"{name}: expected true or false, got {value}")
    return value


def text(name: str, value: Any) -> str:
    """A name; whether it is known is the library's matter."""
    if not isinstance(value, str):
        raise InvalidConfig(f"{name}: expected a name, got {value}")
    return value


def list_of(reader: Reader) -> Reader:
    """The reader of a list."""

    def read(name: str, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise InvalidConfig(f"{name}: expected a list, got {value}")
        return [reader(name, x) for x in value]

    return read


def window(name: str, value: Any) -> tuple[int | None, int | None]:
    """[left, right], with null for an open side."""
    good = isinstance(value, list) and all(side is None or whole(side) is not None for side in value)
    if not good or len(value) != 2:
        raise InvalidConfig(f"{name}: expected a pair of integers or nulls, got {value}")
    return whole(value[0]), whole(value[1])


def fields(name: str, value: Any) -> Config:
    """An object."""
    if not isinstance(value, dict):
        raise InvalidConfig(f"{name}: expected an object, got {value}")
    return value


def pick(config: Config, **readers: Reader) -> dict[str, Any]:
    """Those of these fields that are there; the others are left to the library's defaults."""
    return {name: read(name, config[name]) for name, read in readers.items() if config.get(name) is not None}


def due(config: Config, **readers: Reader) -> dict[str, Any]:
    """All of these fields, which a request must have. Raises InvalidRequest for a missing one."""
    for name in readers:
        if config.get(name) is None:
            raise InvalidRequest(f"config: expected {name}, got none")
    return pick(config, **readers)


def due_within(owner: str, config: Config, **readers: Reader) -> dict[str, Any]:
    """All of these fields, which an object within config must have. Raises InvalidConfig for a missing one."""
    for name in readers:
        if config.get(name) is None:
            raise InvalidConfig(f"{owner}: expected {name}, got none")
    return pick(config, **readers)


def number_or_none(config: Config, name: str) -> float | None:
    """A number, or None where it is absent or null."""
    return pick(config, **{name: number}).get(name)


def integer_or_none(config: Config, name: str) -> int | None:
    """An integer, or None where it is absent or null."""
    return pick(config, **{name: integer}).get(name)


def whole(value: Any) -> int | None:
    """The integer that a JSON number is, written 2 or 2.0; None for any other value.

    One beyond ±FARTHEST, where no position is, becomes that: sums with it stay within 64 bits.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0:
        return None
    return int(max(-FARTHEST, min(value, FARTHEST)))
