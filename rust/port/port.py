"""The port `rust`: `python rust/port/port.py`, where the extension module is installed."""

import platform

import ml_dtypes
import numpy as np

import rosetta_attention_rs
from rosetta_port import Library, serve

LIBRARY = Library(
    name="rust",
    language="Rust",
    runtime=f"{rosetta_attention_rs.__rustc__}, CPython {platform.python_version()}, NumPy {np.__version__}",
    api=rosetta_attention_rs,
    version=rosetta_attention_rs.__version__,
    isa=rosetta_attention_rs.simd_tiers(),
    sdpa_variants={"simd": rosetta_attention_rs.sdpa_simd},
    cache_dtypes={"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16},
)

if __name__ == "__main__":
    serve(LIBRARY)
