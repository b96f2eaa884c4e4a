"""A small report: JSON Lines with a header, entries, and a footer that comes last, so that a cut file has none."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from .errors import UsageError

H = TypeVar("H")
E = TypeVar("E")
F = TypeVar("F")


def write_lines(path: Path, header: object, entries: Sequence[object], footer: object) -> None:
    """The whole file in one go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in (header, *entries, footer)))


def read_lines(
    path: Path, header: type[H], entry: type[E], footer: type[F], command: str
) -> tuple[H, list[E], F]:
    """A finished file. Raises UsageError, which names the command that makes one, when it is missing or cut short."""
    decoder = msgspec.json.Decoder(header | entry | footer)
    lines = []
    try:
        raw = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; `{command}` makes it") from None
    for number, text in enumerate(raw, 1):
        try:
            lines.append(decoder.decode(text))
        except msgspec.MsgspecError as error:
            raise UsageError(f"{path}:{number}: no line of `{command}`: {error}") from None
    if not lines or not isinstance(lines[0], header):
        raise UsageError(f"{path}: expected a header in the first line")
    if len(lines) < 2 or not isinstance(lines[-1], footer):
        raise UsageError(f"{path}: expected a footer in the last line: the run was cut short")
    return lines[0], [line for line in lines[1:-1] if isinstance(line, entry)], lines[-1]
