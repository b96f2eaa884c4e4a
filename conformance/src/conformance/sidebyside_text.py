"""The command `conformance sidebyside`: one op in the terminal, or the check of all."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from .repository import ROOT
from .sidebyside import LANGUAGES, Column, check, choose_languages, choose_ops, columns
from .sidebyside_compare import Comparison, Side, choose_modules, compare_modules
from .steps import STEPS

GAP = 3  # columns of white space between two texts
MARK = "▌ "  # before a line that the other text does not have
THEME = "ansi_dark"  # the terminal's own colours, so that it reads on any background


def main(
    ops: str = "",
    langs: str = "",
    *,
    compare: str = "",
    check_only: bool = False,
    root: Path = ROOT,
    console: Console | None = None,
) -> int:
    """Prints the ops of a comma list, or with `check_only` no more than what is wrong with the sources.

    compare: instead, how the two ops of this list differ. The value is the exit status: 1 when something is wrong.
    Raises UsageError for a name that is not known.
    """
    console = console or Console()
    if compare:
        left, right = choose_modules(compare)
        comparisons = compare_modules(left, right, choose_languages(langs), root)
        for comparison in comparisons:
            show_comparison(comparison, console)
        return 0 if comparisons else 1
    chosen, languages = choose_ops(ops), choose_languages(langs)
    problems = check(chosen, languages, root)
    if not check_only:
        for op in chosen:
            show(op, columns(op, languages, root), console)
    for problem in problems:
        console.print(str(problem), style="red", markup=False, highlight=False, soft_wrap=True)
    steps = sum(len(STEPS[op]) for op in chosen)
    size = f"{len(chosen)} ops, {steps} steps, {len(languages)} of {len(LANGUAGES)} languages"
    if problems:
        console.print(f"sidebyside: {len(problems)} problems ({size})", style="bold red", highlight=False)
    elif check_only:
        console.print(f"sidebyside: every step is there ({size})", style="green", highlight=False)
    return 1 if problems else 0


def show(op: str, texts: Sequence[Column], console: Console) -> None:
    """One op, step after step; as many languages beside each other as the terminal is wide enough for."""
    texts = [column for column in texts if column.source is not None]
    groups = _rows_of_columns(texts, console.width)
    for number, name in enumerate(STEPS[op], 1):
        console.print(Rule(Text(f"{op}  {number}. {name}", style="bold"), align="left", style="cyan"))
        for group in groups:
            grid = Table.grid(padding=(0, GAP, 0, 0))
            for column in group:
                width = min(_width(column), console.width)
                grid.add_column(min_width=width, max_width=width, overflow="fold")
            grid.add_row(*[_cell(column, number) for column in group])
            console.print(grid)
            console.print()


def _rows_of_columns(texts: Sequence[Column], width: int) -> list[list[Column]]:
    """The languages in their order, in lines that fit the width, and the same for every step."""
    groups: list[list[Column]] = []
    room = 0
    for column in texts:
        need = _width(column) + GAP
        if not groups or need > room:
            groups.append([])
            room = width
        groups[-1].append(column)
        room -= need
    return groups


def _width(column: Column) -> int:
    """The longest line of code of any step; the captions fold, but not below a readable width."""
    lines = [line for excerpt in column.excerpts.values() for line in excerpt.code.splitlines()]
    return max([len(line) for line in lines] + [40])


def _cell(column: Column, number: int) -> Group:
    """Where the step stands, what its comment says, and its code."""
    excerpt = column.excerpts.get(number)
    head = Text(column.language.title, style="bold")
    if excerpt is None:
        return Group(head, Text("missing", style="red"))
    head.append(f"  {column.path}:{excerpt.line}", style="dim")
    code = Syntax(
        excerpt.code,
        column.language.lexer,
        theme=THEME,
        background_color="default",
        word_wrap=True,
        padding=0,
    )
    return Group(head, Text(excerpt.text, style="italic cyan"), code)


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Two modules in one language, step beside step; what is the same in both is said in a word."""
    left, right = comparison.left, comparison.right
    title = Text.assemble((comparison.language.title, "bold"), f"  {left.path} | {right.path}")
    console.print(Rule(title, align="left", style="cyan"))
    half = (console.width - GAP) // 2
    for pair in comparison.pairs:
        if pair.same:
            console.print(Text.assemble((pair.name, "bold"), "  the same in both"))
            continue
        console.print(Text(pair.name, "bold"))
        grid = Table.grid(padding=(0, GAP, 0, 0))
        for _ in range(2):
            grid.add_column(min_width=half, max_width=half, overflow="fold")
        grid.add_row(*[_marked(side, comparison.language.lexer) for side in (pair.left, pair.right)])
        console.print(grid)
    console.print()


def _marked(side: Side | None, lexer: str) -> Text:
    """The code of a step, a mark before each line of its own."""
    if side is None:
        return Text("nothing here", "dim")
    code = Syntax(side.excerpt.code, lexer, theme=THEME, background_color="default")
    lines = code.highlight(side.excerpt.code).split("\n", allow_blank=True)
    marked = Text()
    for line, own in zip(lines, side.own, strict=False):
        marked.append(MARK if own else " " * len(MARK), "yellow").append_text(line).append("\n")
    return marked
