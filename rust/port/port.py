"""The port `rust`: `python rust/port/port.py`, where the extension module is installed."""

import os
import platform
from typing import Any

import ml_dtypes
import numpy as np

import rosetta_attention_rs
from rosetta_attention_rs.cache import Cache, KeyValueCache
from rosetta_port import CacheRung, Library, serve

granted = 1  # threads, by the last `start`


def set_threads(threads: int) -> int:
    """Of the rung that shares its work; everything else runs on one."""
    global granted
    granted = threads
    return granted


def on_granted_threads(*arrays: Any, **options: Any) -> rosetta_attention_rs.OutputLse:
    """`sdpa_threads` on as many as there are."""
    return rosetta_attention_rs.sdpa_threads(*arrays, threads=granted, **options)


def append_attend_simd(cache: KeyValueCache, *new: Any, **options: Any) -> rosetta_attention_rs.OutputLse:
    """By the method of the cache's own class: a paged one has tokens."""
    return cache.append_attend_simd(*new, **options)


def tiers() -> list[str]:
    """Of vector instructions: those of this machine, the widest first, or the one that the environment names."""
    forced = os.environ.get("ROSETTA_SIMD_TIER")
    return [tier for tier in rosetta_attention_rs.simd_tiers() if not forced or tier == forced]


LIBRARY = Library(
    name="rust",
    language="Rust",
    runtime=f"{rosetta_attention_rs.__rustc__}, CPython {platform.python_version()}, NumPy {np.__version__}",
    api=rosetta_attention_rs,
    version=rosetta_attention_rs.__version__,
    isa=tiers(),
    sdpa_variants={
        "blocked": rosetta_attention_rs.blocked,
        "simd": rosetta_attention_rs.sdpa_simd,
        "threads": on_granted_threads,
    },
    varlen_variants={"simd": rosetta_attention_rs.varlen_simd},
    cache_variants={"simd": CacheRung(Cache.check_simd, Cache.attend_simd, append_attend_simd)},
    cache_dtypes={"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16},
    set_threads=set_threads,
)

if __name__ == "__main__":
    serve(LIBRARY)
