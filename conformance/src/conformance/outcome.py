"""How a question to a port can end, and the record that a report keeps of it."""

from typing import Literal

import msgspec

Outcome = Literal["pass", "fail", "error", "unsupported", "crash", "timeout"]
OUTCOMES: tuple[Outcome, ...] = ("pass", "fail", "error", "unsupported", "crash", "timeout")


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """The worst element of a tensor that is out of its bound, or what else is wrong with it."""

    tensor: str
    reason: str
    element: list[int] = []
    expected: str = ""
    got: str = ""
    bound: str = ""


class Judgement(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the judge found in one answer.

    share: the largest fraction of its bound that any element used. max_abs, max_ulp: the largest error, absolute and in
    units in the last place of the expected value. first_step: the first intermediate that differs, on a failure.
    published_share: where somebody else's answers stand beside ours, the largest fraction of *their* tolerance.
    """

    outcome: Outcome
    message: str = ""
    share: float = 0.0
    max_abs: float = 0.0
    max_ulp: float = 0.0
    difference: Difference | None = None
    first_step: Difference | None = None
    published_share: float | None = None


class Result(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="result"):
    """One line of a report: one case, in one dtype, on one variant of one port.

    first: the variant is the port's first, the readable one, which must do all that the port claims.
    """

    port: str
    suite: str
    case: str
    dtype: str
    variant: str
    judgement: Judgement
    seconds: float = 0.0
    first: bool = True
