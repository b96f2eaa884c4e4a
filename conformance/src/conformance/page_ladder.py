"""The ladder of each language: from the text that is read to the one that is fast, and what each rung gained.

What a rung changes is the text of its module's header; what it gained is the benchmark's. A rung whose module is not
there is left out, and one that was not timed has no numbers.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from markupsafe import Markup, escape

from .bench_file import BenchReport
from .bench_stats import BenchRow, geometric_mean, ratios
from .page_code import Line, highlight
from .repository import ROOT
from .sidebyside import LANGUAGES
from .tally import show_ns, show_ratio

FOLDER = "ladder"
SHOWN = (
    "sdpa/small",
    "sdpa/prefill-256",
    "grid/prefill-2048",
    "sdpa/causal-256",
    "grid/causal-2048",
    "sdpa/decode-1024",
    "grid/decode-4096",
)
MARKS = {"python": ('"""', '"""'), "julia": ("#", ""), "rust": ("//!", ""), "typescript": ("/**", "*/")}
NOT_PROSE = ("Letters:", "Source:", "Sources:", "```")
CODE = re.compile(r"`+([^`]+)`+")
LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)|\{@link (\w+)\}")  # as documentation tools have them


@dataclass(frozen=True)
class Rung:
    """A variant and its files, of which those are shown that are there; without the first there is no rung.

    text: what it changes, where that is not the header of its first file.
    """

    variant: str
    files: tuple[str, ...]
    text: str = ""


# By language: where its modules are, and the modules of each rung.
MODULES: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "python": ("python/src/rosetta_attention/{}.py", {}),
    "rust": (
        "rust/attention/src/{}.rs",
        {"simd": ("simd/mod", "simd/tile", "simd/few"), "threads": ("simd/threads",)},
    ),
    "typescript": (
        "typescript/src/{}.ts",
        {
            "wasm": ("wasm", "wasm/kernels/prefill", "wasm/kernels/tile", "wasm/kernels/decode"),
            "threads": ("threads",),
        },
    ),
    "julia": ("julia/src/{}.jl", {"simd": ("simd", "simd_kernel", "simd_few"), "threads": ("simd_tile",)}),
}
SHARED = {"naive": ("sdpa",), "blocked": ("blocked",), "flash": ("flash",)}  # in every language
TASKS = "The tiles of simd, shared among tasks: a tile depends on nothing but the call, so their number changes no bit."
LADDERS: dict[str, tuple[Rung, ...]] = {
    key: tuple(
        Rung(
            variant,
            tuple(map(pattern.format, names)),
            TASKS if (key, variant) == ("julia", "threads") else "",
        )
        for variant, names in (SHARED | own).items()
    )
    for key, (pattern, own) in MODULES.items()
}


@dataclass(frozen=True)
class File:
    """A source as the page shows it."""

    path: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Gain:
    """One cell: the time, its ratio to the rung before and to the first rung, as text; empty where it was not timed."""

    time: str = ""
    before: str = ""
    first: str = ""


@dataclass(frozen=True)
class Step:
    """A rung on the page. mean: of all cells that it has in common with the rung before, and with the first."""

    variant: str
    before: str
    text: list[str]
    files: list[File]
    gains: list[Gain] = field(default_factory=list)
    mean: Gain = field(default_factory=Gain)


@dataclass(frozen=True)
class LadderPage:
    """One language. cases: what the columns of every rung's table are."""

    key: str
    title: str
    path: str
    cases: list[str]
    steps: list[Step]


def ladder_pages(bench: BenchReport | None, root: Path = ROOT) -> list[LadderPage]:
    """A page for each language with at least two rungs."""
    pages = [_page(key, rungs, bench, root) for key, rungs in LADDERS.items()]
    return [page for page in pages if len(page.steps) > 1]


