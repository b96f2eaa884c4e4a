"""The control: the NumPy port as it is, through the same door as the liars; and what they share.

A liar changes one thing in the library or in the answers and serves the rest unchanged, so that what the harness says
about it can only come from that one thing. Tests import no liar: each is started as a process of its own.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import rosetta_attention
from rosetta_port import Library, serve
from rosetta_port.numpy_port import LIBRARY
from rosetta_port.serve import Port

Answer = dict[str, Any]


def module(name: str) -> ModuleType:
    """A module of the reference, also where the package has a function of the same name."""
    return importlib.import_module(f"rosetta_attention.{name}")


def library(**replaced: Any) -> Library:
    """The reference with some of its functions replaced."""
    api: Any = SimpleNamespace(**{**vars(rosetta_attention), **replaced})
    return replace(LIBRARY, name="liar", api=api)


def lie_with(**replaced: Any) -> None:
    """Serves the reference with some of its functions replaced."""
    serve(library(**replaced))


def answers() -> Iterator[tuple[dict[str, Any], Answer]]:
    """Each request with the honest answer, for liars that lie about the protocol; they write the answer."""
    port = Port(library())
    for line in sys.stdin.buffer:
        yield json.loads(line) if line.startswith(b"{") else {}, port.answer(line)
        if port.stopped:
            return


def write(text: str) -> None:
    """Raw text on stdout, at once."""
    os.write(1, text.encode())


def write_answer(answer: Answer) -> None:
    """An answer as it should be."""
    write(json.dumps(answer) + "\n")


def change_answers(change: Callable[[dict[str, Any], Answer], Answer]) -> None:
    """Serves honest answers to everything but `run`, whose answers go through `change`."""
    for request, answer in answers():
        write_answer(change(request, answer) if request.get("cmd") == "run" else answer)


if __name__ == "__main__":
    lie_with()
