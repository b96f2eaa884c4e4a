"""The loop of a port: one JSON request a line on stdin, one JSON answer a line on stdout, in order."""

import json
import os
import sys
from typing import Any

from .call import Call
from .errors import InvalidRequest
from .library import Library
from .ops import prepare
from .read import whole
from .tensors import Tensors, read_tensors, write_tensors
from .timing import time_call

PROTOCOL = 1


def serve(library: Library) -> None:
    """Answers until `stop` or the end of the input. Whatever else is printed goes to stderr."""
    port = Port(library)
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # so that no print of a library reaches the driver
        for line in sys.stdin.buffer:
            answers.write(json.dumps(port.answer(line), allow_nan=False) + "\n")
            answers.flush()
            if port.stopped:
                break


class Port:
    """The state between requests: whether it was started, and the case that was benched last."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.started = False
        self.stopped = False
        self._prepared: tuple[str, Call] | None = None

    def answer(self, line: bytes) -> dict[str, Any]:
        """The answer to one line; never raises."""
        echo: dict[str, Any] = {}
        try:
            request = _parse(line)
            echo = {"seq": request["seq"]} if "seq" in request else {}
            return {**echo, **self._dispatch(request)}
        except Exception as error:
            if hasattr(error, "feature"):
                return {**echo, "status": "unsupported", "feature": error.feature}
            code = getattr(error, "code", "internal")
            message = str(error) if code != "internal" else f"{type(error).__name__}: {error}"
            return {**echo, "status": "error", "code": code, "message": message}

    def _dispatch(self, request: dict[str, Any]) -> dict[str, Any]:
        command = request.get("cmd")
        if command == "start":
            return self._start(request)
        if command == "stop":
            self.stopped = True
            return {"status": "ok"}
        if command not in ("run", "bench"):
            raise InvalidRequest(f"cmd: expected start, run, bench or stop, got {command}")
        if not self.started:
            raise InvalidRequest(f"cmd: expected start first, got {command}")
        return self._run(request) if command == "run" else self._bench(request)

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        if whole(request.get("protocol")) != PROTOCOL:
            raise InvalidRequest(f"protocol: expected {PROTOCOL}, got {request.get('protocol')}")
        self.started = True
        return {
            "status": "ok",
            "protocol": PROTOCOL,
            "name": self.library.name,
            "language": self.library.language,
            "version": self.library.version,
            "runtime": self.library.runtime,
            "threads": self.library.set_threads(_count(request, "threads", 1, least=1)),
            "isa": self.library.isa,
            "ops": self.library.ops(),
        }

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        outputs = _field(request, "outputs")
        call = prepare(self.library, request, self._inputs(request))
        result = call.evaluate()
        write_tensors(outputs, call.outputs(result))
        return {"status": "ok"} if call.steps is None else {"status": "ok", "steps": call.steps(result)}

    def _inputs(self, request: dict[str, Any]) -> Tensors:
        return read_tensors(_field(request, "inputs"), self.library.cache_dtypes)

    def _bench(self, request: dict[str, Any]) -> dict[str, Any]:
        call = self._prepare_once(request)
        timing, result = time_call(
            call.evaluate,
            warmup=_count(request, "warmup", 1),
            samples=_count(request, "samples", 5, least=1),
            min_sample_ns=_count(request, "min_sample_ns", 0),
        )
        if request.get("outputs") is not None:
            write_tensors(_field(request, "outputs"), call.outputs(result))
        measured = {
            "status": "ok",
            "first_ns": timing.first_ns,
            "evals": timing.evals,
            "samples_ns": timing.samples_ns,
            "cpu_ns": timing.cpu_ns,
        }
        return measured if call.steps is None else measured | {"steps": call.steps(result)}

    def _prepare_once(self, request: dict[str, Any]) -> Call:
        """The call that was prepared for the same request before, so that rounds read nothing again."""
        key = json.dumps(
            [request.get(name) for name in ("op", "variant", "config", "want", "inputs", "case")]
        )
        if self._prepared is None or self._prepared[0] != key:
            self._prepared = None  # frees the old tensors before the new ones are read
            self._prepared = (key, prepare(self.library, request, self._inputs(request)))
        return self._prepared[1]


def _parse(line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"request: expected a line of JSON, got {error}") from error
    if not isinstance(request, dict):
        raise InvalidRequest(f"request: expected a JSON object, got {type(request).__name__}")
    try:
        json.dumps(request.get("seq"), allow_nan=False)
    except (ValueError, RecursionError) as error:  # 1e999 can be read, but not written
        raise InvalidRequest(f"seq: expected what JSON can write, got {error}") from error
    return request


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant}, which JSON does not have")


def _count(request: dict[str, Any], name: str, default: int, *, least: int = 0) -> int:
    value = default if request.get(name) is None else whole(request[name])
    if value is None or value < least:
        raise InvalidRequest(f"{name}: expected an integer >= {least}, got {request[name]}")
    return value


def _field(request: dict[str, Any], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{name}: expected a path, got {value}")
    return value
