"""What `conformance kv-bytes` prints: a row for each way to keep tokens."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .kv_bytes import KvBytes, Row
from .table import box_of, print_narrow


def show_kv_bytes(found: KvBytes, console: Console) -> None:
    """The table, who was asked, and what went wrong."""
    header = found.header
    table = Table(box=box_of(console), header_style="", pad_edge=False, collapse_padding=True)
    table.add_column("kept as", no_wrap=True)
    for name in ("slots", "bytes a token", "of f32"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("asked")
    for row in found.rows:
        if row.held:
            asked = "all" if set(row.held) == set(header.ports) else ", ".join(row.held)
            share = f"{found.share(row):.1%}"
            table.add_row(row.name, f"{row.slots:,}", show_token(found, row), share, asked)
        else:
            table.add_row(row.name, "", "", "", Text("no port claims it", "dim"))
    said = (
        f"{header.tokens:,} tokens of {header.heads} heads of {header.head_dim}, as stats counts them in"
        f" {', '.join(header.ports) or 'no port'}; a token is one that was appended, kept or not."
    )
    print_narrow(console, Text(said, "italic"), table)
    for name, why in header.without.items():
        console.print(f"left out: {name}: {why}", style="dim", markup=False, highlight=False, soft_wrap=True)
    for problem in found.footer.problems:
        console.print(f"problem: {problem}", style="red", markup=False, highlight=False, soft_wrap=True)


def show_token(found: KvBytes, row: Row) -> str:
    """Bytes of one token, with a fraction only where there is one."""
    return f"{found.a_token(row):,.2f}".removesuffix(".00")
