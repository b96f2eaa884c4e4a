"""A table for the terminal."""

from collections.abc import Sequence


def draw(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their widest cell: the first one to the left, the others to the right."""
    lines = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def bar(share: float, width: int = 40) -> str:
    """A bar of up to `width` characters for a share from 0 to 1."""
    return "#" * round(share * width)


def sizes(text: str) -> list[int]:
    """A comma list of integers >= 1. Raises ValueError."""
    found = [int(part) for part in text.split(",")]
    if any(n < 1 for n in found):
        raise ValueError(text)
    return found
