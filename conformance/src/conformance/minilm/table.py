"""The similarity of the sentences as a table in the terminal, at most 100 columns wide."""

from rich import box
from rich.table import Table
from rich.text import Text

from ..outcome import Judgement
from ..tally import show_cosine
from .sentences import SENTENCES
from .similarity import TOLERANCE, PortSimilarity

ALIKE, UNLIKE = 0.4, 0.2  # a cosine from here on is shown bold; below that, dim


def similarity_table(found: PortSimilarity) -> Table:
    """The cosine of each pair of sentences, and beside each how far its embedding moved."""
    table = Table(
        title=_title(found),
        caption=f"1 - cosine, at most {TOLERANCE:.0e}. own: to the package's own embedding; pad: alone to padded",
        box=box.SIMPLE_HEAD,
        padding=0,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("sentence", no_wrap=True)
    for number in range(1, len(SENTENCES) + 1):
        table.add_column(str(number), justify="right", width=4)
    table.add_column("own", justify="right", width=7)
    table.add_column("pad", justify="right", width=7)
    for i, (name, _) in enumerate(SENTENCES):
        cells = [_cosine(value) for value in found.table[i]] if found.table else [Text("-")] * len(SENTENCES)
        own = _judged(found.embedding[i])
        table.add_row(f"{i + 1:2} {name}", *cells, own, _judged(found.padding[i]))
    return table


def _title(found: PortSimilarity) -> Text:
    """The port and its verdict."""
    name = " ".join(part for part in (found.port, found.variant) if part)
    if not found.ok:
        first_line = found.fault.splitlines()[0] if found.fault else "failed"
        return Text.assemble((name, "bold"), ": ", (first_line[:90], "red"))
    text = f": all {len(SENTENCES)} embeddings equal the package's own, with and without padding"
    return Text.assemble((name, "bold"), (text, "green"))


def _cosine(value: float) -> Text:
    """What is alike stands out."""
    return Text(show_cosine(value), "bold" if value >= ALIKE else "dim" if value < UNLIKE else "")


def _judged(judgement: Judgement) -> Text:
    """The distance, or the outcome where there is none."""
    if judgement.outcome == "pass" or judgement.share > 0:
        style = "green" if judgement.outcome == "pass" else "red"
        return Text(f"{judgement.share * TOLERANCE:.0e}", style)
    return Text(judgement.outcome[:7], "red")
