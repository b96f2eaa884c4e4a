"""The similarity of the sentences as a table in the terminal, at most 100 columns wide."""

from rich import box
from rich.table import Table
from rich.text import Text

from ..outcome import Judgement
from .sentences import SENTENCES
from .similarity import EMBEDDING_TOLERANCE, PADDING_TOLERANCE, PortSimilarity

ALIKE, UNLIKE = 0.4, 0.2  # a cosine from here on is shown bold; below that, dim


def similarity_table(found: PortSimilarity) -> Table:
    """The cosine of each pair of sentences, and beside each how far its embedding moved."""
    table = Table(
        title=_title(found),
        caption=f"1 - cosine. own: to the package's own embedding, at most {EMBEDDING_TOLERANCE:.0e}; "
        f"pad: alone to padded, {PADDING_TOLERANCE:.0e}",
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
        own = _judged(found.embedding[i], EMBEDDING_TOLERANCE)
        table.add_row(f"{i + 1:2} {name}", *cells, own, _judged(found.padding[i], PADDING_TOLERANCE))
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
    """Two digits; the zero before the point is left out, so that a minus fits."""
    style = "bold" if value >= ALIKE else "dim" if value < UNLIKE else ""
    shown = f"{value:.2f}".replace("-0.00", "0.00")
    return Text(shown if value > 0.995 else shown.replace("0.", ".", 1), style)


def _judged(judgement: Judgement, tolerance: float) -> Text:
    """The distance, or the outcome where there is none."""
    if judgement.outcome == "pass" or judgement.share > 0:
        style = "green" if judgement.outcome == "pass" else "red"
        return Text(f"{judgement.share * tolerance:.0e}", style)
    return Text(judgement.outcome[:7], "red")
