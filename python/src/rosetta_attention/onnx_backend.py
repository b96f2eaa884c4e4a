"""The ONNX backend of Rosetta Attention, which the package `conformance` holds: see docs/onnx.md.

`ONNX_BACKEND=rosetta_attention.onnx_backend` is what ONNX's scoreboard and its runner understand.
"""

from conformance.onnx_backend import (
    BackendError,
    RosettaBackend,
    RosettaModel,
    is_compatible,
    prepare,
    run_model,
    run_node,
    supports_device,
)

__all__ = [
    "BackendError",
    "RosettaBackend",
    "RosettaModel",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]
