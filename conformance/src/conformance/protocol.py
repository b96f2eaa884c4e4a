"""Checks of the protocol itself, which need no fixture: what a port answers to lines that are no request.

Each is a result in the suite `protocol`, so that a careless wrapper is seen even when its library is right.
"""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from msgspec.json import encode

from .outcome import Judgement, Result
from .session import PortFault, Session

SUITE = "protocol"


@dataclass(frozen=True)
class Check:
    """One line to send, without its newline, and what must come back."""

    id: str
    line: bytes
    code: str | None  # None = status ok
    note: str


def list_checks(op: str, folder: Path) -> list[Check]:
    """The checks, for a port that claims `op`. None of them may leave a file in the folder."""
    missing, outputs = str(folder / "missing.safetensors"), str(folder / "outputs.safetensors")
    request = {"case": "protocol", "op": op, "config": {}, "inputs": missing, "outputs": outputs}
    broken = folder / "broken.safetensors"
    broken.write_bytes(b"this is no safetensors file")
    code = "invalid_request"
    run = {"cmd": "run", **request}
    no_inputs = {name: value for name, value in run.items() if name != "inputs"}
    start = {"cmd": "start", "protocol": 1, "threads": 1, "mood": "new"}
    return [
        Check("not-json", b"this is no JSON", code, "a line that is no JSON is answered, not dropped"),
        Check("json-array", b"[1, 2]", code, "a line of JSON that is no object is no request"),
        Check(
            "unknown-command", b'{"cmd":"sing"}', code, "an unknown cmd is answered, and the process goes on"
        ),
        Check("missing-file", encode(run), code, "inputs that do not exist"),
        Check(
            "broken-file", encode({**run, "inputs": str(broken)}), code, "inputs that are no safetensors file"
        ),
        Check("no-inputs", encode(no_inputs), code, "a run without the field inputs"),
        Check("second-start", encode(start), None, "a second start is fine; unknown fields are ignored"),
    ]


def check_protocol(session: Session) -> list[Result]:
    """A result for each check, on a session that was started. The session stays usable."""
    if session.claims is None or not session.claims.ops:
        return []
    results = []
    op = next(iter(session.claims.ops))
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        checks = list_checks(op, Path(folder))
        before = set(Path(folder).iterdir())
        for check in checks:
            started = time.monotonic()
            judgement = _judge(session, check)
            extra = set(Path(folder).iterdir()) - before
            if extra and judgement.outcome == "pass":
                judgement = Judgement("fail", f"{check.note}: expected no file, got {len(extra)}")
            for path in extra:
                path.unlink()
            results.append(
                Result(
                    port=session.port.name,
                    suite=SUITE,
                    case=f"{SUITE}/{check.id}",
                    dtype="-",
                    variant="-",
                    judgement=judgement,
                    seconds=round(time.monotonic() - started, 6),
                )
            )
    return results


def _judge(session: Session, check: Check) -> Judgement:
    try:
        answer = session.probe(check.line)
    except PortFault as fault:
        return Judgement(fault.outcome, str(fault))
    expected = {"status": "ok"} if check.code is None else {"status": "error", "code": check.code}
    got = {name: answer.get(name) for name in expected}
    if got != expected:
        return Judgement("fail", f"{check.note}: expected {expected}, got {got}")
    if check.code is not None and not isinstance(answer.get("message"), str):
        return Judgement("fail", f"{check.note}: expected a message, got {answer.get('message')!r}")
    return Judgement("pass")
