"""Two modules beside each other, a language at a time, as a page shows them."""

from dataclasses import dataclass

from .page_code import Line, highlight
from .sidebyside_compare import COMPARED, Comparison, Side, compare_modules


@dataclass(frozen=True)
class Half:
    """A step in one module. lines: each with whether the other text has no such line."""

    text: str
    line: int
    lines: list[tuple[Line, bool]]


@dataclass(frozen=True)
class CompareRow:
    """A step: in both modules, or in one."""

    name: str
    same: bool
    halves: list[Half | None]


@dataclass(frozen=True)
class CompareTable:
    """One language. files: the two modules' paths. own: how many lines only the second has, and of how many."""

    key: str
    title: str
    files: list[str]
    own: tuple[int, int]
    rows: list[CompareRow]


@dataclass(frozen=True)
class ComparePage:
    """Two modules in every language that has both."""

    left: str
    right: str
    path: str
    tables: list[CompareTable]


def comparison_pages() -> list[ComparePage]:
    """The registered comparisons, of those languages that are there."""
    pages = []
    for left, right in COMPARED:
        tables = [_table(comparison) for comparison in compare_modules(left, right)]
        if tables:
            pages.append(ComparePage(left, right, f"compare/{left}-{right}.html", tables))
    return pages


def _table(comparison: Comparison) -> CompareTable:
    lexer = comparison.language.lexer
    rows = [
        CompareRow(pair.name, pair.same, [_half(side, lexer) for side in (pair.left, pair.right)])
        for pair in comparison.pairs
    ]
    flags = [own for pair in comparison.pairs if pair.right is not None for own in pair.right.own]
    files = [comparison.left.path, comparison.right.path]
    key, title = comparison.language.key, comparison.language.title
    return CompareTable(key, title, files, (sum(flags), len(flags)), rows)


def _half(side: Side | None, lexer: str) -> Half | None:
    if side is None:
        return None
    lines = list(zip(highlight(side.excerpt.code, lexer), side.own, strict=True))
    return Half(side.excerpt.text, side.excerpt.line, lines)
