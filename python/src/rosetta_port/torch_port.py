"""The port `torch`: `python -m rosetta_port.torch_port`.

With ROSETTA_TORCH_COMPILED=1 in its environment, and a C++ compiler on the machine, it has the variant `compiled`
too. Without them that is `unsupported`, `variant.compiled`: each kind of call takes 10 seconds or more to compile.
"""

import os
import platform
from typing import Any

import ml_dtypes
import numpy as np
import torch

import rosetta_attention
import rosetta_attention.torch
from rosetta_attention.errors import Unsupported
from rosetta_attention.torch.compiled import can_compile
from rosetta_attention.torch.masks import UNMASKED, Mask
from rosetta_port import Library, serve


def fused(*args: Any, **options: Any) -> tuple[torch.Tensor, None]:
    """Output and lse of the rung, which has no lse."""
    return rosetta_attention.torch.sdpa_fused(*args, **options), None


def folded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> tuple[torch.Tensor, None]:
    """The same for groups of heads, with a group's queries laid one after another by hand.

    Query heads that share a KV head become more queries of one head, so that no kernel reads K and V once for each
    of them. Tables and flags of the mask would have to be folded too: with those it is unsupported.
    """
    sdpa_fused = rosetta_attention.torch.sdpa_fused
    if not _folds(q, k, **options):
        sdpa_fused(q, k, v, **options)  # which refuses what is wrong
        raise Unsupported("folded")
    B, Hq, Tq, D = q.shape
    queries = q.reshape(B, k.shape[1], -1, D)  # (B, Hkv, G Tq, D)
    output = sdpa_fused(queries, k, v, **options)  # (B, Hkv, G Tq, Dv)
    return output.reshape(B, Hq, Tq, -1), None


def _folds(q: torch.Tensor, k: torch.Tensor, mask: Mask = UNMASKED, **options: Any) -> bool:
    """Whether there are groups, and neither a table nor a flag."""
    conditions = (mask.causal or None, mask.keep, mask.window, mask.kv_lengths)
    return (
        all(x is None for x in conditions)
        and all(x is None for name, x in options.items() if name != "scale")
        and q.ndim == k.ndim == 4
        and min(q.numel(), k.numel()) > 0
        and q.shape[1] > k.shape[1]
        and q.shape[1] % k.shape[1] == 0
    )


def bench_variants() -> dict[str, Any]:
    """The rungs that are not in every run."""
    if os.environ.get("ROSETTA_TORCH_COMPILED") != "1" or not can_compile():
        return {}
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else a pool of processes outlives `stop`
    return {"compiled": rosetta_attention.torch.sdpa_compiled}


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
    sdpa_variants={"fused": fused, "folded": folded, **bench_variants()},
    cache_dtypes={"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16},
    set_threads=set_threads,
)

if __name__ == "__main__":
    serve(LIBRARY)
    if "compiled" in LIBRARY.sdpa_variants:
        os._exit(0)  # taking the compiler down takes longer than a driver waits
