"""Scripts on caches of every kind: what the kinds are configured with, and the steps that came with them."""

from typing import Any, Self

import numpy as np

from .draft import Draft
from .script import Script

PAIRS_WITH_CAPACITY = ("contiguous", "quantised", "per_head")
OF_THE_KIND = ("group", "zero_point", "key_groups", "rope", "rope_at", "track")


class CacheScript(Script):
    """Steps on caches of one kind, the first of the name `main`. kind: the config beside the common one."""

    def __init__(self, name: str, kind: dict[str, Any], **sizes: Any) -> None:
        super().__init__(name, **sizes)
        self.kind = kind
        self.forks: list[str] = []
        self.replayed = True
        self.usual: tuple[str, ...] = ("f32", "f64")

    @property
    def exact_keys(self) -> bool:
        """Whether what is read comes out to the bit: what was rotated does not."""
        return self.kind.get("rope") is None or self.kind.get("rope_at") == "attend"

    def append_attend(self, T: int, Tq: int = 1, *, code: str = "ok", **options: Any) -> Self:
        """Both at once: lengths, padding, tokens, k and v are the append's, all other options the attend's."""
        of_append = {
            name: options.pop(name) for name in ("lengths", "k", "v", "padding", "tokens") if name in options
        }
        self.append(T, **of_append)
        self.attend(Tq, **options)
        attend, append = self.steps.pop(), self.steps.pop()
        self.codes[-2:] = [code]
        self.steps.append(append | attend | {"do": "append_attend"})
        return self

    def read(
        self, *, codes: bool = False, positions: bool = False, tracked: bool = False, **options: Any
    ) -> Self:
        """What is held, bit for bit where it was not rotated; with codes, scales and zeros, positions, weights."""
        name = f"read{sum(step['do'] == 'read' for step in self.steps)}"
        self.exact += [f"{name}.{part}" for part in self._read_parts(codes)]
        asked = {"codes": codes, "positions": positions, "tracked": tracked}
        flags = {flag: True for flag, given in asked.items() if given}
        return self._step({"do": "read", "out": name} | flags | options, "ok")

    def stats(self, **options: Any) -> Self:
        """Slots, bytes, pages."""
        name = f"stats{sum(step['do'] == 'stats' for step in self.steps)}"
        return self._step({"do": "stats", "out": name} | options, "ok")

    def reorder(self, *index: Any, code: str = "ok", **options: Any) -> Self:
        """New rows from old ones."""
        return self._step({"do": "reorder", "index": list(index)} | options, code)

    def fork(self, into: str, code: str = "ok", **options: Any) -> Self:
        """A second cache; it is dropped before the replay."""
        if code == "ok":
            self.forks.append(into)
        return self._step({"do": "fork", "into": into} | options, code)

    def drop(self, cache: str, code: str = "ok") -> Self:
        """The cache is gone. A script without `main` at its end cannot be replayed."""
        if cache in self.forks:
            self.forks.remove(cache)
        elif code == "ok":
            self.replayed = False
        return self._step({"do": "drop", "cache": cache}, code)

    def evict(self, *positions: Any, code: str = "ok", **options: Any) -> Self:
        """Every row forgets these positions."""
        return self._step({"do": "evict", "positions": list(positions)} | options, code)

    def evict_by(self, type: str, budget: Any, code: str = "ok", cache: str = "", **fields: Any) -> Self:
        """Every row keeps what the policy chooses; an array among its fields becomes a tensor that it names."""
        policy = {"type": type, "budget": budget} | self._name_tensors(fields)
        step = {"do": "evict", "policy": policy} | ({"cache": cache} if cache else {})
        return self._step(step, code)

    def shift(self, by: Any, start: Any, code: str = "ok", **options: Any) -> Self:
        """Positions from `start` on move."""
        return self._step({"do": "shift", "by": by, "from": start} | options, code)

    def save(self, file: str = "", code: str = "ok", **options: Any) -> Self:
        """Into a file of the script's own name unless given."""
        return self._step({"do": "save", "file": file or self._file()} | options, code)

    def load(self, file: str = "", code: str = "ok", **options: Any) -> Self:
        """From a file of the script's own name unless given."""
        return self._step({"do": "load", "file": file or self._file()} | options, code)

    def once(self) -> Self:
        """Without the replay, and in f32 unless told otherwise, which keeps the files of a long script small."""
        self.replayed, self.usual = False, ("f32",)
        return self

    def on(self, cache: str) -> Self:
        """The step before this one is about that cache."""
        self.steps[-1]["cache"] = cache
        return self

    def draft(self, note: str, *flags: str, dtypes: tuple[str, ...] | None = None) -> Draft:
        """The script and, where `main` is still there, its replay after a reset, as a case."""
        dtypes = self.usual if dtypes is None else dtypes
        script, codes, exact = list(self.steps), list(self.codes), list(self.exact)
        for fork in [*self.forks]:
            self.drop(fork)
        draft = super().draft(note, *flags, dtypes=dtypes)
        if not self.replayed:
            draft.config["steps"] = script
            draft = Draft(
                **{**draft.__dict__, "steps": tuple(codes), "exact": tuple(exact)},
            )
        return draft

    def _read_parts(self, codes: bool) -> list[str]:
        """The outputs of a read that have no error."""
        parts = ["lengths", "v"] + (["k"] if self.exact_keys else [])
        for part in ("k", "v") if codes else ():
            parts.append(f"{part}_codes")
            if str(self.kind.get("format")).startswith("int"):
                parts += [f"{part}_scale"] + ([f"{part}_zero"] if self.kind.get("zero_point") else [])
        if codes and self.kind.get("key_groups") is not None:
            parts.append("k_tail")
        return parts

    def sizes(self) -> dict[str, Any]:
        """The config but for the steps."""
        sizes = super().sizes() | self.kind
        if self.kind["kind"] not in PAIRS_WITH_CAPACITY:
            del sizes["capacity"]
        return sizes

    def _file(self) -> str:
        return f"{self.name.replace('/', '-')}.cache.safetensors"


