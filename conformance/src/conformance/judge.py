"""The one place where an answer is compared with what is right.

Order: status and code, then names, dtype and shape, then values. A value passes when it is within its derived bound;
NaN must be NaN, an infinity the same infinity. Outputs that a case calls exact must be equal. Where somebody else has
published answers to the same question, theirs are compared with as well, by their own tolerance: both must pass.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from .bounds import derive
from .bounds.half import half_rounding, overflow_threshold
from .case import Case
from .oracle import answer as oracle_answer
from .oracle.sdpa import visible_keys
from .outcome import Difference, Judgement
from .steps import OUTPUTS
from .tally import show_share
from .tensors import HALVES, NUMPY_DTYPES, Tensors, is_float, read_tensors


def judge_answer(
    case: Case,
    dtype: str,
    answer: Mapping[str, Any],
    inputs: Tensors,
    expected: Tensors | None,
    outputs_path: Path,
    published: Tensors | None = None,
) -> Judgement:
    """The outcome of an answer that came: pass, fail, error or unsupported."""
    status = answer.get("status")
    if status == "unsupported":
        return Judgement("unsupported", f"unsupported: {answer.get('feature')}")
    if status == "error":
        return _judge_error(case, answer)
    if status != "ok":
        return Judgement("fail", f"status: expected ok, unsupported or error, got {status!r}")
    if case.error is not None:
        return Judgement("fail", f"expected the error {case.error}, got a result")
    if case.steps is not None and answer.get("steps") != case.steps:
        return Judgement("fail", _step_codes(case.steps, answer.get("steps")))
    if not outputs_path.exists():
        return Judgement("fail", "status ok, but no file of outputs")
    assert expected is not None
    try:
        got = read_tensors(outputs_path)
    except Exception as error:  # whatever a broken file provokes in the reader
        return Judgement("fail", f"outputs: expected a safetensors file, got {error}")
    derived = judge_tensors(case, dtype, inputs, expected, got)
    if case.published is None or published is None:
        return derived
    return judge_twice(derived, case, dtype, inputs, published, got)


def judge_twice(
    derived: Judgement, case: Case, dtype: str, inputs: Tensors, published: Tensors, got: Tensors
) -> Judgement:
    """Both verdicts in one: the derived bound's, and that of the published answers. Says so when they differ."""
    assert case.published is not None
    judged = {name: x for name, x in published.items() if name in (case.want or published)}
    if any(name not in got or got[name].shape != x.shape for name, x in judged.items()):
        return derived  # which has failed for that reason
    theirs = judge_published(case, dtype, inputs, judged, got)
    source = case.published.source
    if derived.outcome == theirs.outcome == "pass":
        return msgspec.structs.replace(derived, published_share=theirs.share)
    if derived.outcome == "pass":
        message = (
            f"the verdicts differ: within the derived bound ({show_share(derived.share)} of it), "
            f"but not within {source}'s own tolerance of its values: {theirs.message}"
        )
        outcome, difference = theirs.outcome, theirs.difference
    elif theirs.outcome == "pass":
        message = (
            f"the verdicts differ: within {source}'s own tolerance of its values "
            f"({show_share(theirs.share)} of it), but not within the derived bound: {derived.message}"
        )
        outcome, difference = derived.outcome, derived.difference
    else:
        message = f"{derived.message}; nor is it within {source}'s own tolerance of its values"
        outcome, difference = derived.outcome, derived.difference
    return msgspec.structs.replace(
        derived, outcome=outcome, message=message, difference=difference, published_share=theirs.share
    )


def judge_published(case: Case, dtype: str, inputs: Tensors, published: Tensors, got: Tensors) -> Judgement:
    """pass or fail by the published answers alone, share being that of their tolerance."""
    assert case.published is not None
    share = 0.0
    for name, theirs in published.items():
        have = got[name]
        if case.op == "sdpa" and name == "biased":  # theirs has every mask in it, ours stands before step 4
            have = np.where(_visible(case, inputs, have.shape), have, -np.inf)
        allowed = case.published.atol + case.published.rtol * np.abs(theirs.astype(np.float64))
        found = compare(name, dtype, theirs, have, allowed)
        if found.difference is not None:
            return Judgement("fail", _say(found.difference), found.share, difference=found.difference)
        share = max(share, found.share)
    return Judgement("pass", share=share)


