"""A much-read article's experiment on what a KV cache saves, run as it stands, and what it times.

It is said to have a layer in plain NumPy, of width 128 and 8 heads, and `tokens` of shape (100, 1, 128), to call
forward(tokens[:i + 1]) for i = 0 ... 99 without a cache and forward(tokens[i:i + 1]) with one, and to report that the
cache is 7.1 times as fast. But axis 0 is the batch.

No address came with that, and none was found: the 7.1 is hearsay, printed beside the measured ratio and used nowhere.
What is shown holds for whoever slices axis 0 of such tokens.

Letters: B batch, T positions of x, L positions attended to, C width, H heads, D = C / H.
"""

import textwrap
from collections.abc import Callable

import numpy as np

from rosetta_attention.arrays import Array

from .decode_ways import CACHE, EVERYTHING, KEYS_VALUES, WAYS, cost
from .one_thread import least
from .table import draw

TOKENS, WIDTH, HEADS = 100, 128, 8
SAID = 7.1  # by hearsay


class PlainLayer:
    """Attention as articles have it: no mask, no checks, and a cache that is concatenated to at every call."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.w_q, self.w_k, self.w_v, self.w_o = rng.standard_normal((4, WIDTH, WIDTH)) / np.sqrt(WIDTH)
        self.past: tuple[Array, Array] | None = None

    def forward(self, x: Array, *, context: Array | None = None, cached: bool = False) -> Array:
        """Attention of `x` (B, T, C) over itself, over a context (B, L, C), or over all that came before it."""
        source = x if context is None else context
        q, k, v = _split(x @ self.w_q), _split(source @ self.w_k), _split(source @ self.w_v)
        if cached:
            if self.past is not None:
                k, v = (
                    np.concatenate([old, new], axis=2) for old, new in zip(self.past, (k, v), strict=True)
                )
            self.past = k, v
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(WIDTH // HEADS)  # (B, H, T, L)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        heads = weights / weights.sum(axis=-1, keepdims=True) @ v  # (B, H, T, D)
        output: Array = heads.swapaxes(1, 2).reshape(x.shape) @ self.w_o  # (B, T, C)
        return output


def as_it_stands(layer: PlainLayer, tokens: Array, *, cached: bool) -> list[Array]:
    """Its two loops over `tokens` (n, 1, C): the output of each call."""
    layer.past = None
    if cached:
        return [layer.forward(tokens[i : i + 1], cached=True) for i in range(len(tokens))]
    return [layer.forward(tokens[: i + 1]) for i in range(len(tokens))]


def honest(layer: PlainLayer, tokens: Array, way: str) -> list[Array]:
    """The same tokens as one text: the last output, (1, 1, C), at each length. The last position sees them all, so that
    no mask is needed.
    """
    layer.past = None
    text = tokens.swapaxes(0, 1)  # (1, n, C)
    step: Callable[[int], Array] = {
        EVERYTHING: lambda t: layer.forward(text[:, :t])[:, -1:],
        KEYS_VALUES: lambda t: layer.forward(text[:, t - 1 : t], context=text[:, :t]),
        CACHE: lambda t: layer.forward(text[:, t - 1 : t], cached=True),
    }[way]
    return [step(t) for t in range(1, len(tokens) + 1)]


def article_text(repeats: int, count: int = TOKENS) -> str:
    """Both, and a paragraph that says which is which."""
    layer, tokens = PlainLayer(), np.random.default_rng(1).standard_normal((count, 1, WIDTH))
    without, cached = (
        least(lambda c=c: as_it_stands(layer, tokens, cached=c), repeats)  # type: ignore[misc]
        for c in (False, True)
    )
    seconds = {way: least(lambda w=way: honest(layer, tokens, w), repeats) for way in WAYS}  # type: ignore[misc]
    adds = {way: cost(way, count, WIDTH, HEADS).multiply_adds for way in WAYS}
    slower = {way: f"{seconds[way] / seconds[CACHE]:.1f}" for way in WAYS}
    more = {way: f"{adds[way] / adds[CACHE]:.0f}" for way in WAYS}
    passes = count * (count + 1) // 2
    rows = [
        ("as it stands: forward(tokens[:i + 1])", _ms(without), f"x {without / cached:.1f}"),
        ("as it stands: forward(tokens[i:i + 1]), cache", _ms(cached), ""),
        *(
            (f"one text of {count}: {w}", _ms(seconds[w]), f"x {slower[w]}" if w != CACHE else "")
            for w in WAYS
        ),
    ]
    said = f"""
        What it really times: axis 0 of its tokens is the batch, so forward(tokens[:i + 1]) is a growing batch of texts
        of one token each. No token ever attends to another there: a softmax over one key is 1, and what comes out is
        the token's own value, projected. The loop with the cache does attend to a past, so the two do not compute the
        same. The first pushes {passes:,} tokens through the layer where the second pushes {count}, which is
        {passes / count:.1f} times as many, and takes {without / cached:.1f} times as long: most of so small a call in
        NumPy is the call itself. The ratio times neither attention nor what a cache saves. The honest experiment is one
        text of {count} tokens that attend to their past. In the same layer, recomputing everything takes
        {slower[EVERYTHING]} times as long as a cache, for {more[EVERYTHING]} times the multiply-adds, and recomputing
        keys and values alone {slower[KEYS_VALUES]} times, for {more[KEYS_VALUES]} times the multiply-adds. That
        {slower[EVERYTHING]} and {without / cached:.1f} are no further apart is due to the size: for a text shorter than
        the layer is wide the projections are most of the work, and the two loops that recompute everything, the one
        over texts of one token and the one over one text, project {passes:,} tokens each. No one number is the
        answer, since the ratio grows with the length: see the command without --article."""
    sizes = f"width {WIDTH}, {HEADS} heads, float64, {count} tokens"
    title = f"The article's experiment: {sizes}; it is said to report x {SAID}."
    table = draw((f"best of {repeats}, one thread", "ms", "of the cache's"), rows)
    return "\n\n".join([title, table, textwrap.fill(" ".join(said.split()), 100, break_on_hyphens=False)])


def _split(x: Array) -> Array:
    """(B, T, C) to (B, H, T, D)."""
    heads: Array = x.reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2)
    return heads


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
