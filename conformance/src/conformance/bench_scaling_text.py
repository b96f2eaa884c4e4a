"""What a report of `bench --scaling` says, as Markdown."""

from .bench_file import BenchReport
from .bench_scaling import KINDS, Curve, find_curves, show_growth


def scaling_table(report: BenchReport) -> str:
    """A row for each rung; for each kind what its longest call took, and how it grows."""
    curves = {(curve.port, curve.variant, curve.what): curve for curve in find_curves(report)}
    kinds = [what for what in KINDS if any(key[2] == what for key in curves)]
    if not kinds:
        return "Nothing of the suite `scaling` was timed."
    longest = {what: max(max(curves[key].times) for key in curves if key[2] == what) for what in kinds}
    head = [f"{what}, {KINDS[what].letter} = {longest[what]:,}" for what in kinds]
    lines = ["| | " + " | ".join(head) + " |", "|---|" + "---|" * len(kinds)]
    for port, variant in dict.fromkeys(key[:2] for key in curves):
        cells = [_cell(curves.get((port, variant, what)), longest[what]) for what in kinds]
        lines.append(f"| {port} `{variant}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(curve: Curve | None, longest: int) -> str:
    """`1.2 ms, T^2.0`; the length is named where it is not the longest of all."""
    if curve is None:
        return "-"
    kind = KINDS[curve.what]
    last = max(curve.times)
    text = kind.show(curve.times[last])
    if last != longest:
        text += f" at {last:,}"
    return text if curve.exponent is None else f"{text}, {show_growth(curve, kind.letter)}"
