"""The same steps in every language: cut out of the sources, and laid side by side.

An implementation marks its steps with comments on lines of their own, `# N. name: free text` (`//` in Rust
and TypeScript). The text of a step runs to the next step comment, or to the first line that is indented less
than its comment. `STEPS` is the one registry of numbers and names; `check` finds every place where a source
departs from it.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from .ports import check_names, split_names
from .repository import ROOT
from .steps import STEPS, TORCH


@dataclass(frozen=True)
class Language:
    """A column: where its modules are (`{op}` stands for the module's name), and how it writes a comment.

    modules: those that it has; None means all.
    """

    key: str
    title: str
    pattern: str
    marker: str
    lexer: str
    modules: tuple[str, ...] | None = None

    def has(self, op: str) -> bool:
        """Whether the language is meant to have the module."""
        return self.modules is None or op in self.modules

    def file(self, op: str) -> str:
        """The module of an op, relative to the root of the repository."""
        return self.pattern.format(op=op)


LANGUAGES: tuple[Language, ...] = (
    Language("python", "Python (NumPy)", "python/src/rosetta_attention/{op}.py", "#", "python"),
    Language("torch", "Python (PyTorch)", "python/src/rosetta_attention/torch/{op}.py", "#", "python", TORCH),
    Language("rust", "Rust", "rust/attention/src/{op}.rs", "//", "rust"),
    Language("typescript", "TypeScript", "typescript/src/{op}.ts", "//", "typescript"),
    Language("julia", "Julia", "julia/src/{op}.jl", "#", "julia"),
)


@dataclass(frozen=True)
class Excerpt:
    """One step in one language. text: what the comment says after the name. line: of the comment, from 1."""

    number: int
    name: str
    text: str
    line: int
    code: str


@dataclass(frozen=True, order=True)
class Problem:
    """A place where a source departs from the registry."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass(frozen=True)
class Column:
    """One module in one language; `excerpts` by step number. A file that is not there has no source."""

    language: Language
    path: str
    source: str | None
    excerpts: dict[int, Excerpt]
    problems: list[Problem]


@dataclass(frozen=True)
class _Mark:
    """A line that is, or tries to be, a step comment."""

    index: int
    number: int
    name: str
    text: str
    problem: str = ""


def columns(op: str, languages: Iterable[Language] = LANGUAGES, root: Path = ROOT) -> list[Column]:
    """The module of an op in each language that is meant to have it, cut into its steps."""
    found = []
    for language in (language for language in languages if language.has(op)):
        path = language.file(op)
        try:
            source: str | None = (root / path).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            source = None
        if source is None:
            problem = Problem(path, 1, f"the file is missing, and with it all {len(STEPS[op])} steps of {op}")
            found.append(Column(language, path, None, {}, [problem]))
        else:
            excerpts, problems = cut(source, path, language.marker, STEPS[op])
            found.append(Column(language, path, source, excerpts, problems))
    return found


def check(
    ops: Iterable[str] = STEPS, languages: Iterable[Language] = LANGUAGES, root: Path = ROOT
) -> list[Problem]:
    """Everything that is wrong, in the order of files and lines."""
    languages = list(languages)
    return [p for op in ops for column in columns(op, languages, root) for p in sorted(column.problems)]


def choose_languages(names: str = "") -> list[Language]:
    """The languages of a comma list, in the order of the registry; all without one. Raises UsageError."""
    wanted = split_names(names)
    check_names("language", wanted, [language.key for language in LANGUAGES])
    return [language for language in LANGUAGES if not wanted or language.key in wanted]


def choose_ops(names: str = "") -> list[str]:
    """The ops of a comma list, in the order of the registry; all without one. Raises UsageError."""
    wanted = split_names(names)
    check_names("op with numbered steps", wanted, list(STEPS))
    return [op for op in STEPS if not wanted or op in wanted]


def cut(
    source: str, path: str, marker: str, names: Sequence[str]
) -> tuple[dict[int, Excerpt], list[Problem]]:
    """The steps of one source by number, and what is wrong with them.

    Of a step that is there twice the first counts. A wrong name or number makes a problem and no excerpt.
    """
    lines = source.splitlines()
    marks = _marks(lines, marker, names)
    excerpts: dict[int, Excerpt] = {}
    problems = [Problem(path, mark.index + 1, mark.problem) for mark in marks if mark.problem]
    good = [mark for mark in marks if not mark.problem]
    highest = 0
    for mark in good:
        label, line = f"step {mark.number} ({mark.name})", mark.index + 1
        if mark.number in excerpts:
            first = excerpts[mark.number].line
            problems.append(Problem(path, line, f"{label} is there twice; the first is on line {first}"))
            continue
        if mark.number < highest:
            problems.append(Problem(path, line, f"{label} is out of order: it comes after step {highest}"))
        highest = max(highest, mark.number)
        code = _text_of(lines, mark, [m.index for m in marks])
        if not _holds_code(code, marker):
            problems.append(Problem(path, line, f"{label} is empty: no code before the next step"))
        excerpts[mark.number] = Excerpt(mark.number, mark.name, mark.text, line, dedent("\n".join(code)))
    return excerpts, problems + _missing(path, len(lines), names, excerpts)


def _marks(lines: Sequence[str], marker: str, names: Sequence[str]) -> list[_Mark]:
    """Every step comment, the wrong ones with what is wrong."""
    mark = re.escape(marker)
    # `1: first` alone is no attempt at a step: a sentence of a comment may go on like that.
    own_line = re.compile(rf"\s*{mark}\s*(?:[Ss]tep\s+(\d+)\s*[.:)]|(\d+)\s*[.)])(?!\d)\s*(.*)")
    exact = re.compile(rf"\s*{mark} (\d+)\. ([^:]+): (\S.*)")
    trailing = re.compile(rf"\s*(?!{mark})\S.*?\s{mark} (\d+)\. ({'|'.join(map(re.escape, names))}):")
    found = []
    for index, line in enumerate(lines):
        if own := own_line.fullmatch(line):
            number = int(own[1] or own[2])
            if not (strict := exact.fullmatch(line)):
                problem = f"not of the form `{marker} N. name: text`: {line.strip()}"
                found.append(_Mark(index, number, own[3], "", problem))
            else:
                problem = _misnamed(number, strict[2], names)
                found.append(_Mark(index, number, strict[2], strict[3], problem))
        elif after_code := trailing.match(line):
            problem = (
                f"step {after_code[1]} ({after_code[2]}) must stand on a line of its own, not after code"
            )
            found.append(_Mark(index, int(after_code[1]), after_code[2], "", problem))
    return found


def _misnamed(number: int, name: str, names: Sequence[str]) -> str:
    """What is wrong with number and name; nothing when they are a pair of the registry."""
    if 1 <= number <= len(names) and names[number - 1] == name:
        return ""
    if name in names:
        return f"step {name!r} has number {number}; it must be {names.index(name) + 1}"
    if 1 <= number <= len(names):
        return f"step {number} is named {name!r}; it must be {names[number - 1]!r}"
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; {near[0]!r} is step {names.index(near[0]) + 1}" if near else ""
    return f"no step {number} ({name}): the steps go from 1 to {len(names)}{hint}"


def _text_of(lines: Sequence[str], mark: _Mark, starts: Sequence[int]) -> list[str]:
    """The lines of a step after its comment, without blank ones at either end."""
    depth = _indent(lines[mark.index])
    text: list[str] = []
    for index in range(mark.index + 1, len(lines)):
        line = lines[index]
        if index in starts or (line.strip() and _indent(line) < depth):
            break
        text.append(line.rstrip())
    while text and not text[-1]:
        text.pop()
    while text and not text[0]:
        text.pop(0)
    return text


def _indent(line: str) -> int:
    """The width of the white space in front."""
    line = line.expandtabs(4)
    return len(line) - len(line.lstrip())


def _holds_code(text: Sequence[str], marker: str) -> bool:
    """Whether a line is something else than blank or a comment."""
    return any(line.strip() and not line.strip().startswith(marker) for line in text)


def _missing(path: str, length: int, names: Sequence[str], found: dict[int, Excerpt]) -> list[Problem]:
    """One problem for each step that is not there, on the line of the step that should follow it."""
    problems = []
    for number, name in enumerate(names, 1):
        if number not in found:
            after = [excerpt for n, excerpt in found.items() if n > number]
            line = min((e.line for e in after), default=max(length, 1))
            problems.append(Problem(path, line, f"step {number} ({name}) is missing"))
    return problems
