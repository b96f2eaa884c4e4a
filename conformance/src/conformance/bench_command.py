"""The command `conformance bench`: its options; the work is done elsewhere."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .errors import UsageError

THREADS_HELP = (
    "Granted to every port; with `1,2` rungs that are made for it are timed with both, a process for each."
)
GOALS_HELP = (
    "Times nothing: what a report (`last`: the newest) says about the goals, or of --scaling about growth."
)
WRITE_HELP = "With --goals: puts it between the markers of README.md and docs/benchmarks.md."
PORTS_HELP = "Only these ports, peers too. Without it: all but the peers."


def bench(
    ports: Annotated[str, typer.Option("--ports", metavar="A,B", help=PORTS_HELP)] = "",
    ops: Annotated[str, typer.Option("--ops", metavar="A,B", help="Only the cases of these ops.")] = "",
    full: Annotated[
        bool, typer.Option("--full/--quick", help="At most a quarter of an hour, or about a minute.")
    ] = False,
    threads: Annotated[str, typer.Option(metavar="N,M", help=THREADS_HELP)] = "1",
    save: Annotated[
        Path | None,
        typer.Option("--save", "--file", metavar="FILE", help="Where the raw samples go. [site/bench.jsonl]"),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="BASELINE", help="Raw samples of an older run: status 1 for what is slower now."
        ),
    ] = None,
    scaling: Annotated[
        bool,
        typer.Option("--scaling", help="Time against the length instead, and slopes. [site/scaling.jsonl]"),
    ] = False,
    limits: Annotated[
        bool,
        typer.Option("--limits/--no-limits", help="Measure what the machine can do at most (needs rustc)."),
    ] = True,
    goals: Annotated[str, typer.Option("--goals", metavar="FILE|last", help=GOALS_HELP)] = "",
    write: Annotated[bool, typer.Option("--write", help=WRITE_HELP)] = False,
    ports_dir: Annotated[
        Path | None, typer.Option("--ports-dir", metavar="DIR", help="Another folder of port files.")
    ] = None,
) -> None:
    """Times the ports against the NumPy reference: interleaved, one thread, results judged first.

    Examples:

    * `conformance bench --quick`
    * `conformance bench --scaling --ports rust,torch`
    * `conformance bench --full --ports rust,torch,onnxruntime --ops sdpa`
    * `conformance bench --full --threads 1,2`, then `conformance bench --goals last --write`
    * `conformance bench --save before.jsonl`, then a change, then `conformance bench --check before.jsonl`
    """
    if goals or write:
        show_goals(goals, write=write)
        return
    from .bench import Options, run_bench, with_reference
    from .bench_check import compare_benches, show_comparison
    from .bench_file import DEFAULT_BENCH, read_bench
    from .bench_plan import FULL, QUICK, SCALING
    from .bench_scaling import DEFAULT_SCALING, show_scaling
    from .bench_suites import load_bench_suite
    from .bench_text import show_bench
    from .fixtures import load_suites
    from .ports import PORTS, check_commands, choose_ports, read_ports, split_names

    file = save or (DEFAULT_SCALING if scaling else DEFAULT_BENCH)
    baseline = None
    if check is not None:
        if check.resolve() == file.resolve():
            raise UsageError(f"{check}: is where the new samples go; --save FILE puts them elsewhere")
        baseline = read_bench(check)
    known = read_ports(ports_dir or PORTS)
    chosen = choose_ports(known, ports)
    check_commands(chosen)
    given = {"ports": ports, "ops": ops}
    described = {name: value for name, value in given.items() if value}
    fewest, *more = read_threads(threads)
    options = Options(described, file, fewest, more, limits=limits)
    console = Console()
    wanted = split_names(ops) or None
    suites = load_suites(wanted, include_bench=True)  # which also refuses an op that there is not
    grows = wanted is None or "sdpa" in wanted  # all cases that are made for it are of sdpa
    if scaling and not grows:
        raise UsageError(f"--scaling asks sdpa only, got --ops {ops}")
    if scaling:
        suites = [load_bench_suite("scaling", typer.echo)]
    elif full:
        made = {"sdpa": "grid", "kv_cache": "caches"}
        suites += [load_bench_suite(made[op], typer.echo) for op in made if wanted is None or op in wanted]
    plan = SCALING if scaling else FULL if full else QUICK
    found = run_bench(with_reference(chosen, known), suites, plan, options, console)
    show_bench(found, console)
    show_scaling(found, console)
    typer.echo(f"raw samples: {file}")
    ok = found.footer.ok
    if baseline is not None:
        comparison = compare_benches(baseline, found)
        show_comparison(comparison, console)
        ok = ok and comparison.ok
    raise typer.Exit(0 if ok else 1)


def show_goals(file: str, *, write: bool) -> None:
    """Prints what a report says about the goals, or writes it into the documents. Raises UsageError."""
    from .bench_file import DEFAULT_BENCH, read_bench
    from .bench_goals_text import render, write_parts

    if not file:
        raise UsageError("--write: of which report? --goals FILE, or --goals last")
    report = read_bench(DEFAULT_BENCH if file == "last" else Path(file))
    if write:
        for line in write_parts(report):
            typer.echo(line)
        return
    for part, text in render(report).items():
        typer.echo(f"### {part}\n\n{text}\n")


def read_threads(text: str) -> list[int]:
    """`1,2`: the numbers, the fewest first. Raises UsageError."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = [0]
    if found[0] < 1:
        raise UsageError(f"--threads: expected whole numbers of at least 1, as in 1,2, got {text!r}")
    return found
