"""One call of an ONNX operator, and what it becomes here: one or more questions to our ops, and the way back.

Suite and backend share this. A translator reads a `Call` and gives `Question`s; each says which of ONNX's outputs it
answers, and how a tensor lies on either side, so that published answers can be brought to our layout (the suite) and a
port's answers to ONNX's (the backend).
"""

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..tensors import NUMPY_DTYPES, Tensors


class TranslationError(Exception):
    """A call says something that none of our ops can express."""


@dataclass(frozen=True)
class Call:
    """Inputs by the names that the operator's specification gives them; `wanted`: the outputs that have a name.

    version: the opset in which the operator got its present form.
    """

    operator: str
    version: int
    attributes: dict[str, Any]
    inputs: Tensors
    wanted: tuple[str, ...]

    @cached_property
    def dtype(self) -> str:
        """The one float type of the inputs, as the protocol calls it. Raises TranslationError if there is no such."""
        found = {x.dtype for x in self.inputs.values() if x.dtype not in (np.int64, np.bool_)}
        names = [name for name, dtype in NUMPY_DTYPES.items() if {dtype} == found]
        if not names:
            types = ", ".join(sorted(map(str, found)))
            raise TranslationError(
                f"{self.operator}: expected inputs of one float type ({', '.join(NUMPY_DTYPES)}), got {types}"
            )
        return names[0]

    def check_known(self, inputs: Set[str], outputs: Set[str], attributes: Set[str]) -> None:
        """Raises TranslationError when the call says something beside these: nothing is passed by overlooking it."""
        strange = set(self.inputs) - inputs | set(self.wanted) - outputs | set(self.attributes) - attributes
        if strange:
            raise TranslationError(f"{self.operator}: not translated: {', '.join(sorted(strange))}")
        _ = self.dtype

    def choice(self, attribute: str, default: str, known: Set[str]) -> str:
        """An attribute that is one of some words; ONNX stores it as bytes."""
        value = self.attributes.get(attribute, default)
        word = value.decode() if isinstance(value, bytes) else str(value)
        if word not in known:
            raise TranslationError(
                f"{self.operator}: {attribute}: expected one of {', '.join(sorted(known))}, got {word}"
            )
        return word


def row_major(x: np.ndarray) -> np.ndarray:
    """The same in C order; a scalar stays one, unlike with np.ascontiguousarray."""
    return np.asarray(x, order="C")


def _same(x: np.ndarray) -> np.ndarray:
    return x


@dataclass(frozen=True)
class Layout:
    """How a tensor lies for us and for ONNX: the same numbers in another order or shape."""

    to_ours: Callable[[np.ndarray], np.ndarray] = _same
    to_theirs: Callable[[np.ndarray], np.ndarray] = _same


AS_IT_IS = Layout()


def packed_heads(operator: str, heads: Any, width: int) -> Layout:
    """(B, T, H·n), the heads side by side, as (B, H, T, n). Raises TranslationError unless H divides the width."""
    if not isinstance(heads, int) or heads < 1 or width % heads:
        raise TranslationError(f"{operator}: expected a number of heads that divides {width}, got {heads}")
    return Layout(
        lambda x: x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2),
        lambda x: x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1),
    )


def moved_axis(axis: int, place: int) -> Layout:
    """One axis moved to another place, and back."""
    return Layout(lambda x: np.moveaxis(x, axis, place), lambda x: np.moveaxis(x, place, axis))


def joined_axes(shape: tuple[int, ...], axis: int) -> Layout:
    """The axes from `axis` on as one: (…, n)."""
    return Layout(lambda x: x.reshape(*shape[:axis], -1), lambda x: x.reshape(shape))


@dataclass(frozen=True)
class Output:
    """Which of our outputs one of ONNX's is, and how it lies."""

    ours: str
    layout: Layout = AS_IT_IS


@dataclass(frozen=True)
class Question:
    """What a port is asked. outputs: by ONNX's name."""

    op: str
    inputs: Tensors
    outputs: dict[str, Output]
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def want(self) -> tuple[str, ...]:
        """The outputs that are asked for, by our names."""
        return tuple(output.ours for output in self.outputs.values())

    def answers(self, published: Tensors) -> Tensors:
        """ONNX's outputs under our names and in our layout."""
        return {
            output.ours: row_major(output.layout.to_ours(published[name]))
            for name, output in self.outputs.items()
            if name in published
        }

    def results(self, got: Tensors) -> Tensors:
        """A port's outputs under ONNX's names and in its layout."""
        return {
            name: row_major(output.layout.to_theirs(got[output.ours]))
            for name, output in self.outputs.items()
        }


Translator = Callable[[Call], tuple[Question, ...]]


def laid_out(tensors: Tensors) -> Tensors:
    """Every tensor row-major."""
    return {name: row_major(x) for name, x in tensors.items()}
