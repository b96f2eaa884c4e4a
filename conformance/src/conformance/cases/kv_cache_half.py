"""The suite `kv_cache`, last part: caches that hold f16 or bf16 and attend in f32."""

from collections.abc import Iterator

import numpy as np

from ..inputs import Draw
from .draft import Draft, Other
from .script import Script, tiny

HALVES = ("f16", "bf16")


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    flags = ("HalfInside",)
    decode = tiny("half/by-hand").append_values(1).attend_uniform().append_values(2).attend_uniform()
    decode = decode.append_values(6).attend_uniform().read()
    yield decode.draft("running means: 1, 1.5, 3", "ByHand", *flags, dtypes=HALVES)
    exact = Script("half/read").append(5).read().append(2, [1, 2]).read()
    yield exact.draft("what is held is what was given, bit for bit", "HalfRounding", *flags, dtypes=HALVES)
    script = (
        Script("half/chunks")
        .append(4)
        .attend(4, causal=True)
        .append(1)
        .attend(1)
        .append(3)
        .attend(3, causal=True)
    )
    yield script.read().draft("prefill, decode, chunk", "ChunkedPrefill", *flags, dtypes=HALVES)
    ragged = (
        Script("half/ragged")
        .append(4, [2, 4])
        .attend(2, causal=True)
        .append(3, [3, 0])
        .attend(1, lse=False)
        .read()
    )
    yield ragged.draft("rows of their own lengths; an lse of f32", "RowIndependence", *flags, dtypes=HALVES)
    cut = (
        Script("half/truncate", capacity=7)
        .append(6)
        .truncate(4, 2)
        .attend(1)
        .append(3)
        .attend(2, causal=True)
    )
    yield cut.read().draft("cut, and filled to the last place", "Rollback", "Capacity", *flags, dtypes=HALVES)
    options = Script("half/options").append(9).attend(2, softcap=0.7, scale=0.3, window=[3, 1])
    options.attend(2, bias=Draw("kv_cache/half/bias").normal(4, 2, 9), causal=True)
    yield options.draft("options of sdpa", "SoftcapOrder", "BiasIsNotMask", *flags, dtypes=HALVES)
    empty = Script("half/empty").append(0).attend(2).read()
    yield empty.draft("nothing held", "EmptyKeys", "FullyMaskedRow", *flags, dtypes=HALVES)
    long = Script("half/long", batch=1, D=16, Dv=8).append(130).attend(1)
    yield long.draft("a long past: states in f32", "VectorTail", *flags, dtypes=HALVES)
    refused = Script("half/dtype").append(2).append(1, k=Other(np.zeros((2, 2, 1, 3))), code="dtype_mismatch")
    refused.attend(1, q=Other(np.zeros((2, 4, 1, 3))), code="dtype_mismatch").attend(1).read()
    yield refused.draft(
        "another float type is refused, and nothing changes", "ErrorCode", "NothingChanged", dtypes=HALVES
    )
