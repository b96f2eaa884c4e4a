"""The commands `conformance decode` and `conformance kv-bytes`: their options; the work is done elsewhere."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

PORTS_HELP = "Only these ports. Without it: all but the peers."


def decode(
    ports: Annotated[str, typer.Option("--ports", metavar="A,B", help=PORTS_HELP)] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Shorter texts: seconds, not minutes.")] = False,
    repeats: Annotated[int, typer.Option(metavar="R", min=1, help="Runs of which the fastest counts.")] = 1,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the numbers go. [site/decode.jsonl]")
    ] = None,
    ports_dir: Annotated[
        Path | None, typer.Option("--ports-dir", metavar="DIR", help="Another folder of port files.")
    ] = None,
) -> None:
    """Measures what a KV cache saves, in every port that has a program for it: one table, and a plot on the page.

    Examples:

    * `conformance decode --quick`
    * `conformance decode --ports rust,julia --repeats 3`
    """
    from .decode import DEFAULT_DECODE, LENGTHS, QUICK, run_decode
    from .decode_counts import WAYS
    from .decode_text import show_decode
    from .ports import PORTS, choose_ports, read_ports
    from .progress import Bars

    console = Console()
    chosen = choose_ports(read_ports(ports_dir or PORTS), ports)
    lengths = QUICK if quick else LENGTHS
    totals = {port.name: len(WAYS) * len(lengths) for port in chosen if port.decode}
    with Bars(console, totals) as bars:
        found = run_decode(chosen, lengths, repeats, out or DEFAULT_DECODE, tick=bars.tick, say=bars.say)
    show_decode(found, console)
    raise typer.Exit(1 if found.footer.problems else 0)


def kv_bytes(
    ports: Annotated[str, typer.Option("--ports", metavar="A,B", help=PORTS_HELP)] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the numbers go. [site/kv-bytes.jsonl]")
    ] = None,
    ports_dir: Annotated[
        Path | None, typer.Option("--ports-dir", metavar="DIR", help="Another folder of port files.")
    ] = None,
) -> None:
    """Asks every port how many bytes a token takes in each kind of cache, and whether all say the same.

    Examples:

    * `conformance kv-bytes`
    * `conformance kv-bytes --ports rust`
    """
    from .kv_bytes import DEFAULT_KV_BYTES, KINDS, run_kv_bytes
    from .kv_bytes_text import show_kv_bytes
    from .ports import PORTS, check_commands, choose_ports, read_ports
    from .progress import Bars

    console = Console()
    chosen = choose_ports(read_ports(ports_dir or PORTS), ports)
    check_commands(chosen)
    with Bars(console, {port.name: len(KINDS) for port in chosen}) as bars:
        found = run_kv_bytes(chosen, out or DEFAULT_KV_BYTES, tick=bars.tick)
    show_kv_bytes(found, console)
    raise typer.Exit(1 if found.footer.problems or not found.header.ports else 0)
