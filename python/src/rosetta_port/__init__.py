"""The wrapper of the Python-driven ports (NumPy, torch, Rust): the code that knows docs/protocol.md."""

from .library import Library
from .serve import serve

__all__ = ["Library", "serve"]
