"""What a request asks of an op, and the plan of library calls that answers it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .library import Library
from .read import Config
from .tensors import Tensors, optional, require


@dataclass(frozen=True)
class Ask:
    """A request to an op, with the library that shall answer."""

    library: Library
    variant: str
    config: Config
    tensors: Tensors

    @property
    def api(self) -> Any:
        """The library's module."""
        return self.library.api

    def due(self, *names: str) -> list[Any]:
        """The library's arrays of tensors that a request must have."""
        return [self.library.convert(require(self.tensors, name)) for name in names]

    def some(self, *names: str, prefix: str = "") -> dict[str, Any]:
        """Those of these tensors that are there, by name without the prefix."""
        arrays = {name: optional(self.tensors, prefix + name) for name in names}
        return {name: self.library.convert(x) for name, x in arrays.items() if x is not None}


@dataclass(frozen=True)
class Plan:
    """names: of what `everything` returns, in order. output: the plain call where only the output is wanted."""

    names: Sequence[str]
    everything: Callable[[], Sequence[Any]]
    output: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Op:
    """outputs: all that the op has, in whatever variant. plan: how to get them."""

    outputs: Sequence[str]
    plan: Callable[[Ask], Plan]


def single(call: Callable[[], Any]) -> Plan:
    """A call that gives the output and nothing else."""
    return Plan(("output",), lambda: (call(),), call)


def flat(result: Sequence[Any]) -> list[Any]:
    """(output, (state, norm)) as [output, state, norm]."""
    parts: list[Any] = []
    for part in result:
        nested = isinstance(part, tuple) and not isinstance(part, np.ndarray)
        parts.extend(flat(part) if nested else [part])
    return parts
