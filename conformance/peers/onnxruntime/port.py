"""onnxruntime as a peer: the protocol of docs/protocol.md around its own operators, on the CPU.

    port.py          the library in Python
    port.py web      onnxruntime-web, in Node

Nothing here computes anything that is asked. `attention.py` and `operators.py` turn a question into one ONNX node;
onnxruntime answers it.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from attention import FEATURES, OUTPUTS, attend
from engine import Engine, InvalidRequest, Tensors, Unsupported, WebEngine
from operators import cache_write, cast, gated_linear, gelu, layer_norm, rms_norm, rope, softmax
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

Answer = dict[str, Any]


@dataclass(frozen=True)
class Op:
    """Who answers it, with which outputs, what it must be given, and what is claimed."""

    answer: Callable[[Engine, Mapping[str, Any], Tensors, Sequence[str]], Tensors]
    inputs: tuple[str, ...]
    outputs: Iterable[str] = ("output",)
    features: Iterable[str] = ()
    dtypes: tuple[str, ...] = ("f32", "f16")


OPS = {
    "sdpa": Op(attend, ("q", "k", "v"), OUTPUTS, FEATURES),
    "softmax": Op(softmax, ("x",)),
    "rope": Op(
        *(rope, ("x",), ("output",)),
        ("positions", "offset", "base", "interleaved", "rotary_dim", "tables"),
    ),
    "cache_write": Op(cache_write, ("cache", "update"), features=("write_indices", "circular")),
    "gated_linear": Op(
        *(gated_linear, ("q", "k", "v"), ("output", "state")),
        ("gated", "delta", "gated_delta", "state_in", "scale", "gqa", "value_dim", "state"),
    ),
    "layer_norm": Op(
        *(layer_norm, ("x",), ("output", "mean", "inv_std")),
        ("weight", "bias", "eps", "mean", "inv_std"),
    ),
    "rms_norm": Op(rms_norm, ("x",), features=("weight", "eps")),
    "gelu": Op(gelu, ("x",), features=("tanh",)),
    "cast": Op(cast, ("x",), features=("f16", "f32", "f64"), dtypes=("f32", "f64", "f16")),
}


def start(engine: Engine, request: Answer) -> Answer:
    """What we are: one thread a session, whatever is granted."""
    return {
        "status": "ok",
        "protocol": 1,
        "name": engine.name,
        "language": "C++",
        "version": engine.version,
        "runtime": engine.runtime,
        "threads": 1,
        "ops": {name: claim(engine, name, op) for name, op in OPS.items() if name not in engine.lacks},
    }


def claim(engine: Engine, name: str, op: Op) -> Answer:
    """What the engine does of an op."""
    features = [feature for feature in sorted(op.features) if f"{name}.{feature}" not in engine.lacks]
    return {"variants": ["cpu"], "dtypes": op.dtypes, "features": features}


def run(engine: Engine, request: Answer) -> Answer:
    """One question, answered into the file of outputs."""
    name = request.get("op")
    if name not in OPS or name in engine.lacks:
        raise Unsupported(f"op.{name}")
    op = OPS[name]
    want = request.get("want") or ["output"]
    if not set(want) <= set(op.outputs):
        raise InvalidRequest(f"want: expected some of {sorted(op.outputs)}, got {want}")
    try:
        tensors = load_file(request["inputs"])
    except (KeyError, OSError, TypeError, SafetensorError) as error:
        raise InvalidRequest(f"inputs: expected a safetensors file, got {error!r}") from error
    if not set(op.inputs) <= set(tensors):
        raise InvalidRequest(f"inputs: expected {', '.join(op.inputs)}, got {sorted(tensors)}")
    outputs = op.answer(engine, request.get("config") or {}, tensors, want)
    if "outputs" in request:
        save_file({name: np.array(outputs[name], order="C") for name in want}, request["outputs"])
    return {"status": "ok"}


def bench(engine: Engine, request: Answer) -> Answer:
    """How long the node takes, without making it, which a program does once."""
    engine.plan = {
        name: request.get(name, default)
        for name, default in (("warmup", 1), ("samples", 5), ("min_sample_ns", 0))
    }
    engine.timings.clear()
    try:
        answered = run(engine, request)
    finally:
        engine.plan = None
    if len(engine.timings) != 1:
        raise Unsupported("bench of several nodes")
    return answered | engine.timings[0]


COMMANDS = {"start": start, "run": run, "bench": bench}


def answer(engine: Engine, line: bytes) -> Answer:
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
        if command not in COMMANDS:
            raise InvalidRequest(f"cmd: expected start, run, bench or stop, got {command!r}")
        return {**echo, **COMMANDS[command](engine, request)}
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
        engine = WebEngine() if sys.argv[1:] == ["web"] else Engine()
        for line in sys.stdin.buffer:
            reply = answer(engine, line)
            stop = reply.pop("stop", False)
            answers.write(json.dumps(reply) + "\n")
            answers.flush()
            if stop:
                break


if __name__ == "__main__":
    main()
