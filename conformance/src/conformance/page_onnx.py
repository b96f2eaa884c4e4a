"""How many of ONNX's published vectors each port and each peer passes, by operator, as the page shows it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from .page_results import colour_of
from .report import Report

SUITE = "onnx"


@dataclass(frozen=True)
class OnnxColumn:
    """A port or a peer, on its first variant."""

    name: str
    kind: str
    colour: str


@dataclass(frozen=True)
class OnnxView:
    """rows: an operator, its vectors, and for each column how many of them pass (None: it was not asked at all)."""

    columns: list[OnnxColumn]
    rows: list[tuple[str, int, list[int | None]]]

    @property
    def totals(self) -> list[int]:
        """Per column, over all operators."""
        return [sum(counts[n] or 0 for _, _, counts in self.rows) for n in range(len(self.columns))]

    @property
    def vectors(self) -> int:
        """Over all operators."""
        return sum(count for _, count, _ in self.rows)


def view_onnx(reports: Sequence[Report]) -> OnnxView | None:
    """From our ports' report and, where it is there, the peers'. None where nobody was asked the suite."""
    passed: dict[tuple[str, str], set[str]] = defaultdict(set)
    asked: dict[tuple[str, str], set[str]] = defaultdict(set)
    cases: dict[str, set[str]] = defaultdict(set)
    columns: dict[str, OnnxColumn] = {}
    for report in reports:
        kinds = {port.name: port.kind for port in report.header.ports}
        for result in (r for r in report.results if r.suite == SUITE and r.first):
            operator = result.case.split("/")[1]
            columns.setdefault(
                result.port, OnnxColumn(result.port, kinds[result.port], colour_of(result.port, len(columns)))
            )
            cases[operator].add(result.case)
            if result.judgement.outcome != "unsupported":
                asked[result.port, operator].add(result.case)
            if result.judgement.outcome == "pass":
                passed[result.port, operator].add(result.case)
    if not columns:
        return None
    rows: list[tuple[str, int, list[int | None]]] = [
        (
            operator,
            len(vectors),
            [len(passed[name, operator]) if asked[name, operator] else None for name in columns],
        )
        for operator, vectors in cases.items()
    ]
    return OnnxView(list(columns.values()), rows)
