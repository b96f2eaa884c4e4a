"""The element types of the protocol as NumPy knows them, and tensors in safetensors files.

NumPy has no bfloat16; `ml_dtypes` adds it. The NumPy reader of safetensors does not know that type, though its writer
does, so files are read here by the plain interface, which deals in bytes.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import save

Dtype = Literal["f32", "f64", "f16", "bf16"]
Tensors = dict[str, np.ndarray]

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}
HALVES = ("f16", "bf16")  # stored, and computed in f32

_STORED: dict[str, np.dtype[Any]] = {
    **{"F64": NUMPY_DTYPES["f64"], "F32": NUMPY_DTYPES["f32"]},
    **{"F16": NUMPY_DTYPES["f16"], "BF16": NUMPY_DTYPES["bf16"]},
    **{"I64": np.dtype(np.int64), "I32": np.dtype(np.int32), "I16": np.dtype(np.int16)},
    **{"I8": np.dtype(np.int8), "U8": np.dtype(np.uint8), "BOOL": np.dtype(np.bool_)},
}
_NAMES = {dtype: name for name, dtype in _STORED.items()}


def is_float(x: np.ndarray) -> bool:
    """Whether the elements are of one of the protocol's float types."""
    return x.dtype in NUMPY_DTYPES.values()


def compute_dtype(dtype: str) -> str:
    """The type that arithmetic runs in: f32 for the halves."""
    return "f32" if dtype in HALVES else dtype


def widen(tensors: Tensors) -> Tensors:
    """The halves among them as f32, which is exact; all others as they are."""
    halves = {NUMPY_DTYPES[name] for name in HALVES}
    return {name: x.astype(np.float32) if x.dtype in halves else x for name, x in tensors.items()}


@dataclass(frozen=True)
class HalfFormat:
    """eps: the step at 1. max: the largest finite value. step: the smallest subnormal."""

    eps: float
    max: float
    step: float


# IEEE 754 binary16, and the upper half of binary32.
HALF_FORMATS = {
    "f16": HalfFormat(eps=2.0**-10, max=65504.0, step=2.0**-24),
    "bf16": HalfFormat(eps=2.0**-7, max=(2 - 2.0**-7) * 2.0**127, step=2.0**-133),
}


def stored_name(x: np.ndarray) -> str:
    """What a safetensors file calls the element type."""
    return _NAMES[x.dtype]


def read_tensors(path: Path) -> Tensors:
    """Every tensor of a safetensors file."""
    entries = safetensors.deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    return {
        name: np.frombuffer(entry["data"], _STORED[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in entries
    }


def write_tensors(path: Path, tensors: Tensors) -> str:
    """Writes the file (C order, sorted by the format itself) and returns its sha256.

    It appears whole or not at all, since two runs may make the same file at once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    content = save({name: np.array(x, order="C") for name, x in tensors.items()})
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    unfinished.write_bytes(content)
    unfinished.replace(path)
    return hashlib.sha256(content).hexdigest()
