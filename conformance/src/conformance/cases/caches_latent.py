"""The suite `kv_cache`: latent caches, one latent and one rotary key a token; and caches that are written once."""

from collections.abc import Iterator

import numpy as np

from ..inputs import Draw
from .cache_script import LatentScript, cross
from .draft import Draft

NAN = np.nan
ALL = ("f32", "f64", "f16", "bf16")


def drafts() -> Iterator[Draft]:
    """Every case of this module, in order."""
    yield from _latent()
    yield from _latent_failures()
    yield from _cross()


def _latent() -> Iterator[Draft]:
    hand = LatentScript("latent/by-hand/parts", 1, 1, batch=1, H=1)
    ln = np.log
    hand.append(2, k=np.array([0, ln(2)]).reshape(1, 2, 1), v=np.array([0, ln(2)]).reshape(1, 2, 1))
    hand.attend(1, q=np.ones((1, 1, 1, 2)), scale=1)
    yield hand.read().draft(
        "scores 0 and 2 ln 2: weights 1/5 and 4/5 of the latents 0 and ln 2",
        "ByHand",
        "LatentParts",
        dtypes=ALL,
    )
    scale = LatentScript("latent/by-hand/scale", 3, 1, batch=1, H=1)
    scale.append(2, k=np.zeros((1, 2, 1)), v=np.array([[0, 0, 0], [2 * ln(3), 0, 0]])[None])
    yield scale.attend(1, q=np.array([1.0, 0, 0, 0]).reshape(1, 1, 1, 4)).draft(
        "divided by the root of R + Dr = 4: scores 0 and ln 3, so 3/4 of 2 ln 3", "ByHand", "LatentParts"
    )
    for splits in ((9,), (4, 5), (1, 0, 8), (1,) * 9):
        script = LatentScript(
            f"latent/chunks/{'-'.join(map(str, splits)) if len(splits) < 9 else 'one-by-one'}"
        )
        draw = Draw("kv_cache/latent/chunks")
        latent, key, q = draw.normal(2, 9, 5), draw.normal(2, 9, 2), draw.normal(2, 3, 9, 7)
        start = 0
        for count in splits:
            now = slice(start, start + count)
            script.append(count, k=key[:, now], v=latent[:, now]).attend(count, q=q[:, :, now], causal=True)
            start += count
        yield script.read(positions=True).stats().draft("one prefill, cut into chunks", "ChunkedPrefill")
    ragged = LatentScript("latent/ragged", batch=3).append(5, [5, 0, 2]).attend(2, causal=True)
    ragged.append(3, [1, 3, 2], padding="left").attend(3, causal=True, window=[2, None]).truncate(4, 3, 0)
    yield (
        ragged.read(positions=True)
        .append(1)
        .attend(1)
        .reorder(2, 2, 0)
        .append_attend(1)
        .read()
        .stats()
        .draft(
            "rows of their own lengths",
            "RowIndependence",
            "LeftPadding",
            "Rollback",
            "BeamReorder",
            dtypes=ALL,
        )
    )
    fork = LatentScript("latent/fork", capacity=6).append(3).fork("b").append(2).on("b").append(1).read()
    yield (
        fork.read(cache="b")
        .attend(2, causal=True, cache="b")
        .append(4, code="capacity_exceeded")
        .save()
        .reset()
        .read()
        .load()
        .read()
        .attend(1)
        .drop("b")
        .draft("a fork, a capacity, and a file", "CacheAliasing", "Capacity", "SavedState")
    )
    options = (
        LatentScript("latent/options")
        .append(6)
        .attend(2, mask=Draw("kv_cache/latent/mask").choice(0.6, 2, 6))
    )
    options.attend(2, bias=Draw("kv_cache/latent/bias").normal(3, 2, 6), softcap=0.7, scale=0.3)
    yield options.attend(2, q_offset=1, causal=True, lse=False).draft(
        "options of sdpa", "SoftcapOrder", "BiasIsNotMask"
    )
    yield (
        LatentScript("latent/no-rotary", 4, 0)
        .append(3)
        .attend(1)
        .append(1)
        .attend(2, causal=True)
        .read()
        .draft("no rotary part", "LatentParts")
    )
    yield LatentScript("latent/one", 1, 1, H=1).append(1).attend(1).read().draft("sizes of 1", "LatentParts")
    yield (
        LatentScript("latent/empty")
        .append(0)
        .attend(2)
        .read(positions=True)
        .stats()
        .draft("nothing held", "EmptyKeys")
    )
    yield LatentScript("latent/no-rows", batch=0).append(2).attend(1).read().draft("no rows", "EmptyKeys")
    junk_latent, junk_key = np.full((2, 3, 5), 0.5), np.full((2, 3, 2), 0.25)
    junk_latent[0, 1:], junk_key[0, 1:] = NAN, NAN
    poison = (
        LatentScript("latent/poison")
        .append(3, [1, 3], k=junk_key, v=junk_latent)
        .attend(2, causal=True)
        .read()
    )
    yield poison.draft("NaN beyond the lengths", "HiddenPoison")
    yield (
        LatentScript("latent/large", 64, 16, batch=1, H=8)
        .append(120)
        .attend(1)
        .append(3)
        .attend(3, causal=True)
        .draft("a long past", "VectorTail", "LatentParts")
    )


