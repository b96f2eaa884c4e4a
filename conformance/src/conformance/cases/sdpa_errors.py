"""sdpa calls that must be refused, each with exactly one fault."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .draft import Draft, Other
from .sdpa_sizes import random_inputs


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _shapes()
    yield from _dtypes()
    yield from _config()


def _refused(name: str, error: str, note: str, inputs: dict[str, Any] | None = None, **config: Any) -> Draft:
    base: dict[str, Any] = dict(random_inputs("sdpa/error", 2, 4, 2, 3, 5, 6, 7))
    base |= inputs or {}
    base = {key: x for key, x in base.items() if x is not None}
    return Draft(f"sdpa/error/{name}", "sdpa", base, config, flags=("ErrorCode",), note=note, error=error)


def _shapes() -> Iterator[Draft]:
    zeros = np.zeros
    for name, inputs, note in (
        ("rank-3", {"q": zeros((4, 3, 6))}, "q of rank 3"),
        ("rank-5", {"v": zeros((1, 2, 2, 5, 7))}, "v of rank 5"),
        ("batch-k", {"k": zeros((1, 2, 5, 6))}, "batch 1 in k is not broadcast"),
        ("batch-v", {"v": zeros((3, 2, 5, 7))}, "another batch in v"),
        ("head-size", {"k": zeros((2, 2, 5, 8))}, "another head size in k"),
        (
            "no-head-size",
            {"q": zeros((2, 4, 3, 0)), "k": zeros((2, 2, 5, 0))},
            "head size 0 has no default scale",
        ),
        ("kv-len", {"v": zeros((2, 2, 4, 7))}, "fewer values than keys"),
        ("kv-heads", {"v": zeros((2, 1, 5, 7))}, "other heads in v than in k"),
        ("groups", {"k": zeros((2, 3, 5, 6)), "v": zeros((2, 3, 5, 7))}, "4 query heads on 3 KV heads"),
        ("mask-keys", {"mask": np.ones(4, bool)}, "a mask over 4 of 5 keys"),
        ("mask-left-aligned", {"mask": np.ones((2, 3, 5), bool)}, "rank 3 is (Hq, Tq, Tk), not (B, Tq, Tk)"),
        ("mask-rank-5", {"mask": np.ones((1, 1, 1, 1, 5), bool)}, "a mask of rank 5"),
        ("bias-queries", {"bias": zeros((4, 5))}, "a bias over 4 queries where 3 come"),
        ("lengths", {"kv_lengths": np.array([3])}, "one length for two rows"),
        ("lengths-rank", {"kv_lengths": np.array([[3, 4]])}, "lengths of rank 2"),
        ("offsets", {"q_offset": np.array([0, 1, 2])}, "three offsets for two rows"),
        ("sinks", {"sinks": zeros(2)}, "a sink a KV head, not a query head"),
    ):
        yield _refused(name, "shape_mismatch", note, inputs)


def _dtypes() -> Iterator[Draft]:
    for name, inputs, note in (
        ("dtype-k", {"k": Other(np.zeros((2, 2, 5, 6)))}, "k of another float type"),
        ("dtype-v", {"v": Other(np.zeros((2, 2, 5, 7)))}, "v of another float type"),
        ("dtype-q", {"q": np.zeros((2, 4, 3, 6), np.int64)}, "integers are no queries"),
        ("mask-float", {"mask": np.ones((3, 5))}, "a float mask would have to be guessed at"),
        ("mask-integer", {"mask": np.ones((3, 5), np.int64)}, "an integer mask as well"),
        ("bias-bool", {"bias": np.ones((3, 5), bool)}, "a boolean bias as well"),
        ("dtype-bias", {"bias": Other(np.zeros((3, 5)))}, "a bias of another float type"),
        ("dtype-sinks", {"sinks": Other(np.zeros(4))}, "sinks of another float type"),
        (
            "lengths-float",
            {"kv_lengths": np.array([3.0, 4.0])},
            "lengths are integers; NaN would have no meaning",
        ),
        ("offsets-float", {"q_offset": np.array([0.0, 1.0])}, "offsets are integers"),
    ):
        yield _refused(name, "dtype_mismatch", note, inputs)


def _config() -> Iterator[Draft]:
    yield _refused("softcap-zero", "invalid_config", "softcap 0 is no cap, absent is", softcap=0)
    yield _refused("softcap-negative", "invalid_config", "a negative softcap", softcap=-1.0)
    yield _refused("softcap-text", "invalid_config", "a softcap that is no number", softcap="2")
    yield _refused("scale-text", "invalid_config", "a scale that is no number", scale="1")
    yield _refused("window-negative", "invalid_config", "a negative window", window=[-1, 0])
    yield _refused(
        "window-negative-right", "invalid_config", "a negative window on the right", window=[None, -2]
    )
    yield _refused("window-short", "invalid_config", "a window of one side", window=[2])
    yield _refused("window-number", "invalid_config", "a window is a pair", window=2)
    yield _refused("causal-number", "invalid_config", "causal is true or false", causal=1)
    yield _refused(
        "offset-fraction", "invalid_config", "a position between positions", causal=True, q_offset=0.5
    )
    yield _refused(
        "offset-twice",
        "invalid_config",
        "the offset in config and as a tensor",
        {"q_offset": np.array([0, 1])},
        causal=True,
        q_offset=1,
    )
    yield _refused(
        "lengths-negative", "invalid_config", "a negative length", {"kv_lengths": np.array([-1, 3])}
    )
    yield _refused(
        "lengths-beyond", "invalid_config", "more keys than there are", {"kv_lengths": np.array([5, 6])}
    )
    yield _refused("missing-v", "invalid_request", "no values", {"v": None})
