"""What a port is asked: every case it claims, in every dtype and variant; and why not the others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .case import Case
from .fixtures import LoadedSuite
from .session import OpClaim, StartAnswer
from .steps import OUTPUTS

BENCH_FLAG = "Bench"
NO_VARIANT = "-"


@dataclass(frozen=True)
class Narrowing:
    """What a run is restricted to; empty means everything. match: a glob over case ids."""

    dtypes: Sequence[str] = ()
    variants: Sequence[str] = ()
    match: str = ""

    def takes(self, case: Case) -> bool:
        """Whether the case is asked at all. Benchmarks are not: they are judged when they are timed."""
        return BENCH_FLAG not in case.flags and (not self.match or fnmatchcase(case.id, self.match))


EVERYTHING = Narrowing()


@dataclass(frozen=True)
class Question:
    """One case, in one dtype, for one variant. unclaimed: why it must not be asked; empty when it may.

    first: the variant is the port's first. complete: it must do all that the port claims, as the first one must.
    """

    suite: LoadedSuite
    case: Case
    dtype: str
    variant: str
    first: bool
    unclaimed: str = ""
    complete: bool = False


def list_questions(
    claims: StartAnswer | None, suites: Sequence[LoadedSuite], narrowing: Narrowing = EVERYTHING
) -> Iterator[Question]:
    """Every question in a fixed order. A port without claims, which never started, is down for each once."""
    for suite in suites:
        for case in suite.suite.cases:
            if not narrowing.takes(case):
                continue
            for dtype in case.files:
                if not narrowing.dtypes or dtype in narrowing.dtypes:
                    for variant, first in _list_variants(claims, case.op, narrowing.variants):
                        unclaimed = "" if claims is None else find_unclaimed(claims, case, dtype)
                        complete = claims is not None and _is_complete(claims.ops.get(case.op), variant)
                        yield Question(suite, case, dtype, variant, first, unclaimed, complete)


def find_unclaimed(claims: StartAnswer, case: Case, dtype: str) -> str:
    """What the port would need to claim and does not; empty when it claims all."""
    claim = claims.ops.get(case.op)
    if claim is None:
        return f"op {case.op}"
    if dtype not in claim.dtypes:
        return f"dtype {dtype} of {case.op}"
    missing = [feature for feature in list_features(case) if feature not in claim.features]
    return f"{', '.join(missing)} of {case.op}" if missing else ""


def list_features(case: Case) -> list[str]:
    """The features of the case, and the outputs that are wanted beside the op's first."""
    extra = [name for name in case.want if name != "output"] if case.op in OUTPUTS else []
    return list(dict.fromkeys([*case.features, *extra]))


def _list_variants(claims: StartAnswer | None, op: str, chosen: Sequence[str]) -> list[tuple[str, bool]]:
    claim = claims.ops.get(op) if claims else None
    if claim is None:
        return [] if chosen else [(NO_VARIANT, True)]
    return [
        (variant, index == 0)
        for index, variant in enumerate(claim.variants)
        if not chosen or variant in chosen
    ]


def _is_complete(claim: OpClaim | None, variant: str) -> bool:
    return claim is not None and variant in claim.complete
