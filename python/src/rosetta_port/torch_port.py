"""The port `torch`: `python -m rosetta_port.torch_port`."""

import os
import platform
from typing import Any

import ml_dtypes
import numpy as np
import torch

import rosetta_attention
import rosetta_attention.torch
from rosetta_port import Library, serve


def fused(*args: Any, **options: Any) -> tuple[torch.Tensor, None]:
    """Output and lse of the rung, which has no lse."""
    return rosetta_attention.torch.sdpa_fused(*args, **options), None


def from_numpy(x: np.ndarray) -> torch.Tensor:
    """The same memory; bf16, which NumPy has from ml_dtypes and torch does not know there, by its bits."""
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def to_numpy(x: torch.Tensor) -> np.ndarray:
    """The same memory."""
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()


def set_threads(threads: int) -> int:
    """Of the operators themselves; nothing here runs two of them at once."""
    torch.set_num_threads(min(threads, os.cpu_count() or 1))
    return torch.get_num_threads()


LIBRARY = Library(
    name="torch",
    language="Python (PyTorch)",
    runtime=f"CPython {platform.python_version()}, torch {torch.__version__}",
    api=rosetta_attention.torch,
    version=rosetta_attention.__version__,
    isa=[torch.backends.cpu.get_cpu_capability().lower()],
    from_numpy=from_numpy,
    to_numpy=to_numpy,
    sdpa_variants={"fused": fused},
    cache_dtypes={"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16},
    set_threads=set_threads,
)

if __name__ == "__main__":
    serve(LIBRARY)