def _visible(case: Case, inputs: Tensors, shape: tuple[int, ...]) -> np.ndarray:
    """bool (B, Hq, Tq, Tk): what no condition of the case hides."""
    shown = np.zeros(shape, bool)
    for b, h, i in np.ndindex(*shape[:3]):
        shown[b, h, i] = visible_keys(case.config, inputs, b, h, i, shape)
    return shown


def judge_tensors(case: Case, dtype: str, inputs: Tensors, expected: Tensors, got: Tensors) -> Judgement:
    """pass or fail, with the largest share of a bound and the worst element."""
    names = case.want or sorted(expected)
    if sorted(got) != sorted(names):
        return Judgement("fail", f"outputs: expected exactly {sorted(names)}, got {sorted(got)}")
    bounds = _bounds(case, dtype, inputs, names, expected)
    share = max_abs = max_ulp = 0.0
    worst: Difference | None = None
    for name in names:
        stored = output_dtype(case, dtype, name)
        difference = _same_form(name, stored, expected[name], got[name])
        if difference is not None:
            return Judgement("fail", _say(difference), difference=difference)
        found = compare(name, stored, expected[name], got[name], *bounds[name])
        if name in case.exact:
            found = _compare_zeros(name, expected[name], got[name]) or found
        max_abs, max_ulp = max(max_abs, found.max_abs), max(max_ulp, found.max_ulp)
        if found.share > share or (found.difference and worst is None):
            share = max(share, found.share)
            worst = found.difference or worst
    if worst is not None:
        return Judgement("fail", _say(worst), share, max_abs, max_ulp, worst)
    return Judgement("pass", "", share, max_abs, max_ulp)


