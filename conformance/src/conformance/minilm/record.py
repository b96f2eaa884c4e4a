"""The similarities as the file that the page is drawn from."""

from collections.abc import Sequence
from pathlib import Path

from ..page_minilm import DEFAULT_MINILM, new_header, write_minilm
from .sentences import PACKAGE, SENTENCES, package_version
from .similarity import TOLERANCE, PortSimilarity


def record(found: Sequence[PortSimilarity], path: Path = DEFAULT_MINILM) -> None:
    """Writes what was found of each port, and the sentences it was found with."""
    write_minilm(new_header(f"{PACKAGE} {package_version()}", SENTENCES, TOLERANCE), found, path)
