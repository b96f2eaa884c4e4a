"""The command `conformance kv-cost`: its options; the arithmetic is in kv_cost, the tables in kv_cost_text."""

from typing import Annotated

import typer
from rich.console import Console

from .kv_cost import DTYPES, FULL, Format, Load, find_model


def kv_cost(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Only this one, by its name in the table of all.")
    ] = "",
    context: Annotated[int, typer.Option(metavar="N", help="Positions that each user has.")] = 4096,
    users: Annotated[int, typer.Option(metavar="M", help="How many there are at a time.")] = 1,
    dtype: Annotated[str, typer.Option(metavar="TYPE", help=f"{', '.join(DTYPES)}.")] = FULL,
    group: Annotated[
        int | None,
        typer.Option(
            "--group", "--block", metavar="N", help="Channels that share a scale; default: all of a head."
        ),
    ] = None,
    zero_point: Annotated[
        bool, typer.Option("--zero-point", help="A zero beside each scale, for int8 and int4.")
    ] = False,
    page_size: Annotated[
        int | None, typer.Option(metavar="P", help="Slots of a page; default: no pages, so no rounding up.")
    ] = None,
) -> None:
    """Says how much memory the KV cache of a real model takes, and what GQA, MLA, a window and a type save of it.

    Examples:

    * `conformance kv-cost`
    * `conformance kv-cost llama-3-8b --context 4096 --users 100`
    * `conformance kv-cost gpt-oss-20b --context 131072 --dtype int8 --group 32 --page-size 16`
    """
    from .kv_cost_text import show_all, show_model

    load, form = Load(context, users, page_size), Format(dtype, group, zero_point)
    console = Console()
    if model:
        show_model(find_model(model), load, form, console)
    else:
        show_all(load, form, console)