class LatentScript(CacheScript):
    """Steps on a latent cache: R channels of the latent, Dr of the rotary key."""

    def __init__(
        self, name: str, R: int = 5, Dr: int = 2, *, batch: int = 2, H: int = 3, capacity: int | None = None
    ) -> None:
        kind = {"kind": "latent", "latent_dim": R, "rope_dim": Dr}
        super().__init__(name, kind, batch=batch, Hq=H, Hkv=1, D=R + Dr, Dv=R, capacity=capacity)
        self.R, self.Dr = R, Dr

    def append(
        self,
        T: int,
        lengths: list[int] | None = None,
        *,
        k: Any = None,
        v: Any = None,
        code: str = "ok",
        **options: Any,
    ) -> Self:
        """T positions; k and v stand for rope_key and latent."""
        latent = self._draw.normal(self.batch, T, self.R) if v is None else v
        rope_key = self._draw.normal(self.batch, T, self.Dr) if k is None else k
        step = {
            "do": "append",
            "latent": self._tensor("latent", latent),
            "rope_key": self._tensor("rope_key", rope_key),
        }
        if lengths is not None:
            step["lengths"] = self._tensor("lengths", np.array(lengths, np.int64))
        return self._step(step | self._name_tensors(options), code)

    def _read_parts(self, codes: bool) -> list[str]:
        return ["latent", "rope_key", "lengths"]

    def sizes(self) -> dict[str, Any]:
        """The config but for the steps."""
        return {"kind": "latent", "batch": self.batch, "capacity": self.capacity} | self.kind


def rotating(name: str, window: int, keep: int = 0, **options: Any) -> CacheScript:
    """A rotating cache."""
    kind, sizes = _split(options)
    return CacheScript(name, {"kind": "rotating", "window": window, "keep": keep} | kind, **sizes)


def paged(name: str, page_size: int, num_pages: int, **options: Any) -> CacheScript:
    """A cache on a pool of its own."""
    kind, sizes = _split(options)
    pool = {"kind": "paged", "page_size": page_size, "num_pages": num_pages}
    return CacheScript(name, pool | kind, **sizes)


def quantised(name: str, format: str, **options: Any) -> CacheScript:
    """A cache of rounded values."""
    kind, sizes = _split(options)
    return CacheScript(name, {"kind": "quantised", "format": format} | kind, **sizes)


def cross(name: str, **sizes: Any) -> CacheScript:
    """A cache that is written once."""
    return CacheScript(name, {"kind": "cross"}, **sizes)


def contiguous(name: str, **options: Any) -> CacheScript:
    """The plain cache, with the steps of all kinds."""
    kind, sizes = _split(options)
    return CacheScript(name, {"kind": "contiguous"} | kind, **sizes)


def per_head(name: str, **options: Any) -> CacheScript:
    """A cache of which every KV head holds slots of its own."""
    kind, sizes = _split(options)
    return CacheScript(name, {"kind": "per_head"} | kind, **sizes)


FEW: dict[str, Any] = {"batch": 2, "Dv": 2}  # for long scripts
ONE: dict[str, Any] = {"batch": 1, "Hq": 1, "Hkv": 1, "D": 1, "Dv": 1}  # for scripts that are read by eye


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What configures the kind, and the sizes."""
    kind = {name: x for name, x in options.items() if name in OF_THE_KIND}
    return kind, {name: x for name, x in options.items() if name not in OF_THE_KIND}
