"""Small caches for the twins: scripts of one configuration, and the tensors that go into them."""

from typing import Any

import numpy as np

from ..cases.cache_script import CacheScript, LatentScript
from .attention import heads
from .caches import FORMATS
from .draws import Chooser


class Family:
    """Scripts of one kind and configuration, which differ in their rows alone. Large enough for all that comes."""

    def __init__(self, choose: Chooser, kind: str) -> None:
        self.kind = kind
        self.sizes = draw_sizes(choose)
        self.latent = choose.integer(0, 4)
        self.config: dict[str, Any] = {"kind": kind}
        if kind != "latent":
            self.config |= draw_rope(choose, self.sizes)
        if kind == "rotating":
            self.config |= {"window": choose.integer(1, 5), "keep": choose.integer(0, 2)}
        if kind == "paged":
            self.config |= {"page_size": choose.integer(1, 4), "num_pages": 60}
        if kind == "quantised":
            self.config |= draw_format(choose)

    def script(self, batch: int | None = None) -> CacheScript:
        """An empty one."""
        rows = self.sizes["batch"] if batch is None else batch
        if self.kind == "latent":
            return LatentScript("fuzz", self.sizes["D"], self.latent, batch=rows, H=self.sizes["Hq"])
        return CacheScript("fuzz", dict(self.config), **(self.sizes | {"batch": rows}))


def draw_sizes(choose: Chooser) -> dict[str, Any]:
    """Rows, heads and channels."""
    Hq, Hkv = heads(choose)
    D, Dv = choose.width(), choose.width()
    return {"batch": choose.integer(1, 3), "Hq": Hq, "Hkv": Hkv, "D": D, "Dv": Dv}


def draw_rope(choose: Chooser, sizes: dict[str, Any]) -> dict[str, Any]:
    """A rotation, at times; then the head is even."""
    if not choose.rarely():
        return {}
    sizes["D"] = 2 * choose.integer(1, 3)
    return {"rope": {"base": 100.0}} | ({"rope_at": "attend"} if choose.maybe() else {})


def draw_format(choose: Chooser) -> dict[str, Any]:
    """Of a quantised cache whose tokens are rounded one by one."""
    found: dict[str, Any] = {"format": choose.one_of(FORMATS)}
    if found["format"].startswith("int"):
        found |= {"zero_point": True} if choose.maybe() else {}
        found |= {"group": choose.integer(1, 4)} if choose.maybe() else {}
    return found


def draw_tensors(
    choose: Chooser, script: CacheScript, T: int, Tq: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """k, v and q; of a latent cache rotary keys and latents."""
    B = script.batch
    q = choose.plain(B, script.Hq, Tq, script.D)
    if isinstance(script, LatentScript):
        return choose.plain(B, T, script.Dr), choose.plain(B, T, script.R), q
    return choose.plain(B, script.Hkv, T, script.D), choose.plain(B, script.Hkv, T, script.Dv), q


def add(
    script: CacheScript, k: np.ndarray, v: np.ndarray, q: np.ndarray | None = None, **options: Any
) -> None:
    """An append, and with queries an attend in the same step."""
    T = k.shape[-2]
    if q is None:
        script.append(T, k=k, v=v, **options)
    else:
        script.append_attend(T, q.shape[2], k=k, v=v, q=q, **options)
