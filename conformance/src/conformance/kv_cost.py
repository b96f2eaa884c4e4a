"""How much memory a KV cache takes: arithmetic on sizes, which is that of the caches of the ports to the byte.

    slot     the bytes that one token leaves in one layer: heads · (codes, scales and zeros of both vectors)
    slots    the context; in a windowed layer the window at most; in whole pages, where there are pages
    cache    users · Σ over layers of slots · slot

All is compared with the cache of the same model without any of it: keys and values of every query head, at every
position, in f16.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .errors import UsageError
from .kv_models import MODELS, Model

FLOATS = {"f32": 4, "bf16": 2, "f16": 2, "fp8": 1}
CODES = {"int8": 8, "int4": 4}  # bits of a code
DTYPES = (*FLOATS, *CODES)
SCALE = 4  # bytes of a scale, and of a zero
FULL = "f16"


@dataclass(frozen=True)
class Format:
    """How numbers are kept.

    group: channels that share a scale, None = all of a vector. zero_point: each scale has a zero beside it.
    Raises UsageError.
    """

    dtype: str = FULL
    group: int | None = None
    zero_point: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"no dtype is called {self.dtype!r}; known: {', '.join(DTYPES)}")
        if self.dtype in FLOATS and (self.group is not None or self.zero_point):
            raise UsageError(
                f"--group and --zero-point: expected an integer dtype ({', '.join(CODES)}), got {self.dtype}"
            )
        check_least("--group", self.group)

    def vector(self, channels: int) -> int:
        """Bytes of one vector of one head."""
        if self.dtype in FLOATS:
            return channels * FLOATS[self.dtype]
        codes = -(-channels * CODES[self.dtype] // 8)
        groups = -(-channels // (self.group or max(channels, 1)))
        return codes + groups * SCALE * (2 if self.zero_point else 1)


@dataclass(frozen=True)
class Load:
    """What the cache shall hold: so many positions of so many users. page_size: slots of a page, None = no pages.

    Raises UsageError.
    """

    context: int
    users: int = 1
    page_size: int | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("--context", self.context),
            ("--users", self.users),
            ("--page-size", self.page_size),
        ):
            check_least(name, value)

    def slots(self, window: int | None = None) -> int:
        """Slots that one user takes in one layer; pages begin at multiples of their size."""
        first = 0 if window is None else max(0, self.context - window)
        if self.page_size is None:
            return self.context - first
        pages = (self.context - 1) // self.page_size - first // self.page_size + 1
        return pages * self.page_size


@dataclass(frozen=True)
class Saving:
    """One thing that makes a cache smaller, and what is left of it then, in bytes."""

    name: str
    left: int


def check_least(name: str, value: int | None) -> None:
    """Raises UsageError for a number below 1; None is none."""
    if value is not None and value < 1:
        raise UsageError(f"{name}: expected at least 1, got {value}")


def slot_bytes(kept: tuple[int, int, int], form: Format) -> int:
    """Of one token in one layer: heads, and the sizes of the two vectors that each of them keeps."""
    heads, first, second = kept
    return heads * (form.vector(first) + form.vector(second))


def cache_bytes(model: Model, load: Load, form: Format) -> int:
    """Of all layers and users."""
    slots = (model.layers - model.windowed) * load.slots() + model.windowed * load.slots(model.window)
    return load.users * slots * slot_bytes(model.kept, form)


def savings(model: Model, load: Load, form: Format) -> list[Saving]:
    """From full multi-head attention in f16 to what is asked, one thing at a time; what a model lacks is left out."""
    unpaged = replace(load, page_size=None)
    full, shared = (cache_bytes(m, unpaged, Format()) for m in (model.full, model.unwindowed))
    found = [Saving(f"all {model.heads} heads, all positions, {FULL}", full)]
    if model.latent_dim:
        name = f"MLA: {model.latent_dim} + {model.rope_dim} numbers for all heads"
        found.append(Saving(name, shared))
    elif model.kv_heads < model.heads:
        name = f"GQA: {model.kv_heads} key/value heads"
        found.append(Saving(name, shared))
    if model.windowed:
        where = "all" if model.windowed == model.layers else f"{model.windowed} of {model.layers}"
        name = f"window of {model.window:,} in {where} layers"
        found.append(Saving(name, cache_bytes(model, unpaged, Format())))
    if form.dtype != FULL:
        found.append(Saving(f"{form.dtype}{_scales(form)}", cache_bytes(model, unpaged, form)))
    if load.page_size is not None:
        found.append(Saving(f"whole pages of {load.page_size}", cache_bytes(model, load, form)))
    return found


def find_model(name: str, models: Sequence[Model] = MODELS) -> Model:
    """By its name here, its title, or its name on the hub; capitals and blanks do not matter. Raises UsageError."""
    from .ports import check_names

    known = {
        _plain(word): model
        for model in models
        for word in (model.title, model.source, model.source.split("/")[-1], model.name)
    }
    if _plain(name) not in known:
        check_names("model", [_plain(name)], [model.name for model in models])
    return known[_plain(name)]


def _plain(name: str) -> str:
    """Without capitals and blanks."""
    return name.strip().lower().replace(" ", "-")


def _scales(form: Format) -> str:
    """What comes with codes."""
    if form.dtype not in CODES:
        return ""
    of = "vector" if form.group is None else f"{form.group} channels"
    return f", a scale{' and a zero' if form.zero_point else ''} for each {of}"