def compare(
    name: str,
    dtype: str,
    expected: np.ndarray,
    got: np.ndarray,
    bound: np.ndarray,
    rounding: np.ndarray | float = 0.0,
) -> Judgement:
    """One tensor, of the right dtype and shape, element by element.

    rounding: what an element may be off beside its bound. It takes no part in the share: a half type's one rounding
    uses up its own allowance in almost every tensor, and would hide how good the computation was.
    """
    want, have = _widen(expected), _widen(got)
    finite = np.isfinite(want)
    # Where the bound reaches past the largest finite value of the type, infinity is right as well.
    beyond = np.isinf(have) & (np.sign(have) == np.sign(want)) & finite
    beyond &= np.abs(np.where(finite, want, 0)) + bound + rounding >= overflow_threshold(dtype)
    have = np.where(beyond, want, have)
    wrong_kind = (
        (np.isnan(want) != np.isnan(have))
        | (~finite & ~np.isnan(want) & (want != have))
        | (finite & ~np.isfinite(have))
    )
    if wrong_kind.any():
        element = np.argwhere(wrong_kind)[0]
        reason = "NaN or infinity where there should be none, or none where there should"
        return Judgement(
            "fail", share=np.inf, difference=_difference(name, reason, element, want, have, bound)
        )
    error = np.where(finite, np.abs(np.where(finite, want, 0) - np.where(finite, have, 0)), 0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        beside = np.where(error == 0, 0, np.maximum(error - rounding, 0))
        shares = np.where(beside == 0, 0, beside / bound)
        spacing = np.spacing(np.where(finite, np.abs(want), 1).astype(NUMPY_DTYPES[dtype]))
        ulp = np.nan_to_num(error / spacing.astype(np.float64))  # none beyond the largest finite value
    share, max_abs, max_ulp = (float(x.max(initial=0)) for x in (shares, error, ulp))
    if not share <= 1:
        element = np.unravel_index(
            int(np.nanargmax(np.where(np.isnan(shares), np.inf, shares))), shares.shape
        )
        return Judgement(
            "fail",
            "",
            share,
            max_abs,
            max_ulp,
            _difference(name, "out of its bound", element, want, have, bound + rounding),
        )
    return Judgement("pass", "", share, max_abs, max_ulp)


def _widen(x: np.ndarray) -> np.ndarray:
    """In float64, where a signalling NaN is a NaN like any other."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)


def _compare_zeros(name: str, expected: np.ndarray, got: np.ndarray) -> Judgement | None:
    """What is equal bit for bit has the sign of each zero as well; None when all are the same."""
    if not is_float(expected):
        return None
    want, have = _widen(expected), _widen(got)
    differs = (want == 0) & (have == 0) & (np.signbit(want) != np.signbit(have))
    if not differs.any():
        return None
    element, reason = np.argwhere(differs)[0], "zero of the wrong sign"
    difference = _difference(name, reason, element, want, have, np.zeros(want.shape))
    return Judgement("fail", share=np.inf, difference=difference)


def first_different_step(case: Case, dtype: str, inputs: Tensors, got: Tensors) -> Difference | None:
    """Of the intermediates in `got`, the first in the order of the pipeline that is out of its bound."""
    expected = oracle_answer(case.op, case.config, inputs, case.steps)
    bounds = derive(case.op, case.config, inputs, dtype, case.steps)
    for name in (step for step in OUTPUTS.get(case.op, ()) if step in got):
        stored = output_dtype(case, dtype, name)
        rounding = half_rounding(bounds[name], expected[name], stored)
        form = _same_form(name, stored, expected[name], got[name])
        found = form or compare(name, stored, expected[name], got[name], bounds[name], rounding).difference
        if found is not None:
            return found
    return None


_derived: dict[tuple[str, str, str], Tensors] = {}


def _bounds(
    case: Case, dtype: str, inputs: Tensors, names: list[str], expected: Tensors
) -> dict[str, tuple[np.ndarray, np.ndarray | float]]:
    """Bound and rounding of each output. Zero for what is exact; integers are always exact.

    All ports answer the same case: it is derived once.
    """
    exact = {name for name in names if name in case.exact or not is_float(expected[name])}
    key = (case.id, dtype, case.files[dtype].sha256.get("inputs", ""))
    bounds = _derived.get(key)
    if bounds is None:
        bounds = {} if exact == set(names) else derive(case.op, case.config, inputs, dtype, case.steps)
        if key[2] and bounds:
            _derived[key] = bounds
    found: dict[str, tuple[np.ndarray, np.ndarray | float]] = {}
    for name in names:
        if name in exact:
            found[name] = np.zeros(expected[name].shape), 0.0
        else:
            stored = output_dtype(case, dtype, name)
            found[name] = bounds[name], half_rounding(bounds[name], expected[name], stored)
    return found


def _judge_error(case: Case, answer: Mapping[str, Any]) -> Judgement:
    code, message = answer.get("code"), str(answer.get("message", ""))
    if case.error is None:
        return Judgement("error", f"{code}: {message}")
    if code != case.error:
        return Judgement("fail", f"expected the error {case.error}, got {code}: {message}")
    return Judgement("pass", message)


def _step_codes(expected: list[str], got: Any) -> str:
    if not isinstance(got, list) or len(got) != len(expected):
        return f"steps: expected {len(expected)} codes, got {got}"
    number = next(n for n, pair in enumerate(zip(expected, got, strict=True)) if pair[0] != pair[1])
    return f"steps: step {number}: expected {expected[number]}, got {got[number]}"


def output_dtype(case: Case, dtype: str, name: str) -> str:
    """The type of a float output: the case's, but f32 for a log-sum-exp beside halves, and for a cast its target.

    What a cache has rounded has the type of its format, and f32 scales and tails. What it has tracked is f64.
    """
    if case.op == "cast":
        return str(case.config["to"])
    steps = case.config.get("steps") or ()
    if any(step.get("codes") and name.startswith(f"{step['out']}.") for step in steps):
        if name.endswith(("_scale", "_zero", "_tail")):
            return "f32"
        if name.endswith("_codes") and case.config["format"] in HALVES:
            return str(case.config["format"])
    if any(step.get("tracked") and name == f"{step['out']}.tracked" for step in steps):
        return "f64"
    lse = name == "lse" or any(step.get("lse") == name for step in steps)
    return "f32" if lse and dtype in HALVES else dtype


def _same_form(name: str, dtype: str, expected: np.ndarray, got: np.ndarray) -> Difference | None:
    want = NUMPY_DTYPES[dtype] if is_float(expected) else expected.dtype
    if got.dtype != want:
        return Difference(name, "wrong dtype", expected=str(want), got=str(got.dtype))
    if got.shape != expected.shape:
        return Difference(name, "wrong shape", expected=str(expected.shape), got=str(got.shape))
    return None


def _difference(
    name: str, reason: str, element: Any, want: np.ndarray, have: np.ndarray, bound: np.ndarray
) -> Difference:
    at = tuple(int(n) for n in element)
    return Difference(
        name,
        reason,
        list(at),
        f"{want[at]:.9g}",
        f"{have[at]:.9g}",
        f"{np.broadcast_to(bound, want.shape)[at]:.3g}",
    )


def _say(difference: Difference) -> str:
    where = f"{difference.tensor}{difference.element}" if difference.element else difference.tensor
    bound = f" (bound {difference.bound})" if difference.bound else ""
    return f"{where}: {difference.reason}: expected {difference.expected}, got {difference.got}{bound}"