def _latent_failures() -> Iterator[Draft]:
    z = np.zeros
    for name, key, latent in (
        ("rank", z((2, 1, 1, 2)), z((2, 1, 5))),
        ("batch", z((1, 1, 2)), z((1, 1, 5))),
        ("rope-dim", z((2, 1, 3)), z((2, 1, 5))),
        ("latent-dim", z((2, 1, 2)), z((2, 1, 4))),
        ("positions", z((2, 2, 2)), z((2, 1, 5))),
    ):
        script = (
            LatentScript(f"latent/failure/{name}").append(2).append(1, k=key, v=latent, code="shape_mismatch")
        )
        yield script.read().attend(1).draft(f"an append of the wrong {name}", "NothingChanged", "ErrorCode")
    q = (
        LatentScript("latent/failure/query")
        .append(2)
        .attend(1, q=z((2, 3, 1, 5)), code="shape_mismatch")
        .attend(1)
    )
    yield q.draft("a query without its rotary part", "ErrorCode", "LatentParts")


def _cross() -> Iterator[Draft]:
    once = cross("cross/once").append(6, [6, 4]).attend(3).append(1, code="invalid_config").attend(2).read()
    yield once.draft(
        "written once, read many times", "NothingChanged", "ErrorCode", "RowIndependence", dtypes=ALL
    )
    for name, options in (
        ("causal", {"causal": True}),
        ("window", {"window": [1, 1]}),
        ("both", {"causal": True, "window": [2, None]}),
    ):
        script = cross(f"cross/{name}").append(4).attend(2, code="invalid_config", **options).attend(2)
        yield script.draft("a context has no positions to compare", "CrossAttention", "ErrorCode")
    beams = (
        cross("cross/beams", batch=3).append(5, [5, 2, 3]).reorder(2, 2, 0).attend(1).reorder(1, 0, 2).read()
    )
    yield beams.stats().attend(1).draft("reordered with the beams", "BeamReorder")
    reset = (
        cross("cross/reset").append(3).reset().attend(1).append(2, padding="left", lengths=[1, 2]).attend(1)
    )
    yield reset.read().draft("a reset makes it empty: it can be written again", "StaleReset", "LeftPadding")
    fork = (
        cross("cross/fork")
        .append(3)
        .fork("b")
        .reset()
        .append(2)
        .attend(1)
        .attend(1, cache="b")
        .read(cache="b")
    )
    yield fork.read().stats().draft("a fork keeps what its origin forgets", "CacheAliasing")
    saved = cross("cross/save").append(4, [4, 1]).save().reset().load().read().attend(2)
    yield saved.append(1, code="invalid_config").draft("a loaded one is written", "SavedState")
    masked = (
        cross("cross/options").append(5).attend(2, mask=Draw("kv_cache/cross").choice(0.6, 2, 5), softcap=0.7)
    )
    yield masked.attend(4, scale=0.1, q_offset=7).draft("options of sdpa", "CrossAttention", "SoftcapOrder")
    yield cross("cross/empty").attend(2).append(0).attend(1).read().draft("nothing to attend to", "EmptyKeys")
    unwritten = cross("cross/refused").append(2, [3, 1], code="invalid_config").append(2).attend(1).read()
    yield unwritten.draft("a refused append has not written", "NothingChanged")
