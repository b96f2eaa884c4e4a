"""How every public op takes half types, whatever library its arrays are of.

Half types are for storage. An op widens them to f32, which is exact, runs in f32 from end to end, and rounds
each result once. That happens here, at the edge of every public function; nothing behind it knows of halves.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass, replace
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

HALVES = ("f16", "bf16")

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Edge:
    """What the edge must know of a library's arrays.

    arrays: their class. scalars: what results of rank 0 may be instead. name: "f16" and so on for the element
    type of an array, None unless it is a float. widen, narrow: of an array; see cast.py.
    """

    arrays: type
    name: Callable[[Any], str | None]
    widen: Callable[[Any], Any]
    narrow: Callable[[Any, str], Any]
    scalars: tuple[type, ...] = ()

    def op(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function with the edge around it.

        Where all float arrays among the arguments have one half type, the function gets them in f32, and the
        float arrays of its result are rounded to that type. Whatever is called `lse` is f32 beside halves, and
        is left alone. Any other mixture reaches the function's own checks, which refuse it.
        """
        declared = signature(function)
        names = tuple(declared.parameters)
        by_name: Callable[..., R] = function

        @wraps(function)
        def at_the_edge(*args: P.args, **options: P.kwargs) -> R:
            arguments: dict[str, Any] = dict(zip(names, args, strict=False)) | options
            kinds: set[str] = set()
            for name, x in arguments.items():
                self._collect(kinds, name, x)
            if len(kinds) != 1 or not kinds <= set(HALVES):
                return function(*args, **options)
            declared.bind(*args, **options)  # raises as the call itself would; from here on all goes by name
            half = kinds.pop()
            wide: Any = {name: self._convert(self.widen, name, x) for name, x in arguments.items()}
            result: R = self._convert(lambda x: self.narrow(x, half), "", by_name(**wide), self.scalars)
            return result

        return at_the_edge

    def _collect(self, kinds: set[str], name: str, value: Any) -> None:
        """Adds the float types of all arrays in an argument."""
        if isinstance(value, self.arrays):
            kind = self.name(value)
            if kind is not None and not name.endswith("lse"):
                kinds.add(kind)
        else:
            for part, x in _parts(value):
                self._collect(kinds, part, x)

    def _convert(
        self, convert: Callable[[Any], Any], name: str, value: Any, scalars: tuple[type, ...] = ()
    ) -> Any:
        """The argument or result with all its float arrays converted."""
        if isinstance(value, (self.arrays, *scalars)):
            return value if self.name(value) is None or name.endswith("lse") else convert(value)
        parts = {part: self._convert(convert, part, x, scalars) for part, x in _parts(value)}
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **parts)
        if isinstance(value, tuple | list):
            return type(value)(**parts) if hasattr(value, "_fields") else type(value)(parts.values())
        return value


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    """What a dataclass or tuple is made of, by name; nothing for all else."""
    if isinstance(value, tuple | list):
        return zip(getattr(value, "_fields", map(str, range(len(value)))), value, strict=True)
    return vars(value).items() if is_dataclass(value) and not isinstance(value, type) else ()
