"""A draft in one dtype: its inputs as arrays, its answers by the oracle, and both as files."""

import hashlib
import json
from pathlib import Path

import numpy as np

from .case import Files
from .cases.draft import Draft, Other
from .oracle import answer
from .tensors import HALVES, NUMPY_DTYPES, Tensors, stored_name, write_tensors

OTHER = {"f32": "f64", "f64": "f32", "f16": "f32", "bf16": "f16"}


def realise(draft: Draft, dtype: str, *, answers: bool = True) -> tuple[Tensors, Tensors | None]:
    """Inputs in the dtype, and the wanted answers in float64 (None for an error case)."""
    inputs = {name: _cast(x, input_dtype(name, dtype)) for name, x in draft.inputs.items()}
    if draft.error is not None or not answers:
        return inputs, None
    everything = answer(draft.op, draft.config, inputs, draft.steps)
    wanted = draft.want or tuple(everything)
    return inputs, {name: np.asarray(everything[name]) for name in wanted}


def input_dtype(name: str, dtype: str) -> str:
    """The type of a float input: that of the case, and f32 for a log-sum-exp beside halves."""
    return "f32" if dtype in HALVES and name.endswith("lse") else dtype


def _cast(x: np.ndarray | Other, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):  # infinite, and signalling NaN
        if isinstance(x, Other):
            return x.value.astype(NUMPY_DTYPES[OTHER[dtype]])
        return x.astype(NUMPY_DTYPES[dtype]) if x.dtype.kind == "f" else x


def write_case(
    folder: Path,
    draft: Draft,
    dtype: str,
    inputs: Tensors,
    expected: Tensors | None,
    *,
    keep_expected: bool = True,
) -> Files:
    """Writes both files below the folder. A sum of the answers is kept only for answers that are committed."""
    stem = draft.id.split("/", 1)[1]
    names = {"inputs": f"{stem}.{dtype}.in.safetensors", "expected": f"{stem}.{dtype}.out.safetensors"}
    write = write_unaligned if draft.unaligned_file else write_tensors
    sums = {"inputs": write(folder / names["inputs"], inputs)}
    if expected is None:
        return Files(names["inputs"], None, sums)
    total = write_tensors(folder / names["expected"], expected)
    if keep_expected:
        sums["expected"] = total
    return Files(names["inputs"], names["expected"], sums)


def write_unaligned(path: Path, tensors: Tensors) -> str:
    """A legal file that careless readers stumble over, with a scalar and an empty tensor among the others.

    The header's length is 8n + 7, and the tensors stand in reverse order.
    """
    everything = {
        **tensors,
        "a_scalar": np.array(1.5, np.float32),
        "an_empty_one": np.zeros((0, 3), np.float32),
    }
    header, body = {}, b""
    for name in sorted(everything, reverse=True):
        x = everything[name]
        header[name] = {
            "dtype": stored_name(x),
            "shape": list(x.shape),
            "data_offsets": [len(body), len(body) + x.nbytes],
        }
        body += x.tobytes()  # row-major
    text = json.dumps(header).encode()
    text += b" " * ((7 - len(text)) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return hashlib.sha256(path.read_bytes()).hexdigest()
