"""One port under docs/protocol.md: start, run, bench, stop, with a deadline for every answer.

A port that breaks the protocol, dies or hangs is killed and its fault raised as PortCrash or PortTimeout; the
next request starts it again, up to a number of times. So a bad case costs that case and no other, and never
goes unsaid.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from .outcome import Outcome
from .ports import Port
from .process import LineProcess, NoAnswer, ProcessEnded, show
from .repository import ROOT

PROTOCOL = 1
STATUSES = ("ok", "unsupported", "error")
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "JULIA_NUM_THREADS",
)
TAIL_LINES = 12


class PortFault(Exception):
    """The process failed, not its answer. The message says what was expected and what came; then stderr."""

    outcome: Outcome = "crash"


class PortCrash(PortFault):
    """The port died or broke the protocol."""


class PortTimeout(PortFault):
    """The port did not answer in time."""

    outcome: Outcome = "timeout"


class StrayOutput(PortCrash):
    """The answer to the request before this one was followed by something: the fault is that request's."""


class PortGivenUp(PortCrash):
    """The port could not be started, or was started too often: it is not asked again."""


class OpClaim(msgspec.Struct, frozen=True):
    """What a port offers of one op. The first variant is the readable one.

    complete: further variants that have all of the features, though perhaps not all of the outputs.
    """

    variants: list[str]
    dtypes: list[str]
    features: list[str] = []
    complete: list[str] = []


class StartAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a port says about itself."""

    protocol: int
    name: str
    ops: dict[str, OpClaim]
    language: str = ""
    version: str = ""
    runtime: str = ""
    threads: int = 1
    isa: list[str] = []


@dataclass(frozen=True)
class Timeouts:
    """Seconds to wait for an answer. Start is long: a compiler may have to warm up."""

    start: float = 120.0
    run: float = 60.0
    stop: float = 5.0


PATIENCE = Timeouts()


def port_command(command: Sequence[str], root: Path = ROOT) -> list[str]:
    """A command of a port file as it is started: a path is relative to the root, a bare name is looked up."""
    first = str(root / command[0]) if "/" in command[0] else command[0]
    return [first, *command[1:]]


def port_environment(port: Port, threads: int) -> dict[str, str]:
    """What the processes of a port see: ours, every pool set to that many threads, and what its file adds."""
    return dict(os.environ) | dict.fromkeys(THREAD_VARIABLES, str(threads)) | port.env


class Session:
    """A port that is kept running. Use as a context manager, so that no process stays behind."""

    def __init__(
        self,
        port: Port,
        *,
        threads: int = 1,
        timeouts: Timeouts = PATIENCE,
        max_restarts: int = 10,
        root: Path = ROOT,
    ) -> None:
        self.port = port
        self.threads = threads
        self.timeouts = timeouts
        self.max_restarts = max_restarts
        self.root = root
        self.restarts = 0
        self.claims: StartAnswer | None = None
        self._process: LineProcess | None = None
        self._seq = 0
        self._answered = "start"  # what the process answered last
        self._last_fault = ""
        self._given_up = ""

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int | None:
        """The process that answers now."""
        return self._process.pid if self._process else None

    @property
    def given_up(self) -> str:
        """Why the port is not asked any more; empty while it is."""
        return self._given_up

    def start(self) -> StartAnswer:
        """Starts the process unless it runs, and returns what it claims. Raises PortGivenUp, PortFault."""
        if self._given_up:
            raise PortGivenUp(self._given_up)
        if self._process is not None and self.claims is not None:
            return self.claims
        first = self.claims is None
        if not first:
            self.restarts += 1
            if self.restarts > self.max_restarts:
                self._given_up = f"given up after {self.max_restarts} restarts; the last: {self._last_fault}"
                raise PortGivenUp(self._given_up)
        try:
            self._launch()
            answer = self._send(
                {"cmd": "start", "protocol": PROTOCOL, "threads": self.threads}, self.timeouts.start
            )
            claims = self._read_claims(answer)
            if self.claims is not None and claims.ops != self.claims.ops:
                raise self._fault("expected the same claims as at the first start, got others", PortCrash)
        except PortFault as fault:
            if first:  # it never worked: trying again for every case would only cost time
                self._given_up = f"could not be started: {fault}"
                raise PortGivenUp(self._given_up) from None
            raise
        self.claims = claims
        return claims

    def run(self, request: Mapping[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """The answer to a `run` request, which comes without cmd and seq. Raises PortFault."""
        return self._ask("run", request, self.timeouts.run if timeout is None else timeout)

    def bench(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """The answer to a `bench` request, which comes without cmd and seq. Raises PortFault."""
        return self._ask("bench", request, timeout)

    def probe(self, line: bytes) -> dict[str, Any]:
        """The answer to a line that may be no request at all and carries no seq. Raises PortFault."""
        self._make_ready()
        answer = self._exchange(line, self.timeouts.run)
        return self._accept(answer, show(line))

    def stop(self) -> None:
        """Ends the port in the orderly way. Raises PortFault when it does not go or talks on."""
        if self._process is None:
            return
        try:
            self._refuse_stray_output(StrayOutput)
            if self._send({"cmd": "stop"}, self.timeouts.stop).get("status") != "ok":
                raise self._fault("expected status ok as the answer to stop", PortCrash)
            self._process.close_input()
            if self._process.wait(self.timeouts.stop) is None:
                raise self._fault(
                    f"still running {self.timeouts.stop:g} s after it answered stop", PortTimeout
                )
            self._refuse_stray_output(PortCrash)
        finally:
            self.kill()

    def kill(self) -> None:
        """Ends the process and its children at once."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _ask(self, command: str, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Sends the request under a new seq, which must come back."""
        self._make_ready()
        self._seq += 1
        answer = self._send({**request, "cmd": command, "seq": self._seq}, timeout)
        seq = answer.get("seq")
        if seq != self._seq or isinstance(seq, bool):
            raise self._fault(f"expected the answer to seq {self._seq}, {self._what_seq(seq)}", PortCrash)
        return self._accept(answer, f"seq {self._seq}")

    def _make_ready(self) -> None:
        """A running process that has said nothing unasked."""
        self.start()
        self._refuse_stray_output(PortCrash if self._answered == "start" else StrayOutput)

    def _accept(self, answer: dict[str, Any], asked: str) -> dict[str, Any]:
        """The answer, if its status is one of the three and nothing came with it."""
        if answer.get("status") not in STATUSES:
            raise self._fault(
                f"expected status ok, unsupported or error, got {answer.get('status')!r}", PortCrash
            )
        self._answered = asked
        self._refuse_stray_output(PortCrash)
        return answer

    def _launch(self) -> None:
        command = port_command(self.port.command, self.root)
        try:
            self._process = LineProcess(command, port_environment(self.port, self.threads), self.root)
        except OSError as error:
            raise PortCrash(f"{self.port.command[0]}: {error.strerror}") from None
        self._answered = "start"

    def _send(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        return self._exchange(msgspec.json.encode(request), timeout)

    def _exchange(self, line: bytes, timeout: float) -> dict[str, Any]:
        """One line out, one line back, which must be an object."""
        assert self._process is not None
        deadline = time.monotonic() + timeout
        try:
            self._process.send(line + b"\n", deadline)
            reply = self._process.receive(deadline)
        except ProcessEnded as ended:
            raise self._fault(str(ended), PortCrash) from None
        except NoAnswer as silence:
            raise self._fault(f"no answer within {timeout:g} s: {silence}", PortTimeout) from None
        try:
            answer = msgspec.json.decode(reply)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._fault(
                f"expected a line of JSON on stdout, got {show(reply)} ({error})", PortCrash
            ) from None
        if not isinstance(answer, dict):
            raise self._fault(f"expected a JSON object on stdout, got {show(reply)}", PortCrash)
        return answer

    def _read_claims(self, answer: dict[str, Any]) -> StartAnswer:
        if answer.get("status") != "ok":
            raise self._fault(f"expected status ok as the answer to start, got {answer}", PortCrash)
        try:
            claims = msgspec.convert(answer, StartAnswer)
        except msgspec.ValidationError as error:
            raise self._fault(
                f"the answer to start is not as the protocol says: {error}", PortCrash
            ) from None
        if claims.protocol != PROTOCOL:
            raise self._fault(f"expected protocol {PROTOCOL}, got {claims.protocol}", PortCrash)
        for op, claim in claims.ops.items():
            if not claim.variants or not claim.dtypes:
                raise self._fault(f"the answer to start claims {op} without a variant or a dtype", PortCrash)
        return claims

    def _refuse_stray_output(self, kind: type[PortCrash]) -> None:
        assert self._process is not None
        lines = self._process.pending()
        if lines:
            raise self._fault(f"the answer to {self._answered} was followed by {show(lines[0])}", kind)

    def _what_seq(self, seq: Any) -> str:
        if isinstance(seq, int) and not isinstance(seq, bool) and 0 < seq < self._seq:
            return f"got seq {seq} again" if seq == self._seq - 1 else f"got the old seq {seq}"
        return "got one without seq" if seq is None else f"got seq {seq!r}"

    def _fault(self, what: str, kind: type[PortFault]) -> PortFault:
        """Kills the process, whose state is unknown now, and quotes the end of its stderr."""
        tail = self._process.kill() if self._process is not None else ""
        self._process = None
        self._last_fault = what
        lines = tail.splitlines()[-TAIL_LINES:]
        return kind("\n".join([what, *(f"  stderr: {line}" for line in lines)]))
