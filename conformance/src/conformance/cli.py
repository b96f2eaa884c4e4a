"""The command line, `conformance`: names, options and exit statuses; the work is done elsewhere.

Exit status: 0 all is well, 1 something failed, 2 the command was used wrongly or something it needs is
missing.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from .bench_command import bench
from .caches_command import decode, kv_bytes
from .errors import UsageError
from .kv_cost_command import kv_cost

if TYPE_CHECKING:
    from .fixtures import LoadedSuite
    from .ports import Port

# Each command imports what it needs: `--help` and `sidebyside` shall not wait for NumPy.

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="""Seeded cases, float64 answers, and a judge and stopwatch for every port of Rosetta Attention.

    * `conformance compare` does everything and draws the page
    * `conformance run --ports rust,julia --ops sdpa` judges two ports on one op
    * `conformance run --cases my-cases` judges every port on cases of your own
    * `conformance explain sdpa/gqa/by-hand-6-2` says what a case catches and how each port did
    """,
)

PortsOption = Annotated[
    str, typer.Option("--ports", metavar="A,B", help="Only these ports. Without it: all but the peers.")
]
OpsOption = Annotated[str, typer.Option("--ops", metavar="A,B", help="Only the cases of these ops.")]
DirOption = Annotated[
    Path | None, typer.Option("--cases", metavar="DIR", help="A folder of somebody else's cases, not ours.")
]
FolderOption = Annotated[
    Path | None, typer.Option("--ports-dir", metavar="DIR", help="Another folder of port files.")
]


def main() -> None:
    """Runs the command line. What the user did wrong is one line on stderr and status 2."""
    # The harness's own sums shall not spin beside the ports.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        app()
    except UsageError as error:
        _refuse(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        from .fixtures import FixtureError
        from .handmade import HandmadeError

        if isinstance(error, FixtureError | HandmadeError):
            _refuse(error)
        raise


@app.command()
def fixtures(
    check: Annotated[
        bool,
        typer.Option("--check/--no-check", help="Prove that the committed files are what the code makes."),
    ] = True,
    write: Annotated[
        bool, typer.Option("--write", help="Write all suites anew, for the author of a case.")
    ] = False,
    suites: Annotated[
        str, typer.Option("--suites", metavar="A,B", help="Write and check these suites only; default: all.")
    ] = "",
    ports: PortsOption = "",
    ops: OpsOption = "",
) -> None:
    """Makes the generated cases that are missing, and proves that the committed ones are what the code makes.

    Examples:

    * `conformance fixtures`
    * `conformance fixtures --no-check`
    * `conformance fixtures --write --suites sdpa,mha`
    """
    from .cases import SUITES
    from .fixtures import FixtureError, check_suites, write_suites
    from .ports import check_names, split_names

    del ports  # taken so that `make fixtures PORTS=...` works; fixtures do not depend on it
    chosen = split_names(suites) or list(SUITES)
    check_names("suite", chosen, list(SUITES))
    if write:
        write_suites(typer.echo, chosen)
    loaded = _load(ops, bench=True)
    total = sum(len(suite.suite.cases) for suite in loaded)
    typer.echo(f"{total} cases in {len(loaded)} suites are there: {', '.join(s.suite.suite for s in loaded)}")
    if check:
        try:
            check_suites(typer.echo, chosen)
        except FixtureError as error:
            typer.echo(f"fixtures: {error}", err=True)
            raise typer.Exit(1) from None


@app.command()
def ports(
    names: PortsOption = "",
    folder: FolderOption = None,
    start: Annotated[bool, typer.Option("--start", help="Start each one and show what it claims.")] = False,
) -> None:
    """Lists the ports and peers, and what they are.

    Examples:

    * `conformance ports`
    * `conformance ports --start --ports rust`
    """
    from .ports import PORTS, choose_ports, read_ports
    from .ports_text import show_ports

    known = read_ports(folder or PORTS)
    chosen = choose_ports(known, names) if names else known
    raise typer.Exit(show_ports(chosen, Console(), start=start))


@app.command()
def run(
    ports: PortsOption = "",
    ops: OpsOption = "",
    cases: DirOption = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the report goes. [site/report.jsonl]")
    ] = None,
    variant: Annotated[str, typer.Option(metavar="A,B", help="Only these variants, such as naive.")] = "",
    dtype: Annotated[str, typer.Option(metavar="A,B", help="Only these types, such as f32,bf16.")] = "",
    match: Annotated[str, typer.Option(metavar="GLOB", help="Only the cases whose id matches.")] = "",
    timeout: Annotated[float, typer.Option(metavar="S", help="Seconds to wait for one answer.")] = 60.0,
    strict: Annotated[
        bool, typer.Option("--strict", help="What a port does not support fails too, unless it is listed.")
    ] = False,
    ports_dir: FolderOption = None,
) -> None:
    """Asks every port every case that it claims, judges the answers, and writes a report.

    Examples:

    * `conformance run --ports rust,julia --ops sdpa`
    * `conformance run --match 'sdpa/window/*'`
    * `conformance run --cases my-cases --ports python`
    """
    from .conform import Options, run_conformance
    from .known_failures import FOLDER
    from .ports import PORTS, check_names, split_names
    from .questions import Narrowing
    from .report import DEFAULT_REPORT
    from .session import Timeouts
    from .tensors import NUMPY_DTYPES

    check_names("dtype", split_names(dtype), list(NUMPY_DTYPES))
    given = {
        "ports": ports, "ops": ops, "cases": str(cases.name) if cases else "", "variant": variant,
        "dtype": dtype, "match": match,
    }  # fmt: skip
    options = Options(
        narrowing=Narrowing(split_names(dtype), split_names(variant), match),
        described={name: value for name, value in given.items() if value},
        timeouts=Timeouts(run=timeout),
        must_support=strict,
        protocol=not (cases or match),
        sentences=not (cases or match),
        metamorphic=not (cases or match),
        pairs=not (cases or match),
        known_failures=None if cases or ports_dir else FOLDER,  # the lists speak of our cases and ports
        ports_folder=ports_dir or PORTS,
        report=report or DEFAULT_REPORT,
    )
    suites = _load_folder(cases) if cases else _load(ops)
    footer = run_conformance(_choose(ports, ports_dir), suites, options, Console())
    counts = ", ".join(f"{n} {outcome}" for outcome, n in footer.counts.items() if n)
    ending = (
        "all is well"
        if footer.ok
        else f"{len(footer.unexpected)} unexpected, {len(footer.problems)} problems"
    )
    typer.echo(f"{footer.results} results: {counts or 'none'}; {ending} ({footer.seconds:.1f} s)")
    typer.echo(f"report: {_shown(options.report)}")
    raise typer.Exit(0 if footer.ok else 1)


@app.command()
def fuzz(
    ports: PortsOption = "",
    ops: OpsOption = "",
    count: Annotated[
        int, typer.Option("-n", "--count", metavar="N", min=1, help="How many questions.")
    ] = 2000,
    seed: Annotated[int, typer.Option(metavar="SEED", help="Decides every question; 0 = a new one.")] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where a disagreement goes, as a case. [site/fuzz]")
    ] = None,
    kernels: Annotated[
        bool,
        typer.Option("--kernels", help="sdpa alone, where kernels err: tails, hidden tiles, poison, groups."),
    ] = False,
) -> None:
    """Asks every port random questions about every op, and shrinks what disagrees with the oracle to a smallest case.

    Examples:

    * `conformance fuzz -n 200 --ops sdpa,rope`
    * `conformance fuzz -n 20000 --seed 7`
    * `conformance fuzz --kernels -n 10000 --ports rust`
    * `ROSETTA_SIMD_TIER=portable conformance fuzz --kernels --ports rust`: ports inherit the environment
    """
    from .fuzz.command import run_fuzz
    from .ports import split_names

    chosen = _choose(ports), split_names(ops)
    raise typer.Exit(run_fuzz(*chosen, count, seed, out, Console(), for_kernels=kernels))


@app.command()
def memory(ports: PortsOption = "") -> None:
    """Measures how the memory of one attention call grows with the sequence, in every variant of every port.

    Examples:

    * `conformance memory`
    * `conformance memory --ports rust`
    """
    from .memory import LENGTHS, run_memory

    run_memory(_choose(ports), LENGTHS, Console())


app.command("kv-cost")(kv_cost)
app.command("kv-bytes")(kv_bytes)
app.command()(decode)
app.command()(bench)


@app.command()
def compare(ports: PortsOption = "", ops: OpsOption = "") -> None:
    """Everything: fixtures, conformance, real input, a quick benchmark, the table and the page.

    Examples:

    * `conformance compare`
    * `conformance compare --ports python,rust --ops sdpa`
    """
    from .compare import compare as compare_all
    from .ports import read_ports, split_names

    given = {"ports": ports, "ops": ops}
    described = {name: value for name, value in given.items() if value}
    raise typer.Exit(compare_all(_choose(ports), read_ports(), split_names(ops), described=described))


@app.command()
def site(ports: PortsOption = "", ops: OpsOption = "") -> None:
    """Draws site/index.html from the newest reports, whatever they hold.

    Examples:

    * `conformance site`
    """
    from .page import draw_site

    del ports, ops  # taken so that `make site PORTS=...` works; the reports say what there is
    typer.echo(str(draw_site()))


@app.command()
def sidebyside(
    ops: OpsOption = "",
    langs: Annotated[str, typer.Option(metavar="A,B", help="Only these languages.")] = "",
    compare: Annotated[
        str, typer.Option(metavar="A,B", help="How two ops differ, in each language by itself.")
    ] = "",
    check: Annotated[
        bool, typer.Option("--check", help="Only say which steps are missing or misnumbered.")
    ] = False,
) -> None:
    """Shows an op in all languages, step beside step; or checks that every step is there.

    Examples:

    * `conformance sidebyside --ops sdpa --langs python,julia`
    * `conformance sidebyside --compare kv_cache,rotating_cache --langs rust`
    * `conformance sidebyside --check`
    """
    from .sidebyside_text import main as show

    raise typer.Exit(show(ops, langs, compare=compare, check_only=check))


@app.command()
def explain(
    case: Annotated[str, typer.Argument(metavar="CASE", help="The id of a case.")],
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The report to look into. [site/report.jsonl]")
    ] = None,
    cases: DirOption = None,
) -> None:
    """What a case is, which bugs it catches, and how each port did in the newest report.

    Examples:

    * `conformance explain sdpa/gqa/by-hand-6-2`
    """
    from .explain import explain_case
    from .report import DEFAULT_REPORT

    suites = _load_folder(cases) if cases else _load("", bench=True)
    explain_case(case, suites, report or DEFAULT_REPORT, Console())


def _choose(names: str, folder: Path | None = None) -> "list[Port]":
    """The chosen ports, whose programs are all there."""
    from .ports import PORTS, check_commands, choose_ports, read_ports

    chosen = choose_ports(read_ports(folder or PORTS), names)
    check_commands(chosen)
    return chosen


def _load(ops: str, *, bench: bool = False) -> "list[LoadedSuite]":
    from .fixtures import load_suites
    from .ports import split_names

    return load_suites(split_names(ops) or None, include_bench=bench)


def _load_folder(folder: Path) -> "list[LoadedSuite]":
    from .fixtures import load_folder

    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    return [load_folder(folder)]


def _shown(path: Path) -> str:
    """A path as short as it can be said from here."""
    here = Path.cwd()
    return str(path.resolve().relative_to(here)) if path.resolve().is_relative_to(here) else str(path)


def _refuse(error: Exception) -> None:
    print(f"conformance: {error}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
