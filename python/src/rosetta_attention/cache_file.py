"""A cache in a file, so that another process, in another language, goes on where this one stopped.

The file is in the format safetensors. Its metadata say what cache it was; its arrays are what `read` would give,
with the length, the positions and the next position of every row.

Letters: B batch, H heads, L longest row, n channels.
"""

import os
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import IntArray
from .cache import Cache, Content
from .cast import NAMES, TYPES
from .errors import DtypeMismatch, InvalidConfig, InvalidFile
from .tensor_file import read_tensors, write_tensors

FORMAT, VERSION = "rosetta-kv-cache", "1"
ROWS = ("lengths", "next", "positions")
CONSECUTIVE = ("paged", "latent", "cross")  # kinds whose slots stand at 0, 1, 2, ...
NOT_COMPARED = ("num_pages",)  # how much there is room for
OPTIONAL = ("group", "key_groups", "track")  # absent where a cache has the default


def save(cache: Cache, path: str | os.PathLike[str]) -> None:
    """Write the cache to a file. Raises InvalidFile."""
    content = cache.content()

    # 1. describe: what another cache must be to take the content
    metadata = _description(cache)

    # 2. write: exactly what is held, whatever memory it has here
    rows = {"lengths": content.lengths, "next": content.next, "positions": content.positions}
    write_tensors(path, rows | dict(content.arrays), metadata)


def load(cache: Cache, path: str | os.PathLike[str]) -> None:
    """Replace what the cache holds by the content of a file that `save` wrote, here or in another language.

    Raises InvalidFile for one that is damaged or foreign, InvalidConfig for one of another kind or size of cache,
    DtypeMismatch, CapacityExceeded.
    """
    arrays, metadata = read_tensors(path)

    # 3. check: everything, before anything is changed
    _check_description(cache, metadata)
    _check_arrays(cache, arrays)
    lengths, following, positions = (arrays[name] for name in ROWS)
    _check_rows(cache, lengths.ravel(), following.ravel(), positions.reshape(lengths.size, _longest(arrays)))
    _check_shapes(cache, arrays)

    # 4. restore: up to the longest row
    L = int(lengths.max(initial=0))
    before = (slice(None),) * cache.slot_axis
    contents = {name: x[*before, :L] for name, x in arrays.items() if name not in ROWS}  # (B, ..., L, n)
    cache.restore(Content(lengths, following, positions[..., :L], contents))


def _description(cache: Cache) -> dict[str, str]:
    about = {"format": FORMAT, "version": VERSION, "kind": cache.kind, "dtype": NAMES[cache.dtype]}
    return about | {"batch": str(cache.batch)} | cache.describe()


def _check_description(cache: Cache, metadata: dict[str, str]) -> None:
    """First that the file is one of ours, then that it fits this cache, its type last."""
    expected = _description(cache)
    for name in ("format", "version"):
        _good(metadata.get(name) == expected[name], name, expected[name], metadata.get(name))
    for name in ("kind", "batch", "dtype"):
        _good(name in metadata, name, "one", None)
    _good(metadata["dtype"] in TYPES, "dtype", " or ".join(TYPES), metadata["dtype"])
    if metadata["kind"] == cache.kind:
        for name in expected.keys() - set(OPTIONAL):
            _good(name in metadata, name, "one", None)
    for name, value in {**dict.fromkeys(OPTIONAL), **expected}.items():
        if name not in ("dtype", *NOT_COMPARED) and metadata.get(name) != value:
            raise InvalidConfig(f"load: {name}: expected {value} as in the cache, got {metadata.get(name)}")
    if metadata["dtype"] != expected["dtype"]:
        raise DtypeMismatch(f"load: dtype: expected {expected['dtype']}, got {metadata['dtype']}")


def _check_arrays(cache: Cache, arrays: dict[str, NDArray[Any]]) -> None:
    """The names that this cache would write, and of the rows types and shapes; L is the file's."""
    own = cache.content()
    names = sorted([*ROWS, *own.arrays])
    _good(sorted(arrays) == names, "arrays", names, sorted(arrays))
    L = _longest(arrays)
    rows, whole = own.lengths.shape, np.dtype(np.int64)  # (B,); where heads have their own slots, (B, Hkv)
    for name, shape in {"lengths": rows, "next": rows, "positions": (*rows, L)}.items():
        _check_array(arrays, name, whole, shape)


def _check_shapes(cache: Cache, arrays: dict[str, NDArray[Any]]) -> None:
    """Types and shapes of what the rows hold, whose lengths are checked already."""
    axis, L = cache.slot_axis, _longest(arrays)
    for name, x in cache.content().arrays.items():
        entries = cache.entries(name, arrays["lengths"], L)
        _check_array(arrays, name, x.dtype, (*x.shape[:axis], entries, *x.shape[axis + 1 :]))


def _check_array(
    arrays: dict[str, NDArray[Any]], name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> None:
    x = arrays[name]
    _good((x.dtype, x.shape) == (dtype, shape), name, f"{dtype} {shape}", f"{x.dtype} {x.shape}")


def _longest(arrays: dict[str, NDArray[Any]]) -> int:
    """L of a file."""
    return arrays["positions"].shape[-1] if arrays["positions"].ndim else 0


def _check_rows(cache: Cache, lengths: IntArray, following: IntArray, positions: IntArray) -> None:
    """Lengths within L, positions ascending below the next one, -1 beyond a row."""
    L = positions.shape[1]
    for b, (length, after) in enumerate(zip(lengths.tolist(), following.tolist(), strict=True)):
        _good(0 <= length <= L, "lengths", f"values from 0 to {L}", length)
        row, rest = positions[b, :length].tolist(), positions[b, length:].tolist()
        ascending = all(a < b for a, b in pairwise([-1, *row, after]))
        _good(ascending, "positions", f"ascending ones from 0 to below {after}", row[:8])
        _good(set(rest) <= {-1}, "positions", "-1 beyond a row", rest[:8])
        if cache.kind in CONSECUTIVE:
            expected = f"0 to {length - 1}, then {length}"
            _good(row == list(range(length)) and after == length, "positions", expected, row[:8])


def _good(good: bool, name: str, expected: object, got: object) -> None:
    if not good:
        raise InvalidFile(f"load: {name}: expected {expected}, got {got}")
