"""The wrapper of the Python-driven ports (NumPy, torch, Rust): the code that knows docs/protocol.md."""

from .library import CacheRung, Library
from .serve import serve

__all__ = ["CacheRung", "Library", "serve"]
