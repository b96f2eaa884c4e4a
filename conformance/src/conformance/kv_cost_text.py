"""What `conformance kv-cost` says: the memory of real models' caches, as tables in the terminal."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .kv_cost import DTYPES, FLOATS, FULL, Format, Load, cache_bytes, savings, slot_bytes
from .kv_models import MODELS, Model
from .table import print_narrow


def show_model(model: Model, load: Load, form: Format, console: Console) -> None:
    """One model: where its memory goes, and what it would be in other types."""
    heads, first, second = model.kept
    steps = savings(model, load, form)
    total = cache_bytes(model, load, form)
    console.print(
        f"[bold]{model.title}[/], {model.layers} layers, {model.heads} heads; a token leaves {heads} x"
        f" ({first} + {second}) numbers in each\n[dim]from config.json of {model.source} on the Hugging Face hub[/]",
        highlight=False,
    )
    if model.context < load.context:
        console.print(f"[yellow]its config promises {model.context:,} positions only[/]", highlight=False)
    table = _table("", "memory", "this saves", "left of full")
    for before, step in zip([steps[0], *steps], steps, strict=False):
        factor = "" if step is steps[0] else _times(before.left, step.left)
        table.add_row(step.name, show_bytes(step.left), factor, _share(step.left, steps[0].left))
    print_narrow(console, Text(f"\n{_asked(load, form)}", "italic"), table)

    others = _table("type", "a token", "a user", "all users", "left of full")
    bare = Load(load.context, load.users)
    for dtype in DTYPES:
        other = form if dtype == form.dtype else Format(dtype)
        size = cache_bytes(model, bare, other)
        others.add_row(
            dtype,
            show_bytes(model.layers * slot_bytes(model.kept, other)),
            show_bytes(size // load.users),
            show_bytes(size),
            _share(size, steps[0].left),
            style="bold" if other is form else None,
        )
    print_narrow(console, Text("In other types, without pages", "italic"), others)
    console.print(f"{show_bytes(total)}, {total:,} bytes", highlight=False)


def show_all(load: Load, form: Format, console: Console) -> None:
    """All models, and what each thing saves, as a factor."""
    columns = ("a token", "a user", "all users", "heads", "window", "type", "in all")
    table = _table("model", *columns)
    short = []
    for model in MODELS:
        full, total = savings(model, load, form)[0].left, cache_bytes(model, load, form)
        bare = Load(load.context, load.users)
        shared, windowed = (cache_bytes(m, bare, Format()) for m in (model.unwindowed, model))
        beyond = model.context < load.context
        short += [model] if beyond else []
        table.add_row(
            model.name + (" *" if beyond else ""),
            show_bytes(model.layers * slot_bytes(model.kept, form)),
            show_bytes(total // load.users),
            show_bytes(total),
            _times(full, shared),
            _times(shared, windowed),
            _times(windowed, cache_bytes(model, bare, form)),
            _times(full, total),
        )
    print_narrow(console, Text(_asked(load, form), "italic"), table)
    notes = [
        f"x n: so many times smaller than keys and values of all heads at all positions in {FULL}; heads is GQA or,"
        " for deepseek-v3, MLA. a token: in all layers, before any window."
    ]
    if short:
        limits = ", ".join(f"{model.name} {model.context:,}" for model in short)
        notes.append(f"* more positions than its config promises: {limits}.")
    notes.append("Sources: config.json on the Hugging Face hub; kv-cost MODEL names the repository.")
    print_narrow(console, Text("\n".join(notes), "dim"))


def show_bytes(number: int) -> str:
    """In the largest binary unit of which there is one."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:,.2f} {unit}"
    return f"{number} B"


def _asked(load: Load, form: Format) -> str:
    """What the command was asked, as the title of a table."""
    said = [f"{load.context:,} positions", f"{load.users:,} user{'s' if load.users > 1 else ''}", form.dtype]
    if form.dtype not in FLOATS:
        said.append("a scale per head" if form.group is None else f"a scale per {form.group} channels")
    if load.page_size is not None:
        said.append(f"pages of {load.page_size}")
    return "KV cache: " + ", ".join(said)


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _times(before: int, after: int) -> str:
    """How many times smaller; nothing where nothing changed."""
    return "" if before == after else f"x {before / after:.3g}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}"
