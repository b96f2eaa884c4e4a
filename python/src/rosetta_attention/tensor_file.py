"""Files of named arrays in the format safetensors: a length, a header in JSON, and the bytes of all arrays.

    8 bytes, little-endian: length of the header
    {"__metadata__": {text: text}, name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
    the arrays, row-major and little-endian, one behind the other

The package safetensors is not used: the library would need it for this alone, and the format is short enough to be
read here. The tests hold the two against each other, in both directions.

Source: the format as the package safetensors documents it.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .errors import InvalidFile
from .whole_file import write_whole

TYPES: dict[str, np.dtype[Any]] = {
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "I64": np.dtype(np.int64),
}
NAMES = {dtype: name for name, dtype in TYPES.items()}
METADATA = "__metadata__"


def write_tensors(
    path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """The file appears whole or not at all. Raises InvalidFile."""
    header: dict[str, Any] = {METADATA: dict(metadata)}
    chunks, end = [], 0
    for name, x in sorted(arrays.items(), key=lambda item: -item[1].itemsize):  # so that all are aligned
        start, end = end, end + x.nbytes
        header[name] = {"dtype": NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [start, end]}
        chunks.append(np.ascontiguousarray(x).tobytes())
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    try:
        write_whole(path, b"".join([len(text).to_bytes(8, "little"), text, *chunks]))
    except (OSError, ValueError) as error:
        raise InvalidFile(f"save: path: expected one to write to, got {error}") from error


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """All arrays by name, and the metadata. Raises InvalidFile."""
    try:
        data = Path(path).read_bytes()
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 or size > len(data) - 8:
            raise ValueError(f"{len(data)} bytes, too few for the header")
        header = json.loads(data[8 : 8 + size].decode("utf-8"))
        if not isinstance(header, dict):
            raise ValueError("a header that is no object")
        metadata = header.pop(METADATA, {})
        if not isinstance(metadata, dict) or not all(isinstance(x, str) for x in metadata.values()):
            raise ValueError("metadata that are not texts")
        return _arrays(header, data[8 + size :]), metadata
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidFile(f"load: path: expected a safetensors file, got {error}") from error


def _arrays(header: Mapping[str, Any], data: bytes) -> dict[str, NDArray[Any]]:
    """Each array out of the bytes, which they fill without gap or overlap."""
    arrays, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: _offsets(item[1])):
        start, stop = _offsets(entry)
        dtype, shape = TYPES.get(entry.get("dtype")), entry.get("shape")
        if dtype is None or not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"{name} of type {entry.get('dtype')} and shape {shape}")
        if start != end or stop - start != math.prod(shape) * dtype.itemsize or stop > len(data):
            raise ValueError(f"{name} at {start} to {stop} of {len(data)} bytes")
        end = stop
        arrays[name] = np.frombuffer(data[start:stop], dtype).reshape(shape)
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes that belong to no array")
    return arrays


def _offsets(entry: Any) -> tuple[int, int]:
    """Where an array begins and ends."""
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int for n in offsets):
        raise ValueError(f"an entry {entry}")
    return offsets[0], offsets[1]
