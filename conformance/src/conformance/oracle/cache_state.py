"""What a cache of the reference holds: a list of slots a row, each with all that ever happened to it.

Nothing is preallocated, overwritten or shared. A slot never changes: what turns or moves it makes another slot.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .quantise import Codes, Format, quantise
from .rope import rotary_tables, rotate
from .rope_scaling import attention_factor

if TYPE_CHECKING:
    from .cache_attend import Attend

ROTATING, PAGED, QUANTISED, LATENT, CROSS = "rotating", "paged", "quantised", "latent", "cross"
CONTIGUOUS, PER_HEAD = "contiguous", "per_head"
WITH_CAPACITY = (CONTIGUOUS, QUANTISED, LATENT, PER_HEAD)
EVICTING = (CONTIGUOUS, QUANTISED, PER_HEAD)  # what can forget slots, and track what they were given
AT_ATTEND = "attend"


@dataclass(frozen=True)
class Sizes:
    """The config of a cache, with its defaults filled in. parts: heads and channels of what each slot holds.

    batch: the rows of the machine, `split` of them for each row of the request: per_head has one for each KV head.
    """

    kind: str
    batch: int
    split: int
    parts: dict[str, tuple[int, int]]
    capacity: int | None
    window: int
    keep: int
    page_size: int
    num_pages: int
    form: Format | None
    rope: dict[str, Any] | None
    rope_at: str
    track: bool
    key_groups: int | None

    @property
    def rotates(self) -> bool:
        """Whether keys are held rotated."""
        return self.rope is not None and self.rope_at != AT_ATTEND

    @property
    def rotates_late(self) -> bool:
        """Whether keys are rotated whenever they are attended to."""
        return self.rope is not None and self.rope_at == AT_ATTEND

    @staticmethod
    def of(config: dict[str, Any]) -> "Sizes":
        """From the request."""
        kind = config.get("kind") or CONTIGUOUS
        form, split = None, 1
        if kind == LATENT:
            parts = {"latent": (1, config["latent_dim"]), "rope_key": (1, config["rope_dim"])}
        else:
            D, Hkv = config["head_dim"], config["num_kv_heads"]
            Dv = D if config.get("value_dim") is None else config["value_dim"]
            split, Hkv = (Hkv, 1) if kind == PER_HEAD else (1, Hkv)
            parts = {"k": (Hkv, D), "v": (Hkv, Dv)}
        if kind == QUANTISED:
            form = Format(config["format"], config.get("group"), bool(config.get("zero_point")))
        return Sizes(
            kind,
            config["batch"] * split,
            split,
            parts,
            config.get("capacity") if kind in WITH_CAPACITY else None,
            config.get("window") or 0,
            config.get("keep") or 0,
            config.get("page_size") or 0,
            config.get("num_pages") or 0,
            form,
            config.get("rope"),
            config.get("rope_at") or "append",
            kind in EVICTING and bool(config.get("track")),
            config.get("key_groups") if kind == QUANTISED else None,
        )


@dataclass(frozen=True, eq=False)
class Stored:
    """One part of a slot. value (H, n) in float64: what attention sees, exact but for what the format rounds.

    source: what it was made from, as given, or as stored before; turn: by how many positions that was rotated.
    group: the slots that were quantised together with this one, as they were before, and its place among them.
    """

    value: np.ndarray
    source: "np.ndarray | Stored"
    turn: int | None = None
    codes: Codes | None = None
    group: "tuple[tuple[Stored, ...], int] | None" = None


@dataclass(frozen=True, eq=False)
class Slot:
    """A token in the cache. token: its identity, where it is known.

    reads: each attend that it was held in while weights were tracked, with its row and its place there.
    """

    position: int
    parts: dict[str, Stored]
    token: int | None = None
    reads: "tuple[tuple[Attend, int, int], ...]" = ()

    def tracked(self) -> np.ndarray:
        """(H,): the weights that it was given."""
        total = np.zeros(len(self.parts["k"].value))
        for attend, b, s in self.reads:
            total = total + attend.given[b, :, s]
        return total

    def bits(self) -> bytes:
        """What was given for it, to the bit."""
        return b"".join(np.asarray(part.source).tobytes() for part in self.parts.values())


class Page:
    """A page of the pool; which rows hold it is read off their tables. known: when it could first be shared."""

    def __init__(self) -> None:
        self.known: int | None = None


@dataclass(eq=False)
class Cache:
    """rows: the slots held. next: the position of each row's next token. tables: the pages of each row.

    written: an append was made, also one of nothing.
    """

    rows: list[list[Slot]]
    next: list[int]
    tables: list[list[Page]]
    dtype: np.dtype | None = None
    written: bool = False

    @staticmethod
    def empty(batch: int) -> "Cache":
        """Without a type."""
        return Cache([[] for _ in range(batch)], [0] * batch, [[] for _ in range(batch)])

    def take(self, index: list[int]) -> "Cache":
        """Another cache with these rows."""
        return Cache(
            [list(self.rows[b]) for b in index],
            [self.next[b] for b in index],
            [list(self.tables[b]) for b in index],
            self.dtype,
            self.written,
        )

    def copy(self) -> "Cache":
        """Another cache with the same rows."""
        return self.take(list(range(len(self.rows))))

    def become(self, other: "Cache") -> None:
        """What the other one is, from now on."""
        self.__dict__.update(other.copy().__dict__)


@dataclass(eq=False)
class World:
    """All caches of a script, the files that it saved, and a clock for pages."""

    caches: dict[str, Cache]
    files: dict[str, Cache] = field(default_factory=dict)
    clock: int = 0

    def copy(self) -> "World":
        """For a step that may yet fail."""
        caches = {name: cache.copy() for name, cache in self.caches.items()}
        return World(caches, dict(self.files), self.clock)


def store(sizes: Sizes, name: str, source: "np.ndarray | Stored", turn: int | None) -> Stored:
    """A part as it is kept: rotated by `turn` positions if any, then rounded by the format if there is one.

    A part that was stored before is rotated without the attention factor, which is in it already. Keys that are
    quantised in groups of tokens wait for the others in f32.
    """
    raw = source.value if isinstance(source, Stored) else source.astype(np.float64)
    value = raw if turn is None else turned(sizes.rope or {}, raw, turn, again=isinstance(source, Stored))
    if sizes.form is None:
        return Stored(value, source, turn)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = value.astype(np.float32)
        if name == "k" and sizes.key_groups is not None:
            return Stored(narrow.astype(np.float64), source, turn)
        codes = quantise(narrow, sizes.form)
    return Stored(codes.value.astype(np.float64), source, turn, codes)


def turned(rope: dict[str, Any], x: np.ndarray, position: int, *, again: bool = False) -> np.ndarray:
    """x (H, n) rotated to a position."""
    R = x.shape[-1] if rope.get("rotary_dim") is None else int(rope["rotary_dim"])
    cos, sin = rotary_tables(rope, np.array([[position]]), R)
    if again:
        cos, sin = cos / attention_factor(rope), sin / attention_factor(rope)
    return rotate(x[None, :, None, :], cos, sin, bool(rope.get("interleaved")))[0, :, 0]
