"""A whole port in plain Python, no package needed: the op softmax, f32 and f64. docs/add-a-port.md builds it up."""

import json
import math
import struct
import sys

CODES = {"F32": "f", "F64": "d", "I64": "q", "BOOL": "?"}
CLAIMS = {"softmax": {"variants": ["naive"], "dtypes": ["f32", "f64"], "features": ["lse"]}}
ABOUT = {"protocol": 1, "name": "tiny", "language": "Python", "version": "1", "threads": 1, "isa": []}


class Refused(Exception):
    """A request that must be answered with an error: a code and a message."""


def read(path):
    """Tensors of a safetensors file: name to (dtype, shape, flat list of numbers)."""
    try:
        data = open(path, "rb").read()
        end = 8 + struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:end])
        return {name: unpack(tensor, data[end:]) for name, tensor in header.items() if name != "__metadata__"}
    except (OSError, ValueError, struct.error) as error:
        raise Refused("invalid_request", f"inputs: expected a safetensors file, got {error}") from error


def unpack(tensor, body):
    start, end = tensor["data_offsets"]
    code = CODES[tensor["dtype"]]
    return tensor["dtype"], tensor["shape"], [x for (x,) in struct.iter_unpack("<" + code, body[start:end])]


def write(path, dtype, tensors):
    """Tensors as name to (shape, flat list) into a safetensors file."""
    header, body = {}, b""
    for name, (shape, values) in tensors.items():
        chunk = struct.pack(f"<{len(values)}{CODES[dtype]}", *values)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(chunk)]}
        body += chunk
    text = json.dumps(header).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + body)


def softmax_row(row):
    """Weights and log-sum-exp of one row; slots of -inf are hidden."""
    seen = [z for z in row if z != -math.inf]
    if not seen:
        return [0.0] * len(row), -math.inf
    if any(z != z or z == math.inf for z in seen):
        return [0.0 if z == -math.inf else math.nan for z in row], math.nan
    top = max(seen)
    total = sum(math.exp(z - top) for z in seen)
    return [math.exp(z - top) / total for z in row], top + math.log(total)


def run(request):
    """The answer to `run`: reads the inputs, computes, writes the outputs that are wanted."""
    if request.get("op") != "softmax":
        return {"status": "unsupported", "feature": f"op.{request.get('op')}"}
    tensors, want = read(request.get("inputs", "")), request.get("want") or ["output"]
    if "x" not in tensors or not set(want) <= {"output", "lse"}:
        raise Refused("invalid_request", f"softmax: expected x and outputs we have, got {list(tensors)}, {want}")
    dtype, shape, values = tensors["x"]
    if dtype not in ("F32", "F64"):
        raise Refused("dtype_mismatch", f"softmax: x: expected F32 or F64, got {dtype}")
    if not shape:
        raise Refused("shape_mismatch", "softmax: x: expected at least one axis, got rank 0")
    n = shape[-1]
    rows = [softmax_row(values[r * n : (r + 1) * n]) for r in range(math.prod(shape[:-1]))]
    results = {
        "output": (shape, [weight for weights, _ in rows for weight in weights]),
        "lse": (shape[:-1], [lse for _, lse in rows]),
    }
    write(request["outputs"], dtype, {name: results[name] for name in want})
    return {"status": "ok"}


def answer(request):
    """The answer to one request, with its `seq` returned."""
    echo = {"seq": request["seq"]} if "seq" in request else {}
    try:
        if request.get("cmd") == "start":
            return {**echo, "status": "ok", **ABOUT, "runtime": f"Python {sys.version.split()[0]}", "ops": CLAIMS}
        if request.get("cmd") == "run":
            return {**echo, **run(request)}
        if request.get("cmd") == "stop":
            return {**echo, "status": "ok"}
        raise Refused("invalid_request", f"cmd: expected start, run or stop, got {request.get('cmd')}")
    except Refused as error:
        return {**echo, "status": "error", "code": error.args[0], "message": error.args[1]}


for line in sys.stdin:
    try:
        request = json.loads(line)
    except ValueError:
        request = None
    request = request if isinstance(request, dict) else {"cmd": "a line that is no request"}
    print(json.dumps(answer(request)), flush=True)
    if request.get("cmd") == "stop":
        break
