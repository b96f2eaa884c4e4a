"""Checks of the protocol itself, which need no fixture: what a port answers to lines that are no request.

Each is a result in the suite `protocol`, so that a careless wrapper is seen even when its library is right.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.json import encode

from .outcome import Judgement, Result
from .session import PortFault, Session
from .tensors import write_tensors

SUITE = "protocol"


@dataclass(frozen=True)
class Check:
    """One line to send, without its newline, and what must come back.

    code: of an error; None = status ok. feature: what is unsupported instead.
    """

    id: str
    line: bytes
    code: str | None
    note: str
    feature: str = ""

    @property
    def answer(self) -> dict[str, str]:
        """What the answer must hold."""
        if self.feature:
            return {"status": "unsupported", "feature": self.feature}
        return {"status": "ok"} if self.code is None else {"status": "error", "code": self.code}


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


def list_cache_checks(features: Sequence[str], folder: Path) -> list[Check]:
    """Kinds and steps of a cache that nobody knows, and steps that a claimed kind does not."""
    inputs = folder / "caches.safetensors"
    write_tensors(inputs, {"k": np.zeros((1, 1, 1, 2), np.float32)})
    sizes = {"batch": 1, "num_kv_heads": 1, "head_dim": 2}
    kinds = {
        "rotating": {**sizes, "kind": "rotating", "window": 2},
        "paged": {**sizes, "kind": "paged", "page_size": 2, "num_pages": 2},
        "cross": {**sizes, "kind": "cross"},
        "latent": {"batch": 1, "kind": "latent", "latent_dim": 2, "rope_dim": 2},
    }
    append = {"do": "append", "k": "k", "v": "k"}
    unknown = [
        ("kind", {**sizes, "kind": "holographic", "steps": [append]}, "kind.holographic", "a kind"),
        ("step", {**sizes, "kind": "contiguous", "steps": [append, {"do": "sing"}]}, "step.sing", "a step"),
    ]
    for kind, name, fields in (
        ("rotating", "evict", {"positions": [0]}),
        ("rotating", "shift", {"by": 1, "from": 0}),
        ("paged", "evict", {"positions": [0]}),
        ("paged", "shift", {"by": 1, "from": 0}),
        ("cross", "append_attend", append),
        ("latent", "evict", {"positions": [0]}),
        ("latent", "shift", {"by": 1, "from": 0}),
    ):
        if {kind, name} <= set(features):  # a port that lacks either says so instead
            config = {**kinds[kind], "steps": [{"do": "reset"}, {**fields, "do": name}]}
            unknown.append((f"{name}-of-{kind}", config, f"step.{name}", f"{name} of a {kind} cache"))
    request = {"case": "protocol", "op": "kv_cache", "inputs": str(inputs)}
    request |= {"cmd": "run", "outputs": str(folder / "outputs.safetensors")}
    return [
        Check(
            f"unknown-{id_}",
            encode({**request, "config": config}),
            None,
            f"{what} that is not known makes the whole script unsupported",
            feature,
        )
        for id_, config, feature, what in unknown
    ]


def check_protocol(session: Session) -> list[Result]:
    """A result for each check, on a session that was started. The session stays usable."""
    if session.claims is None or not session.claims.ops:
        return []
    results = []
    op = next(iter(session.claims.ops))
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        checks = list_checks(op, Path(folder))
        if "kv_cache" in session.claims.ops:
            checks += list_cache_checks(session.claims.ops["kv_cache"].features, Path(folder))
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
    expected = check.answer
    got = {name: answer.get(name) for name in expected}
    if got != expected:
        return Judgement("fail", f"{check.note}: expected {expected}, got {got}")
    if check.code is not None and not isinstance(answer.get("message"), str):
        return Judgement("fail", f"{check.note}: expected a message, got {answer.get('message')!r}")
    return Judgement("pass")
