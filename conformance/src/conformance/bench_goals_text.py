"""What one report says about the goals, as Markdown, and where documents take it in."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from .bench_file import BenchReport
from .bench_goals import (
    CACHE_GOALS,
    CACHE_PORT,
    DECODE,
    EVERY,
    LARGE,
    MEMORY_GOAL,
    MEMORY_LENGTH,
    SMALL,
    THREADS_GOAL,
    Reached,
    fastest,
    long_rows,
    reach,
    thread_gains,
)
from .bench_plan import SCALING
from .bench_scaling_text import scaling_table
from .bench_stats import BenchRow, geometric_mean
from .bench_text import limits_line
from .cases.bench_caches import TOKENS
from .errors import UsageError
from .memory import HEAD_DIM, WARM_PART
from .repository import ROOT
from .tally import three_digits

DOCUMENTS = (ROOT / "README.md", ROOT / "docs/benchmarks.md")
MAIN_PEERS = ("onnxruntime", "onnxruntime-web")  # beside our own in the short grid
REACHED, ABSENT = "reached", "not in the report"
BEGIN, END = "<!-- bench: {part} -->", "<!-- bench: end -->"


def write_parts(report: BenchReport, documents: Sequence[Path] = DOCUMENTS) -> list[str]:
    """Puts each part between its markers in every document. Raises UsageError, before it writes, for bad markers."""
    parts = render(report)
    texts = {path: _fill(path, path.read_text(encoding="utf-8"), parts) for path in documents}
    said = []
    for path, (text, filled) in texts.items():
        path.write_text(text, encoding="utf-8")
        said.append(f"{path.name}: {', '.join(filled) or 'no markers'}")
    return said


def _fill(path: Path, text: str, parts: dict[str, str]) -> tuple[str, list[str]]:
    filled = []
    for part, body in parts.items():
        begin = BEGIN.format(part=part)
        count = text.count(begin)
        if not count:
            continue
        before, _, rest = text.partition(begin)
        _, end, after = rest.partition(END)
        if count > 1 or not end or "<!-- bench:" in rest.partition(END)[0]:
            raise UsageError(f"{path}: expected one {begin} and then {END}")
        text = f"{before}{begin}\n{body}\n{END}{after}"
        filled.append(part)
    return text, filled


def render(report: BenchReport) -> dict[str, str]:
    """Every part that the report has something for, and those that it has not, saying so.

    A report of `--scaling` has parts of its own.
    """
    if report.header.mode == SCALING.mode:
        return {"scaling": scaling_table(report), "scaling run": run_lines(report)}
    return {
        "grid": grid_table(report),
        "short grid": grid_table(report, MAIN_PEERS),
        "goals": goals_table(report),
        "goals in short": goals_in_short(report),
        "algorithms": algorithms_table(report),
        "threads": threads_table(report),
        "caches": caches_table(report),
        "long pasts": long_table(report),
        "run": run_lines(report),
    }


def run_lines(report: BenchReport) -> str:
    """When, where, with what, the limits of the machine, and the noise."""
    header, machine = report.header, report.header.machine
    threads = ",".join(map(str, (header.threads, *header.more_threads)))
    narrowed = "".join(f" --{name} {value}" for name, value in header.narrowing.items())
    noise = sorted(report.noise.values())
    lines = [
        f"- `conformance bench --{header.mode} --threads {threads}{narrowed}`",
        f"- {header.date[:10]}{', commit ' + header.commit if header.commit else ''},"
        f" {header.rounds} rounds, {report.footer.seconds / 60:.0f} minutes",
        f"- {machine.cpu}, {machine.cores} cores, {machine.system}",
    ]
    if report.limits is not None:
        lines.append(f"- {limits_line(report.limits)}")
    if noise:
        lines.append(
            f"- noise floor: {100 * median(noise):.0f} % in the median case, {100 * noise[-1]:.0f} % in the worst"
        )
    runtimes = [
        f"{port.name} {port.start.version} ({port.start.runtime})" if port.start.runtime else port.name
        for port in header.ports
        if port.start
    ]
    lines.append(f"- {'; '.join(runtimes)}")
    return "\n".join(lines)


def grid_table(report: BenchReport, peers: Sequence[str] | None = None) -> str:
    """The fastest rung of each port and peer in each cell: a rate, and its share of the limit.

    peers: only the columns of these; the fastest of a cell is that of all, and may be in none of them.
    """
    names = [port.name for port in report.header.ports]
    found = {(case, name): _best(report, case, name) for case in EVERY for name in names}
    least = {
        case: min((row.min_ns for name in names if (row := found[case, name])), default=0) for case in EVERY
    }
    ports = [
        port.name
        for port in report.header.ports
        if port.kind == "port" or peers is None or port.name in peers
    ]
    cases = [case for case in EVERY if any(found[case, port] for port in ports)]
    if not cases:
        return "Nothing of the grid was timed."
    ports = [port for port in ports if any(found[case, port] for case in cases)]
    usual = {port: _usual([found[case, port] for case in cases]) for port in ports}
    head = "| | " + " | ".join(f"{port} `{usual[port]}`" for port in ports) + " |"
    lines = [head, "|---|" + "---|" * len(ports)]
    for case in cases:
        rows = [found[case, port] for port in ports]
        cells = [
            _cell(case, row, usual[port], row is not None and row.min_ns == least[case])
            for port, row in zip(ports, rows, strict=True)
        ]
        lines.append(f"| {case.rpartition('/')[2]}, {_unit(case)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _best(report: BenchReport, case: str, port: str) -> BenchRow | None:
    """Without `threads`, which is another rung over again with one, and has a table of its own for two."""
    variants = dict.fromkeys(row.variant for row in report.rows if row.port == port)
    return fastest(report, case, [f"{port}:{variant}" for variant in variants if variant != "threads"])


def _usual(rows: Sequence[BenchRow | None]) -> str:
    """The variant that is the fastest most often."""
    return Counter(row.variant for row in rows if row).most_common(1)[0][0]


def _unit(case: str) -> str:
    return "GB/s" if case in DECODE else "µs" if case in SMALL else "GFLOP/s"


def _cell(case: str, row: BenchRow | None, usual: str, best: bool) -> str:
    if row is None:
        return "-"
    share = 0.0
    if case in SMALL:
        text = three_digits(row.min_ns / 1e3)
    elif case in DECODE:
        text, share = three_digits(row.gigabytes), row.read_share
    else:
        text, share = three_digits(row.gflops), row.peak_share
    text = f"**{text}**" if best else text
    text += f" ({100 * share:.0f} %)" if share >= 0.005 else ""
    return text if row.variant == usual else f"{text} `{row.variant}`"


@dataclass(frozen=True)
class GoalLine:
    """A goal as the table shows it. lacking: what is not reached; empty where all is."""

    what: str
    against: str
    cells: int
    mean: str
    least: str
    share: str
    lacking: str

    @property
    def short(self) -> str:
        """A row of the narrow table."""
        what = f"{self.what} against {self.against}" if self.mean else self.what
        return f"| {what} | {self.mean or self.share} | {self.lacking or REACHED} |"

    def __str__(self) -> str:
        """A row of the table."""
        cells = (self.what, self.against, self.cells, self.mean, self.least, self.share)
        return f"| {' | '.join(map(str, cells))} | {self.lacking or REACHED} |"


def goals_table(report: BenchReport) -> str:
    """A line for each goal: what was reached, what was wanted, and what is lacking."""
    lines = [
        "| port, rung | against | cells | geometric mean (goal) | lowest cell (goal) | share of the limit (goal) | |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join(lines + [str(line) for line in _goal_lines(report)])


def goals_in_short(report: BenchReport) -> str:
    """The same in three columns, without the single cells."""
    lines = [line.short for line in _goal_lines(report)]
    return "\n".join(["| aimed at | came out (goal) | missing |", "|---|---|---|", *lines])


def _goal_lines(report: BenchReport) -> list[GoalLine]:
    found = [_goal_line(found) for found in reach(report)] + _cache_lines(report)
    return found + _thread_lines(report) + _memory_lines(report)


def _goal_line(found: Reached) -> GoalLine:
    goal, lowest = found.goal, found.lowest
    mean = f"{found.mean:.2f} ({goal.mean:g})" if found.cells else f"- ({goal.mean:g})"
    least = "-"
    if lowest is not None:
        wanted = f" ({goal.least:g})" if goal.least else ""
        least = f"{lowest.ratio:.2f} {lowest.case.rpartition('/')[2]}, {lowest.peer}{wanted}"
    share = ""
    if goal.share is not None:
        reached = f"{100 * min(found.shares.values()):.0f} %" if found.shares else "-"
        share = f"{reached} of the {goal.share.of} ({100 * goal.share.least:.0f} %)"
    against = ", ".join(goal.peers)
    return GoalLine(goal.what, against, len(found.cells), mean, least, share, ", ".join(found.lacking))


def _cache_lines(report: BenchReport) -> list[GoalLine]:
    """Decode on the longest past, each format against f32 in the same round."""
    lines = []
    for (port, variant), rows in long_rows(report).items():
        longest = max(row.past for row in rows)
        for row in rows:
            goal = CACHE_GOALS.get(row.kind)
            if port == CACHE_PORT and row.past == longest and goal and row.ratios:
                shown = f"{row.ratio:.2f} ({goal:g})"
                least = f"{min(row.ratios):.2f} in the lowest round"
                what = f"Rust `{variant}`, decode on {row.kind}, {longest} tokens"
                lacking = "" if row.ratio >= goal else "mean"
                lines.append(GoalLine(what, "f32 in the same cache", 1, shown, least, "", lacking))
    return lines or [GoalLine("decode on caches of codes", "f32", 0, "-", "-", "", ABSENT)]


def _thread_lines(report: BenchReport) -> list[GoalLine]:
    lines = []
    for (port, variant), gains in thread_gains(report).items():
        large = {case: gain for case, gain in gains.items() if case in LARGE}
        if variant != "threads" or not large:
            continue
        lowest = min(large, key=lambda case: large[case])
        mean = geometric_mean(large.values())
        shown = f"{mean:.2f} ({THREADS_GOAL:g})"
        least = f"{large[lowest]:.2f} {lowest.rpartition('/')[2]}"
        lacking = "" if mean >= THREADS_GOAL else "mean"
        lines.append(GoalLine(f"{port} `threads`, two", "one", len(large), shown, least, "", lacking))
    return lines or [GoalLine("`threads`, two", "one", 0, "-", "-", "", ABSENT)]


def _memory_lines(report: BenchReport) -> list[GoalLine]:
    """What a call took without its tensors. One that took much less than those was not seen whole, and proves nothing.

    A little less, 1/16, may be what the small calls before have left.
    """
    lines = []
    scores = 4 * MEMORY_LENGTH**2
    tensors = 4 * 4 * MEMORY_LENGTH * HEAD_DIM  # q, k, v and the output, which naive holds as well
    length, goal = f"memory at T = {MEMORY_LENGTH}", f"(< {100 * MEMORY_GOAL:.0f} %)"
    for one in report.memory:
        if one.length == MEMORY_LENGTH:
            rest = one.bytes - tensors
            taken = f"{one.bytes / 2**20:.0f} MiB, q, k, v and output alone are {tensors / 2**20:.0f}"
            seen = rest >= -tensors // WARM_PART
            share = f"{100 * max(0, rest) / scores:.2f} % {goal}" if seen else f"- {goal}"
            lacking = "" if seen and rest < MEMORY_GOAL * scores else "share" if seen else "not measured"
            against = f"naive's scores, {scores / 2**30:.0f} GiB"
            lines.append(
                GoalLine(f"{one.port} `{one.variant}`, {length}", against, 1, "", taken, share, lacking)
            )
    return lines or [GoalLine(length, "naive's scores", 0, "", "", "-", ABSENT)]


def algorithms_table(report: BenchReport) -> str:
    """The same algorithm in every language: times as fast as NumPy's naive rung, in the mean over the cells of sdpa."""
    own = [port.name for port in report.header.ports if port.kind == "port"]
    lines = ["| | " + " | ".join(own) + " |", "|---|" + "---|" * len(own)]
    variants = dict.fromkeys(row.variant for row in report.rows if row.op == "sdpa" and row.port in own)
    for variant in variants:
        cells = []
        for port in own:
            rows = [
                row
                for row in report.rows
                if (row.port, row.variant, row.op) == (port, variant, "sdpa") and row.speed > 0
            ]
            mean = geometric_mean(row.speed for row in rows)
            cells.append(f"{mean:.{2 if mean >= 0.1 else 3}f} ({len(rows)})" if rows else "-")
        lines.append(f"| `{variant}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def threads_table(report: BenchReport) -> str:
    """Two threads against one, for every rung and peer that was timed with both."""
    gains = thread_gains(report)
    if not gains:
        return "Not timed with two threads (`--threads 1,2`)."
    cases = [case for case in EVERY if any(case in found for found in gains.values())]
    names = [f"{port} `{variant}`" for port, variant in gains]
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for case in cases:
        cells = [f"{found[case]:.2f}" if case in found else "-" for found in gains.values()]
        lines.append(f"| {case.rpartition('/')[2]} | " + " | ".join(cells) + " |")
    means = [f"{geometric_mean(found.values()):.2f}" for found in gains.values()]
    lines.append("| geometric mean | " + " | ".join(means) + " |")
    return "\n".join(lines)


def caches_table(report: BenchReport) -> str:
    """Tokens a second of each kind of cache, the prefill before them included, and its speed against contiguous."""
    rows = [row for row in report.rows if row.case.startswith("bench/caches/") and row.rounds]
    if not rows:
        return "No kind of cache was timed (`--full`)."
    names = list(dict.fromkeys((row.port, row.variant) for row in rows))
    times = {(row.case, row.port, row.variant): row.min_ns for row in rows}
    head = "| tokens/s (against contiguous) | " + " | ".join(f"{port} `{variant}`" for port, variant in names)
    lines = [head + " |", "|---|" + "---|" * len(names)]
    for case in dict.fromkeys(row.case for row in rows):
        cells = []
        for port, variant in names:
            ns = times.get((case, port, variant))
            base = times.get(("bench/caches/contiguous", port, variant))
            ratio = f" ({base / ns:.2f})" if ns and base else ""
            cells.append(f"{TOKENS / ns * 1e9:,.0f}{ratio}" if ns else "-")
        lines.append(f"| {case.rpartition('/')[2]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def long_table(report: BenchReport) -> str:
    """One token over what a cache holds: microseconds, bytes of keys and values a second, and against f32."""
    found = long_rows(report)
    if not found:
        return "No cache with a long past was timed."
    columns = [
        (name, past) for name, rows in found.items() for past in dict.fromkeys(row.past for row in rows)
    ]
    head = "| | " + " | ".join(f"{name[0]} `{name[1]}`, {past} tokens" for name, past in columns)
    lines = [head + " |", "|---|" + "---|" * len(columns)]
    for kind in dict.fromkeys(row.kind for rows in found.values() for row in rows):
        cells = []
        for name, past in columns:
            row = next((row for row in found[name] if (row.kind, row.past) == (kind, past)), None)
            text = "-"
            if row is not None:
                text = f"{three_digits(row.row.min_ns / 1e3)} µs, {three_digits(row.row.gigabytes)} GB/s"
                text += f" ({row.ratio:.2f})" if row.ratios else ""
            cells.append(text)
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
