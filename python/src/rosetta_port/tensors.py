"""Tensors in safetensors files, as NumPy arrays; those of BF16 have the element type of ml_dtypes.

A file may hold element types that the port lacks: those become `Unreadable` and matter only when a call needs
them. Writing forces C order, which the format takes for granted.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import save

from rosetta_attention.whole_file import write_whole

from .errors import InvalidRequest, Unsupported

DTYPES: dict[str, np.dtype[Any]] = {
    **{"F32": np.dtype(np.float32), "F64": np.dtype(np.float64), "BOOL": np.dtype(np.bool_)},
    **{"F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)},
    **{"I64": np.dtype(np.int64), "I32": np.dtype(np.int32)},
    **{"I16": np.dtype(np.int16), "I8": np.dtype(np.int8)},
    **{"U64": np.dtype(np.uint64), "U32": np.dtype(np.uint32)},
    **{"U16": np.dtype(np.uint16), "U8": np.dtype(np.uint8)},
}
HALVES = ("F16", "BF16")

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Unreadable:
    """A tensor whose element type this port does not know."""

    dtype: str


Tensors = dict[str, np.ndarray | Unreadable]


def read_tensors(path: str, floats: Collection[str] = ("f16", "bf16", "f32", "f64")) -> Tensors:
    """Every tensor of the file. floats: the float types that the port claims, by the protocol's names.

    Raises InvalidRequest when it cannot be read.
    """
    try:
        entries = safetensors.deserialize(Path(path).read_bytes())  # type: ignore[no-untyped-call]
    except (OSError, ValueError, safetensors.SafetensorError) as error:  # ValueError: no path at all
        raise InvalidRequest(f"inputs: expected a safetensors file, got {error}") from error
    return {name: _array(entry, floats) for name, entry in entries}


def write_tensors(path: str, arrays: Arrays) -> None:
    """Exactly these, in C order; the file appears whole or not at all. Raises InvalidRequest."""
    content = save({name: np.asarray(x, order="C") for name, x in arrays.items()})
    try:
        write_whole(path, content)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"outputs: expected a path to write to, got {error}") from error


def require(tensors: Tensors, name: str) -> np.ndarray:
    """The tensor of that name. Raises InvalidRequest if it is missing, Unsupported for its element type."""
    if name not in tensors:
        raise InvalidRequest(f"inputs: expected a tensor {name}, got {sorted(tensors)}")
    tensor = tensors[name]
    if isinstance(tensor, Unreadable):
        raise Unsupported(f"dtype.{tensor.dtype}")
    return tensor


def optional(tensors: Tensors, name: str) -> np.ndarray | None:
    """The tensor of that name, None where it is missing. Raises Unsupported for its element type."""
    return require(tensors, name) if name in tensors else None


def _array(entry: dict[str, Any], floats: Collection[str]) -> np.ndarray | Unreadable:
    name = entry["dtype"]
    if name not in DTYPES or (name in HALVES and name.lower() not in floats):
        return Unreadable(name.lower())
    array: np.ndarray = np.frombuffer(entry["data"], DTYPES[name])
    return array.reshape(entry["shape"])
