"""How two modules differ: their steps aligned by name in each language, and which lines are not in the other one."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from .errors import UsageError
from .ports import check_names, split_names
from .repository import ROOT
from .sidebyside import LANGUAGES, Column, Excerpt, Language, columns
from .steps import STEPS

# What the pages compare: each a variation of the one before it.
COMPARED: tuple[tuple[str, str], ...] = (
    ("kv_cache", "rotating_cache"),
    ("kv_cache", "quantised_cache"),
    ("quantised_cache", "kivi_cache"),
    ("mla", "mla_absorbed"),
)


@dataclass(frozen=True)
class Side:
    """A step in one module. own: for each line of its code, whether the other side has no such line."""

    excerpt: Excerpt
    own: tuple[bool, ...]


@dataclass(frozen=True)
class Pair:
    """Two steps in one row: of the same name, or each in the other's place; None where one has nothing there."""

    left: Side | None
    right: Side | None

    @property
    def name(self) -> str:
        """Of both, as `grow | forget` where they are not the same."""
        names = [side.excerpt.name for side in (self.left, self.right) if side is not None]
        return " | ".join(dict.fromkeys(names))

    @property
    def same(self) -> bool:
        """Whether no line differs."""
        return all(side is not None and not any(side.own) for side in (self.left, self.right))


@dataclass(frozen=True)
class Comparison:
    """Two modules in one language."""

    language: Language
    left: Column
    right: Column
    pairs: list[Pair]


def choose_modules(names: str) -> tuple[str, str]:
    """The two modules of a comma list. Raises UsageError."""
    wanted = split_names(names)
    check_names("op with numbered steps", wanted, list(STEPS))
    if len(wanted) != 2 or wanted[0] == wanted[1]:
        raise UsageError(f"--compare: expected two ops, as in kv_cache,rotating_cache, got {names!r}")
    return wanted[0], wanted[1]


def compare_modules(
    left: str, right: str, languages: Iterable[Language] = LANGUAGES, root: Path = ROOT
) -> list[Comparison]:
    """Both modules in each language that has both of their files."""
    found = []
    for language in languages:
        if not (language.has(left) and language.has(right)):
            continue
        (one,), (other,) = (columns(op, [language], root) for op in (left, right))
        if one.source is not None and other.source is not None:
            pairs = [_pair(one, other, a, b) for a, b in align(STEPS[left], STEPS[right])]
            found.append(
                Comparison(
                    language,
                    one,
                    other,
                    [pair for pair in pairs if pair.left is not None or pair.right is not None],
                )
            )
    return found


def align(left: tuple[str, ...], right: tuple[str, ...]) -> list[tuple[str | None, str | None]]:
    """Names in rows: the same beside each other, and beside them what one has in place of the other's."""
    rows: list[tuple[str | None, str | None]] = []
    for _, a, b, c, d in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        for n in range(max(b - a, d - c)):
            rows.append((left[a + n] if a + n < b else None, right[c + n] if c + n < d else None))
    return rows


def _pair(left: Column, right: Column, one: str | None, other: str | None) -> Pair:
    """Two steps, their lines compared but for white space around them and a comment after them."""
    a, b = _find(left, one), _find(right, other)
    comment = re.compile(rf"(?<=\S)\s+{re.escape(left.language.marker)} .*")
    lines = [
        [comment.sub("", line.strip()) for line in excerpt.code.splitlines()] if excerpt else []
        for excerpt in (a, b)
    ]
    own = [[True] * len(some) for some in lines]
    for block in SequenceMatcher(None, lines[0], lines[1], autojunk=False).get_matching_blocks():
        for n in range(block.size):
            own[0][block.a + n] = own[1][block.b + n] = False
    for some, flags in zip(lines, own, strict=True):
        # A blank line is none.
        flags[:] = [flag and bool(line) for flag, line in zip(flags, some, strict=True)]
    sides = [
        None if excerpt is None else Side(excerpt, tuple(flags))
        for excerpt, flags in zip((a, b), own, strict=True)
    ]
    return Pair(sides[0], sides[1])


def _find(column: Column, name: str | None) -> Excerpt | None:
    return next((excerpt for excerpt in column.excerpts.values() if excerpt.name == name), None)
