"""The similarities as the file that the page is drawn from."""

from collections.abc import Sequence
from pathlib import Path

from ..page_minilm import DEFAULT_MINILM, MinilmPort, new_header, write_minilm
from .sentences import PACKAGE, SENTENCES, package_version
from .similarity import EMBEDDING_TOLERANCE, PADDING_TOLERANCE, PortSimilarity


def record(found: Sequence[PortSimilarity], path: Path = DEFAULT_MINILM) -> None:
    """Writes what was found of each port, and the sentences it was found with."""
    header = new_header(f"{PACKAGE} {package_version()}", SENTENCES, EMBEDDING_TOLERANCE, PADDING_TOLERANCE)
    ports = [
        MinilmPort(one.port, one.variant, one.table, one.embedding, one.padding, one.seconds) for one in found
    ]
    write_minilm(header, ports, path)
