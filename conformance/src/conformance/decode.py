"""The command `conformance decode`: each port's own decode experiment, held to the same counts, in one file.

The programs time themselves (docs/decode.md); here they are started one after the other, on one thread, and what they
say is checked: every way at every length once, and counts as decode_counts has them. A port whose program fails costs
that port and no other.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .decode_counts import CACHE, WAYS, Counts, count
from .errors import UsageError
from .lines_file import read_lines, write_lines
from .machine import Machine, describe_machine, now
from .ports import Port, check_commands
from .process import LineProcess, NoAnswer, ProcessEnded, show
from .repository import ROOT
from .session import TAIL_LINES, port_command, port_environment

FORMAT = 1
DEFAULT_DECODE = ROOT / "site/decode.jsonl"
LENGTHS, QUICK = (64, 128, 256, 512, 1024), (16, 32, 64, 128)
WIDTH, HEADS = 128, 8
LIMIT_S = 1800.0  # of one program; the longest text in plain loops takes minutes


class Point(msgspec.Struct, frozen=True, tag_field="kind", tag="point"):
    """One way of one port up to one length. seconds: from the start of the run. The counts: decode_counts."""

    port: str
    way: str
    tokens: int
    seconds: float
    multiply_adds: int
    moved: int
    held: int


class DecodeHeader(msgspec.Struct, frozen=True, tag_field="kind", tag="header"):
    """Where, when, and what was asked. without: the ports that have no such program."""

    format: int
    date: str
    machine: Machine
    lengths: list[int]
    width: int
    heads: int
    ports: list[str]
    without: list[str]


class DecodeFooter(msgspec.Struct, frozen=True, tag_field="kind", tag="footer"):
    """What went wrong, a message for each port that is not among the points."""

    problems: list[str]


@dataclass(frozen=True)
class Decoding:
    """The whole file."""

    header: DecodeHeader
    points: list[Point]
    footer: DecodeFooter

    def count(self, way: str, tokens: int) -> Counts:
        """What the way costs up to that length, in every port."""
        return count(way, tokens, self.header.width, self.header.heads)

    def seconds(self, port: str, way: str) -> dict[int, float]:
        """By length."""
        return {p.tokens: p.seconds for p in self.points if (p.port, p.way) == (port, way)}

    def measured(self) -> list[str]:
        """The ports that have points, in their order."""
        return [name for name in self.header.ports if any(p.port == name for p in self.points)]

    def saved(self, port: str, way: str, tokens: int) -> float:
        """How many times as long the way takes as a cache does."""
        return self.seconds(port, way)[tokens] / self.seconds(port, CACHE)[tokens]


class DecodeFault(Exception):
    """A program did not do what docs/decode.md says."""


def run_decode(
    ports: Sequence[Port],
    lengths: Sequence[int],
    repeats: int,
    file: Path = DEFAULT_DECODE,
    *,
    tick: Callable[[str], None] = lambda name: None,
    say: Callable[[str], None] = lambda line: None,
    limit_s: float = LIMIT_S,
) -> Decoding:
    """Runs every program and writes the file. Raises UsageError where no port has one, or one is not there."""
    able = [port for port in ports if port.decode]
    without = [port.name for port in ports if not port.decode]
    if not able:
        raise UsageError(f"decode: none of these has a program for it: {', '.join(without) or 'no port'}")
    check_commands([msgspec.structs.replace(port, command=port.decode) for port in able])
    header = DecodeHeader(
        FORMAT, now(), describe_machine(), sorted(lengths), WIDTH, HEADS, [p.name for p in able], without
    )
    if without:
        say(f"left out, since their port files have no `decode`: {', '.join(without)}")
    points: list[Point] = []
    problems: list[str] = []
    for port in able:
        started = time.monotonic()
        say(f"{port.name:<12} begins")
        try:
            points += _run_one(port, header.lengths, repeats, tick, limit_s)
            say(f"{port.name:<12} {len(WAYS) * len(lengths)} measured ({time.monotonic() - started:.0f} s)")
        except DecodeFault as fault:
            problems.append(f"{port.name}: {fault}")
            say(f"{port.name:<12} failed ({time.monotonic() - started:.0f} s)")
    found = Decoding(header, points, DecodeFooter(problems))
    write_lines(file, header, points, found.footer)
    return found


def read_decode(path: Path = DEFAULT_DECODE) -> Decoding:
    """A finished file. Raises UsageError."""
    return Decoding(*read_lines(path, DecodeHeader, Point, DecodeFooter, "conformance decode"))


def _run_one(
    port: Port, lengths: Sequence[int], repeats: int, tick: Callable[[str], None], limit_s: float
) -> list[Point]:
    """Every point of one port, in the order of WAYS and lengths. Raises DecodeFault."""
    options = {"--n": ",".join(map(str, lengths)), "--width": WIDTH, "--heads": HEADS, "--repeats": repeats}
    command = [*port_command(port.decode), "--json"]
    command += [str(word) for option in options.items() for word in option]
    try:
        process = LineProcess(command, port_environment(port, threads=1), ROOT)
    except OSError as error:
        raise DecodeFault(f"{port.decode[0]}: {error.strerror}") from None
    found: dict[tuple[str, int], Point] = {}
    fault = ""
    try:
        process.close_input()
        deadline = time.monotonic() + limit_s
        while len(found) < len(WAYS) * len(lengths):
            point = _read_point(process.receive(deadline), port.name, lengths)
            if (point.way, point.tokens) in found:
                raise DecodeFault(f"{point.way} at {point.tokens} tokens came twice")
            found[point.way, point.tokens] = point
            tick(port.name)
        status = process.wait(max(0.0, deadline - time.monotonic()))
        if status is None:
            fault = f"did not end within {limit_s:g} s"
        elif more := process.pending():
            fault = f"expected {len(found)} lines, then came {show(more[0])}"
        elif status:
            fault = f"it ended with exit status {status}"
    except ProcessEnded as ended:
        fault = f"{ended}, after {len(found)} of {len(WAYS) * len(lengths)} lines"
    except NoAnswer as silence:
        fault = f"did not end within {limit_s:g} s: {silence}"
    except DecodeFault as wrong:
        fault = str(wrong)
    finally:
        tail = process.kill()
    if fault:
        lines = [f"  stderr: {line}" for line in tail.splitlines()[-TAIL_LINES:]]
        raise DecodeFault("\n".join([fault, *lines]))
    return [found[way, n] for way in WAYS for n in lengths]


def _read_point(line: bytes, port: str, lengths: Sequence[int]) -> Point:
    """A line of a program. Raises DecodeFault when it is none, or says another count than is right."""
    try:
        point = msgspec.json.decode(line, type=Point)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DecodeFault(f"expected a line of JSON, got {show(line)} ({error})") from None
    for name, allowed in (("port", [port]), ("way", WAYS), ("tokens", lengths)):
        if (got := getattr(point, name)) not in allowed:
            raise DecodeFault(f"{name}: expected {' or '.join(map(str, allowed))}, got {got!r}")
    if not 0 < point.seconds < float("inf"):
        raise DecodeFault(f"seconds: expected a time > 0, got {point.seconds}")
    right = count(point.way, point.tokens, WIDTH, HEADS)
    for name in ("multiply_adds", "moved", "held"):
        expected, said = getattr(right, name), getattr(point, name)
        if expected != said:
            raise DecodeFault(
                f"{name} of {point.way!r} at {point.tokens} tokens: expected {expected}, got {said}"
            )
    return point
