"""Random attention problems for the property tests: sizes, options and data from one seed."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from backends import backends
from hypothesis import strategies as st

SIZES = st.sampled_from([0, 1, 2, 3, 4, 5, 8, 17])


@dataclass
class Problem:
    """Arguments of an sdpa call in float64; `cast` gives them in another type."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    mask: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def cast(self, dtype: str) -> "Problem":
        options = {
            name: x.astype(dtype) if isinstance(x, np.ndarray) else x for name, x in self.options.items()
        }
        return Problem(*(x.astype(dtype) for x in (self.q, self.k, self.v)), self.mask, options)

    def solve(self, lib: Any) -> Any:
        return lib.sdpa(self.q, self.k, self.v, mask=self.mask, **self.options)

    def solve_fused(self) -> np.ndarray:
        """The output by PyTorch's own attention."""
        from rosetta_attention.torch import sdpa_fused

        lib = backends()[1]
        q, k, v = (lib.convert(x) for x in (self.q, self.k, self.v))
        options = {name: lib.convert(x) for name, x in self.options.items()}
        return lib.to_numpy(sdpa_fused(q, k, v, mask=lib.mask(**self.mask), **options))


@st.composite
def problems(draw: st.DrawFn, *, extras: bool = True, lengths: bool = False, empty: bool = True) -> Problem:
    """A call that is good in every library.

    extras: with sinks and softcap, which PyTorch's attention does not have. lengths: always with kv_lengths.
    empty: with sizes of 0.
    """
    least = 0 if empty else 1
    B, Hkv, G, D, Dv = (draw(st.integers(low, 4)) for low in (least, 1, 1, 1, least))
    Tq, Tk = (draw(SIZES.filter(lambda size: size >= least)) for _ in range(2))
    Hq = G * Hkv
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def broadcastable() -> tuple[int, ...]:
        shape = tuple(size if draw(st.booleans()) else 1 for size in (B, Hq, Tq, Tk))
        return shape[draw(st.integers(0, 4)) :]

    mask: dict[str, Any] = {"causal": draw(st.booleans())}
    if draw(st.booleans()):
        mask["q_offset"] = draw(st.one_of(st.integers(-3, 9), st.just(rng.integers(-3, 9, B))))
    if draw(st.booleans()):
        mask["window"] = draw(st.tuples(*[st.one_of(st.none(), st.integers(0, 4))] * 2))
    if lengths or draw(st.booleans()):
        mask["kv_lengths"] = rng.integers(0, Tk + 1, B)
    if draw(st.booleans()):
        mask["keep"] = np.asarray(rng.random(broadcastable()) < 0.7)
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        bias = np.asarray(rng.standard_normal(broadcastable()))
        options["bias"] = np.where(rng.random(bias.shape) < 0.2, -np.inf, bias)
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([0.0, -0.5, 1.0, 3.0]))
    if extras and draw(st.booleans()):
        options["softcap"] = draw(st.sampled_from([0.5, 30.0]))
    if extras and draw(st.booleans()):
        options["sinks"] = rng.standard_normal(Hq)
    return Problem(
        rng.standard_normal((B, Hq, Tq, D)),
        rng.standard_normal((B, Hkv, Tk, D)),
        rng.standard_normal((B, Hkv, Tk, Dv)),
        mask,
        options,
    )


def layouts(x: np.ndarray) -> dict[str, np.ndarray]:
    """The same values in other places of memory."""
    wide = np.repeat(x, 2, axis=-1)
    return {
        "fortran": np.asfortranarray(x),
        "heads inside": np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2),
        "transposed": np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
        "every other": wide[..., ::2],
        "reversed": np.ascontiguousarray(x[:, ::-1, ::-1, ::-1])[:, ::-1, ::-1, ::-1],
        "padded": np.pad(x, ((0, 1), (1, 0), (2, 1), (0, 3)), constant_values=np.nan)[:-1, 1:, 2:-1, :-3],
    }
