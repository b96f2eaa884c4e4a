"""onnxruntime as a peer: the protocol of docs/protocol.md around its operator Attention, on the CPU.

Nothing here computes attention. `node.py` turns a question into one ONNX node; onnxruntime answers it.
"""

import json
import os
import sys
from typing import Any

import numpy as np
import onnxruntime
from node import FEATURES, OUTPUTS, Unsupported, attend
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

CLAIMS = {"sdpa": {"variants": ["cpu"], "dtypes": ["f32"], "features": sorted(FEATURES)}}
Answer = dict[str, Any]


class InvalidRequest(Exception):
    """A request that breaks the protocol."""


def start(request: Answer) -> Answer:
    """What we are: one thread a session, whatever is granted."""
    return {
        "status": "ok",
        "protocol": 1,
        "name": "onnxruntime",
        "language": "C++",
        "version": onnxruntime.__version__,
        "runtime": f"onnxruntime {onnxruntime.__version__}, CPUExecutionProvider",
        "threads": 1,
        "ops": CLAIMS,
    }


def run(request: Answer) -> Answer:
    """One question, answered into the file of outputs."""
    if request.get("op") not in CLAIMS:
        raise Unsupported(f"op.{request.get('op')}")
    want = request.get("want") or ["output"]
    if not set(want) <= set(OUTPUTS):
        raise InvalidRequest(f"want: expected some of {sorted(OUTPUTS)}, got {want}")
    try:
        tensors = load_file(request["inputs"])
    except (KeyError, OSError, TypeError, SafetensorError) as error:
        raise InvalidRequest(f"inputs: expected a safetensors file, got {error!r}") from error
    if not {"q", "k", "v"} <= set(tensors):
        raise InvalidRequest(f"inputs: expected q, k and v, got {sorted(tensors)}")
    outputs = attend(request.get("config") or {}, tensors, want)
    save_file({name: np.ascontiguousarray(x) for name, x in outputs.items()}, request["outputs"])
    return {"status": "ok"}


def answer(line: bytes) -> Answer:
    """The answer to one line; never raises."""
    echo: Answer = {}
    try:
        try:
            request = json.loads(line)
        except ValueError as error:
            raise InvalidRequest(f"expected a line of JSON, got {error}") from error
        if not isinstance(request, dict):
            raise InvalidRequest("expected a JSON object")
        echo = {"seq": request["seq"]} if "seq" in request else {}
        command = request.get("cmd")
        if command == "stop":
            return {**echo, "status": "ok", "stop": True}
        if command == "bench":
            raise Unsupported("bench")
        if command not in ("start", "run"):
            raise InvalidRequest(f"cmd: expected start, run, bench or stop, got {command!r}")
        return {**echo, **(start if command == "start" else run)(request)}
    except Unsupported as error:
        return {**echo, "status": "unsupported", "feature": str(error)}
    except InvalidRequest as error:
        return {**echo, "status": "error", "code": "invalid_request", "message": str(error)}
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        return {**echo, "status": "error", "code": "internal", "message": message[:500]}


def main() -> None:
    """Answers until `stop` or the end of the input. Whatever a library prints goes to stderr."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for line in sys.stdin.buffer:
            reply = answer(line)
            stop = reply.pop("stop", False)
            answers.write(json.dumps(reply) + "\n")
            answers.flush()
            if stop:
                break


if __name__ == "__main__":
    main()
