"""Reads the tensors of a file one after the other in the order of their names, without looking at the offsets."""

import importlib
import json
from pathlib import Path

import numpy as np
from honest import lie_with

from rosetta_port.tensors import DTYPES


def read_in_order(path, floats):
    content = Path(path).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    place, tensors = 8 + length, {}
    for name, entry in sorted(header.items()):
        dtype = np.dtype(DTYPES[entry["dtype"]])
        size = int(np.prod(entry["shape"], dtype=int))
        tensors[name] = np.frombuffer(content, dtype, size, place).reshape(entry["shape"])
        place += size * dtype.itemsize
    return tensors


importlib.import_module("rosetta_port.serve").read_tensors = read_in_order
lie_with()
