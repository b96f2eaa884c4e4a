"""Timing of a prepared call, inside the port and around the library call alone."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Timing:
    """What the answer to `bench` says."""

    first_ns: int
    evals: int
    samples_ns: list[float]  # per evaluation


def time_call(
    evaluate: Callable[[], Any], *, warmup: int, samples: int, min_sample_ns: int
) -> tuple[Timing, Any]:
    """A first call apart, `warmup` calls, `samples` samples of `evals` calls each; and the last result.

    `evals` doubles whenever a sample is too short, and the samples begin again.
    """
    first_ns, result = _elapsed(evaluate, 1)
    for _ in range(warmup):
        _elapsed(evaluate, 1)
    evals = 1
    samples_ns: list[float] = []
    while len(samples_ns) < samples:
        took, result = _elapsed(evaluate, evals)
        if took < min_sample_ns:
            evals, samples_ns = 2 * evals, []
        else:
            samples_ns.append(took / evals)
    return Timing(first_ns, evals, samples_ns), result


def _elapsed(evaluate: Callable[[], Any], evals: int) -> tuple[int, Any]:
    start = time.perf_counter_ns()
    for _ in range(evals):
        result = evaluate()
    return time.perf_counter_ns() - start, result
