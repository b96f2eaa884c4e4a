"""Tensors in safetensors files, as NumPy arrays.

Reading goes by `safetensors.deserialize`, so that a file may hold element types that NumPy lacks: those
become `Unreadable` and matter only when a call needs them. Writing forces C order, which the NumPy writer
takes for granted.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import save

from .errors import InvalidRequest, Unsupported

DTYPES: dict[str, type[np.generic]] = {
    **{"F32": np.float32, "F64": np.float64, "BOOL": np.bool_},
    **{"I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8},
    **{"U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8},
}

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Unreadable:
    """A tensor whose element type this port does not know."""

    dtype: str


Tensors = dict[str, np.ndarray | Unreadable]


def read_tensors(path: str) -> Tensors:
    """Every tensor of the file. Raises InvalidRequest when it cannot be read."""
    try:
        entries = safetensors.deserialize(Path(path).read_bytes())  # type: ignore[no-untyped-call]
    except (OSError, ValueError, safetensors.SafetensorError) as error:  # ValueError: no path at all
        raise InvalidRequest(f"inputs: expected a safetensors file, got {error}") from error
    return {name: _array(entry) for name, entry in entries}


def write_tensors(path: str, arrays: Arrays) -> None:
    """Exactly these, in C order; the file appears whole or not at all. Raises InvalidRequest."""
    content = save({name: np.asarray(x, order="C") for name, x in arrays.items()})
    unfinished = f"{path}.{os.getpid()}.unfinished"
    try:
        try:
            Path(unfinished).write_bytes(content)
            os.replace(unfinished, path)
        except OSError:
            Path(unfinished).unlink(missing_ok=True)
            raise
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


def _array(entry: dict[str, Any]) -> np.ndarray | Unreadable:
    if entry["dtype"] not in DTYPES:
        return Unreadable(entry["dtype"].lower())
    array: np.ndarray = np.frombuffer(entry["data"], DTYPES[entry["dtype"]])
    return array.reshape(entry["shape"])
