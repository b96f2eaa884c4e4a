"""The command `conformance memory`: how much memory attention takes as the sequence grows, measured from outside.

Each measurement has a process of its own. After small calls that load all code, Linux is told to forget the highest
resident size of the process; one attention call follows, and its new highest size, less the lowest before it, is
what the call took: its inputs, its result, and all between them. The lowest is not always what was resident when the
call began: a collector (Julia's) may first give back what compiling left. So the size is looked at all the while, and
the small calls are several, and large enough that the collector has been there before. What they leave can be used
again: 1/16 of the inputs and the result, 1/256 of a table, which is how much too little may be seen.
Plain attention holds a table of T x T scores; a tiled one holds a tile.
"""

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import numpy as np
from rich.console import Console
from rich.table import Table

from .errors import UsageError
from .inputs import Draw
from .ports import Port
from .session import PortFault, Session
from .tensors import write_tensors

LENGTHS = (512, 1024, 2048, 4096)
HEAD_DIM = 64
SHORTEST, WARM_PART, WARM_CALLS = 64, 16, 4  # calls before, of this part of the length
LOOK_S = 0.001  # between two looks at the size of the process


@dataclass(frozen=True)
class Curve:
    """Bytes that one call took, by length."""

    port: str
    variant: str
    taken: dict[int, int]

    @property
    def exponent(self) -> float:
        """p in bytes ~ T^p, between the two longest."""
        *_, short, long = sorted(self.taken)
        return math.log(max(self.taken[long], 1) / max(self.taken[short], 1)) / math.log(long / short)


class Refused(UsageError):
    """A variant does not do this call: its text is for others."""


def run_memory(ports: Sequence[Port], lengths: Sequence[int], console: Console) -> list[Curve]:
    """Measures and prints the table. Raises UsageError where the system cannot tell."""
    if not can_measure():
        raise UsageError("memory: expected Linux, whose /proc says how much memory a process has had at most")
    curves, refused = [], []
    with tempfile.TemporaryDirectory(prefix="conformance-memory-") as folder:
        write_inputs(Path(folder), lengths)
        for port in ports:
            for variant in _variants(port):
                try:
                    taken = {n: measure(port, variant, n, Path(folder)) for n in lengths}
                except Refused:
                    refused.append(f"{port.name} {variant}")
                    continue
                curves.append(Curve(port.name, variant, taken))
    console.print(_table(curves, lengths))
    if refused:
        console.print(f"left out, since they refuse this call: {', '.join(refused)}", highlight=False)
    return curves


def can_measure() -> bool:
    """Whether the system tells, and can be told to forget, the highest resident size of a process."""
    return Path("/proc/self/clear_refs").exists()


def write_inputs(folder: Path, lengths: Sequence[int]) -> None:
    """The files of inputs that `measure` takes, and those of the small calls before."""
    for length in sorted({*map(warm_length, lengths), *lengths}):
        _write_inputs(folder, length)


def warm_length(length: int) -> int:
    """Of the calls before one of this length."""
    return max(SHORTEST, length // WARM_PART)


def measure(port: Port, variant: str, length: int, folder: Path) -> int:
    """Bytes that one call takes, in a fresh process. Raises UsageError when it fails."""
    with Session(port) as session:
        try:
            session.start()
            for _ in range(WARM_CALLS):
                _ask(session, variant, warm_length(length), folder)
            status = Path(f"/proc/{session.pid}/status")
            Path(f"/proc/{session.pid}/clear_refs").write_text("5")
            with _watched(status) as sizes:
                _ask(session, variant, length, folder)
        except PortFault as fault:
            raise UsageError(f"memory: {port.name} {variant}, T = {length}: {fault}") from None
        return 1024 * (_kib(status, "VmHWM") - lowest_before_highest(sizes))


def lowest_before_highest(sizes: Sequence[int]) -> int:
    """Of sizes in order of time, the first of which was before the call."""
    return min(sizes[: 1 + sizes.index(max(sizes))])


@contextmanager
def _watched(status: Path) -> Iterator[list[int]]:
    """The resident sizes of a process in KiB, from now to the end of the block; a process that ends has no more."""
    sizes = [_kib(status, "VmRSS")]
    done = Event()

    def look() -> None:
        while not done.wait(LOOK_S):
            try:
                sizes.append(_kib(status, "VmRSS"))
            except (OSError, StopIteration):
                return

    watcher = Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield sizes
    finally:
        done.set()
        watcher.join()


def _variants(port: Port) -> list[str]:
    with Session(port) as session:
        try:
            claims = session.start()
        except PortFault as fault:
            raise UsageError(f"memory: {port.name}: {fault}") from None
        if "sdpa" not in claims.ops:
            raise UsageError(f"memory: {port.name}: expected a port that claims sdpa")
        return claims.ops["sdpa"].variants


def _ask(session: Session, variant: str, length: int, folder: Path) -> None:
    answer = session.run(_request(variant, length, folder))
    if answer["status"] != "ok":
        kind = Refused if answer["status"] == "unsupported" else UsageError
        raise kind(f"memory: {session.port.name} {variant}: expected an answer, got {answer}")


def _request(variant: str, length: int, folder: Path) -> dict[str, object]:
    return {
        "case": f"memory/{length}",
        "op": "sdpa",
        "variant": variant,
        "config": {},
        "inputs": str(folder / f"{length}.safetensors"),
        "outputs": str(folder / "out.safetensors"),
        "want": ["output"],
    }


def _write_inputs(folder: Path, length: int) -> None:
    draw = Draw(f"memory/{length}")
    tensors = {name: draw.normal(1, 1, length, HEAD_DIM).astype(np.float32) for name in ("q", "k", "v")}
    write_tensors(folder / f"{length}.safetensors", tensors)


def _kib(status: Path, name: str) -> int:
    """A size that /proc gives in KiB."""
    line = next(line for line in status.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1])


def _table(curves: Sequence[Curve], lengths: Sequence[int]) -> Table:
    table = Table(
        title=f"Memory of one call of sdpa, B = H = 1, D = {HEAD_DIM}, f32, in MiB", title_justify="left"
    )
    table.add_column("port")
    table.add_column("variant")
    for length in lengths:
        table.add_column(f"T = {length}", justify="right")
    table.add_column("grows as", justify="right")
    for curve in curves:
        sizes = [f"{curve.taken[n] / 2**20:.1f}" for n in lengths]
        table.add_row(curve.port, curve.variant, *sizes, f"T^{curve.exponent:.1f}")
    one = f"{3 * max(lengths) * HEAD_DIM * 4 / 2**20:.1f}"
    table.caption = f"q, k and v alone are {one} MiB at T = {max(lengths)}"
    return table
