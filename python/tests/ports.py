"""The ports that this folder holds, and requests to them."""

import json
import struct
from functools import partial
from pathlib import Path
from typing import Any

import backends
import numpy as np

from rosetta_port import Library, numpy_port
from rosetta_port.serve import Port
from rosetta_port.tensors import read_tensors, write_tensors

ROOT = Path(__file__).resolve().parents[2]

column = partial(backends.column, dtype="float32")

# Small good requests, to be changed in one place.
SDPA = {"q": np.ones((1, 1, 1, 1), np.float32), "k": column([0, np.log(2)]), "v": column([3, 6])}
SOFTMAX = {"x": [0.0, 0.0]}
MHA = {"x": np.ones((1, 2, 2), np.float32)} | {
    name: np.eye(2, dtype=np.float32) for name in ("w_q", "w_k", "w_v", "w_o")
}
CACHE = {"batch": 1, "num_kv_heads": 1, "head_dim": 1}
APPEND, ATTEND = {"do": "append", "k": "k", "v": "v"}, {"do": "attend", "q": "q", "out": "a"}


def libraries() -> list[Library]:
    """What the port of NumPy serves, and that of torch where it is installed."""
    found = [numpy_port.LIBRARY]
    if backends.HAS_TORCH:
        from rosetta_port import torch_port

        found.append(torch_port.LIBRARY)
    return found


def save(path: Path, **arrays: Any) -> str:
    """A file of inputs; lists become float32."""
    write_tensors(
        str(path), {name: x if isinstance(x, np.ndarray) else np.float32(x) for name, x in arrays.items()}
    )
    return str(path)


def load(path: Path | str) -> dict[str, np.ndarray]:
    return {name: np.asarray(x) for name, x in read_tensors(str(path)).items()}


def raw_file(tensors: dict[str, tuple[str, list[int], bytes]], header_size: int = 0) -> bytes:
    """A safetensors file by hand: any element type, any order, any length of the header."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header, separators=(",", ":")).encode().ljust(header_size)
    return struct.pack("<Q", len(text)) + text + data


class Driver:
    """A started port, with a folder for its files."""

    def __init__(self, library: Library, folder) -> None:
        self.port, self.folder = Port(library), folder
        self.outputs = folder / "out.safetensors"
        self.files = 0
        assert self.ask(cmd="start", protocol=1)["status"] == "ok"

    def ask(self, **request: Any) -> dict[str, Any]:
        answer = self.port.answer(json.dumps(request).encode())
        json.dumps(answer, allow_nan=False)
        return answer

    def inputs(self, **arrays: Any) -> str:
        self.files += 1
        return save(self.folder / f"in{self.files}.safetensors", **arrays)

    def run(self, op: str, arrays: dict[str, Any], **fields: Any) -> dict[str, Any]:
        self.outputs.unlink(missing_ok=True)
        return self.ask(cmd="run", op=op, inputs=self.inputs(**arrays), outputs=str(self.outputs), **fields)

    def ok(self, op: str, arrays: dict[str, Any], **fields: Any) -> dict[str, np.ndarray]:
        """The file that a run wrote."""
        answer = self.run(op, arrays, **fields)
        assert answer["status"] == "ok", answer
        return load(self.outputs)

    def refused(self, answer: dict[str, Any], code: str) -> None:
        """An error of this code, or the feature of an unsupported request; and no file."""
        if answer["status"] == "unsupported":
            assert answer["feature"] == code
        else:
            assert (answer["status"], answer["code"]) == ("error", code), answer
            assert answer["message"]
        assert not self.outputs.exists()
