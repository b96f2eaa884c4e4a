"""The port `python`: `python -m rosetta_port.numpy_port`."""

import platform

import ml_dtypes
import numpy as np

import rosetta_attention
from rosetta_port import Library, serve

LIBRARY = Library(
    name="python",
    language="Python",
    runtime=f"CPython {platform.python_version()}, NumPy {np.__version__}",
    api=rosetta_attention,
    version=rosetta_attention.__version__,
    sdpa_variants={"blocked": rosetta_attention.blocked},
    cache_dtypes={"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16},
)

if __name__ == "__main__":
    serve(LIBRARY)
