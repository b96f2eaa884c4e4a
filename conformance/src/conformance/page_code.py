"""Source text as HTML: highlighted line by line, with the shapes at the ends of the lines set off."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from markupsafe import Markup, escape
from pygments import token  # type: ignore[import-untyped]
from pygments.lexer import inherit  # type: ignore[import-untyped]
from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
from pygments.lexers.javascript import TypeScriptLexer  # type: ignore[import-untyped]

from .repository import ROOT
from .sidebyside import LANGUAGES, Column, columns
from .steps import GROUPS, STEPS

# The first that holds a token's type decides; each is a class of the style sheet. Few, so that code is calm.
CLASSES: tuple[tuple[Any, str], ...] = (
    (token.Comment, "c"),
    (token.Keyword.Type, "t"),
    (token.Keyword.Constant, "n"),
    (token.Keyword, "k"),
    (token.Literal.String.Doc, "c"),
    (token.Literal.String, "s"),
    (token.Number, "n"),
    (token.Name.Function, "f"),
    (token.Name.Class, "t"),
    (token.Name.Builtin.Pseudo, "k"),
    (token.Name.Decorator, "f"),
    (token.Operator.Word, "k"),
)

# A shape in a comment: sizes in the letters of the project, as in (B, Hkv, G, Tq, Tk) or (B or 1, 1, Tq, 1).
_SIZE = (
    r"(?:\.\.\.|\d+|[A-Z][a-z]{0,3}|[a-z]{1,6}(?=[,)]))(?: ?[·+/*-] ?(?:[A-Z][a-z]{0,3}|\d+|n))*(?: or \d)?"
)
SHAPE = re.compile(rf"(?:(?:#|//) )?(?<!\w)\((?:(?:{_SIZE}, )*{_SIZE},?)?\)")


class _TypeScript(TypeScriptLexer):  # type: ignore[misc]
    """A `!` after a value is no operator that a regular expression could follow: `a[i]! / n` divides."""

    tokens = {"root": [(r"(?<=[\w\])])!(?!=)", token.Operator), inherit]}  # noqa: RUF012


@dataclass(frozen=True)
class Line:
    """One line of source. indent: its leading white space in characters, below which a folded line hangs."""

    number: int
    indent: int
    html: Markup


@dataclass(frozen=True)
class Cell:
    """One step in one language, or none: then the page says so."""

    text: str
    line: int
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Row:
    """One step: a cell for each column."""

    number: int
    name: str
    cells: list[Cell | None]


@dataclass(frozen=True)
class Source:
    """A column: the whole file in one language. `lines` is empty when there is no file."""

    key: str
    title: str
    path: str
    lines: tuple[Line, ...]
    problems: list[str]


@dataclass(frozen=True)
class OpPage:
    """One op, side by side."""

    op: str
    sources: list[Source]
    rows: list[Row]


def op_pages() -> list[OpPage]:
    """Every op with numbered steps, from the sources as they are now; nothing that is missing stops it."""
    return [op_page(op, columns(op, LANGUAGES, ROOT)) for op in STEPS]


def group_pages(pages: list[OpPage]) -> list[tuple[str, list[OpPage]]]:
    """The pages under the titles of their groups."""
    by_name = {page.op: page for page in pages}
    return [(title, [by_name[op] for op in ops if op in by_name]) for title, ops in GROUPS.items()]


def op_page(op: str, texts: list[Column]) -> OpPage:
    """One op from its cut texts."""
    rows = [
        Row(number, name, [_cell(column, number) for column in texts])
        for number, name in enumerate(STEPS[op], 1)
    ]
    sources = [
        Source(
            column.language.key,
            column.language.title,
            column.path,
            highlight(column.source or "", column.language.lexer),
            [str(problem) for problem in column.problems],
        )
        for column in texts
    ]
    return OpPage(op, sources, rows)


def _cell(column: Column, number: int) -> Cell | None:
    """The step in this column."""
    excerpt = column.excerpts.get(number)
    if excerpt is None:
        return None
    return Cell(excerpt.text, excerpt.line, highlight(excerpt.code, column.language.lexer))


@cache
def highlight(code: str, lexer: str, first: int = 1) -> tuple[Line, ...]:
    """The lines of a text. Only `<span class>`, `<b>` and escaped text come out."""
    pieces: list[list[str]] = [[]]
    for kind, text in _lexer(lexer).get_tokens(code) if code else ():
        css = _class_of(kind)
        for index, part in enumerate(text.split("\n")):
            if index:
                pieces.append([])
            if part:
                pieces[-1].append(_span(css, part))
    return tuple(
        Line(first + n, len(text) - len(text.lstrip()), Markup("".join(parts)))
        for n, (text, parts) in enumerate(zip(code.splitlines(), pieces, strict=False))
    )


@cache
def _lexer(name: str) -> Any:
    """A lexer that leaves the text as it is: every line keeps its number."""
    options = {"stripnl": False, "ensurenl": True}
    return _TypeScript(**options) if name == "typescript" else get_lexer_by_name(name, **options)


@cache
def _class_of(kind: Any) -> str:
    """The class of a token, or nothing for plain text."""
    return next((css for holder, css in CLASSES if kind in holder), "")


def _span(css: str, text: str) -> str:
    """A piece of one line, as HTML; shapes inside a comment are set off."""
    if not css:
        return str(escape(text))
    if css != "c":
        return f'<span class="{css}">{escape(text)}</span>'
    html, end = "", 0
    for shape in SHAPE.finditer(text):
        html += f"{escape(text[end : shape.start()])}<b>{escape(shape[0])}</b>"
        end = shape.end()
    return f'<span class="c">{html}{escape(text[end:])}</span>'
