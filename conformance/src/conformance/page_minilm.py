"""The real input as a file, and as the pages show it: sentences, and a table of similarities for each port.

`site/minilm.jsonl` is JSON Lines as the other reports are: a header, a line per port, a footer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .errors import UsageError
from .machine import now
from .minilm.similarity import PortSimilarity
from .page_results import colour_of
from .repository import ROOT

FORMAT = 2
DEFAULT_MINILM = ROOT / "site/minilm.jsonl"


class MinilmHeader(msgspec.Struct, frozen=True, tag_field="kind", tag="header"):
    """The sentences as (name, text), the package they were embedded with, and the allowed distance."""

    format: int
    date: str
    package: str
    sentences: list[tuple[str, str]]
    tolerance: float


class MinilmFooter(msgspec.Struct, frozen=True, tag_field="kind", tag="footer"):
    """Comes last, so that a run that was cut short has none."""

    ports: int


class Minilm(msgspec.Struct, frozen=True):
    """The whole file, read back."""

    header: MinilmHeader
    ports: list[PortSimilarity]


def write_minilm(header: MinilmHeader, ports: Sequence[PortSimilarity], path: Path = DEFAULT_MINILM) -> None:
    """The file in one go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [header, *ports, MinilmFooter(len(ports))]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def read_minilm(path: Path = DEFAULT_MINILM) -> Minilm:
    """A finished file. Raises UsageError when it is missing or cut short."""
    decoder = msgspec.json.Decoder(MinilmHeader | PortSimilarity | MinilmFooter)
    try:
        entries = [decoder.decode(line) for line in path.read_bytes().splitlines()]
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; `make compare` makes it") from None
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path}: no report of the sentence encoder: {error}") from None
    if len(entries) < 2 or not isinstance(entries[-1], MinilmFooter):
        raise UsageError(f"{path}: expected a footer in the last line: the run was cut short")
    header, ports = entries[0], [entry for entry in entries[1:-1] if isinstance(entry, PortSimilarity)]
    if not isinstance(header, MinilmHeader) or header.format != FORMAT:
        raise UsageError(f"{path}: expected a header of format {FORMAT} in the first line")
    if entries[-1].ports != len(ports):
        raise UsageError(f"{path}: the footer counts {entries[-1].ports} ports, the file has {len(ports)}")
    return Minilm(header, ports)


def new_header(package: str, sentences: Sequence[tuple[str, str]], tolerance: float) -> MinilmHeader:
    """A header of this moment."""
    pairs = [(name, text) for name, text in sentences]
    return MinilmHeader(FORMAT, now(), package, pairs, tolerance)


@dataclass(frozen=True)
class Heat:
    """One port's table. own, padding: the largest distances, None where nothing was measured."""

    port: str
    variant: str
    colour: str
    table: list[list[float]]
    own: float | None
    padding: float | None
    fault: str


@dataclass(frozen=True)
class MinilmView:
    """What the page shows. apart: the largest difference between two ports' tables, in any cell."""

    header: MinilmHeader
    heats: list[Heat]
    apart: float


def view_minilm(minilm: Minilm) -> MinilmView:
    """The file as the page shows it."""
    heats = [_view_port(port, n) for n, port in enumerate(minilm.ports)]
    cells = [[x for row in heat.table for x in row] for heat in heats if heat.table]
    apart = max((max(values) - min(values) for values in zip(*cells, strict=True)), default=0.0)
    return MinilmView(minilm.header, heats, apart)


def _view_port(found: PortSimilarity, index: int) -> Heat:
    own = found.embedding_distance if found.table else None
    padding = found.padding_distance if found.table else None
    colour = colour_of(found.port, index)
    return Heat(found.port, found.variant, colour, found.table, own, padding, found.fault)
