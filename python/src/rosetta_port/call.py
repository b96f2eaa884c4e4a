"""A library call that is ready to be made: all is read and converted, so that it can be timed alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .tensors import Arrays


@dataclass(frozen=True)
class Call:
    """What `run` and `bench` need of any op.

    evaluate: the library call, and nothing else.
    outputs: the wanted arrays of its result, by name.
    steps: for a script, the code of each step in its result.
    """

    evaluate: Callable[[], Any]
    outputs: Callable[[Any], Arrays]
    steps: Callable[[Any], list[str]] | None = None