def _page(key: str, rungs: Sequence[Rung], bench: BenchReport | None, root: Path) -> LadderPage:
    language = next(language for language in LANGUAGES if language.key == key)
    timed = _timed(bench, key) if bench is not None else {}
    cases = [case for case in SHOWN if any(f"bench/{case}" in rows for rows in timed.values())]
    steps: list[Step] = []
    for rung in rungs:
        there = [path for path in rung.files if (root / path).is_file()]
        if rung.files[0] not in there:
            continue
        sources = {path: (root / path).read_text(encoding="utf-8") for path in there}
        files = [File(path, highlight(source, language.lexer)) for path, source in sources.items()]
        before = steps[-1].variant if steps else ""
        first = steps[0].variant if steps else ""
        mine = timed.get(rung.variant, {})
        gains = [_gain(f"bench/{case}", mine, timed.get(before, {}), timed.get(first, {})) for case in cases]
        mean = Gain("", _mean(mine, timed.get(before, {})), _mean(mine, timed.get(first, {})))
        text = [rung.text] if rung.text else changes(sources[there[0]], key)
        steps.append(Step(rung.variant, before, text, files, gains, mean))
    return LadderPage(key, language.title, f"{FOLDER}/{key}.html", cases, steps)


def _timed(bench: BenchReport, port: str) -> dict[str, dict[str, BenchRow]]:
    """By variant and case; of `threads` the cells with the most threads."""
    found: dict[str, dict[str, BenchRow]] = {}
    for row in [*bench.rows, *sorted(bench.threaded, key=lambda row: row.threads)]:
        if (
            row.port == port
            and row.op == "sdpa"
            and row.rounds
            and (row.variant == "threads" or not row.threads)
        ):
            found.setdefault(row.variant, {})[row.case] = row
    return found


def _gain(
    case: str, mine: dict[str, BenchRow], before: dict[str, BenchRow], first: dict[str, BenchRow]
) -> Gain:
    own = mine.get(case)
    if own is None:
        return Gain()
    shown = (_ratio(own, other.get(case)) for other in (before, first))
    return Gain(show_ns(own.min_ns), *(show_ratio(ratio) if ratio else "" for ratio in shown))


def _ratio(own: BenchRow, other: BenchRow | None) -> float:
    """How many times as fast in the same round; 0 where there is no such."""
    found = ratios(other, own) if other is not None else []
    return median(found) if found else 0.0


def _mean(mine: dict[str, BenchRow], other: dict[str, BenchRow]) -> str:
    found = [ratio for case, row in mine.items() if (ratio := _ratio(row, other.get(case)))]
    return show_ratio(geometric_mean(found)) if found else ""


def changes(source: str, key: str) -> list[str]:
    """What a module's header says about what it changes, by paragraphs; without such a one, its first two."""
    parts = re.split(r"\n\s*\n|\n(?=- )", _header(source, key))
    paragraphs = [
        LINK.sub(lambda link: link[1] or link[2], " ".join(part.split())) for part in parts if part.strip()
    ]
    prose = [part for part in paragraphs if not part.startswith(NOT_PROSE)]
    start = next(
        (n for n, part in enumerate(prose) if part.startswith(("What it changes", "What changes"))), None
    )
    return prose[:2] if start is None else prose[start:]


def prose(text: str) -> Markup:
    """Text of a comment as HTML: what stands in backticks is code."""
    parts = CODE.split(text)  # text and code in turn
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part)
        for number, part in enumerate(parts)
    )


def _header(source: str, key: str) -> str:
    """The comment that a file begins with, without its marks."""
    begin, end = MARKS[key]
    lines = source.lstrip().splitlines()
    if not lines or not lines[0].startswith(begin):
        return ""
    if end:
        text = source.lstrip()[len(begin) :].partition(end)[0]
        return "\n".join(line.strip().removeprefix("* ").removeprefix("*") for line in text.splitlines())
    found = []
    for line in lines:
        if not line.startswith(begin):
            break
        found.append(line.removeprefix(begin).strip())
    return "\n".join(found)
