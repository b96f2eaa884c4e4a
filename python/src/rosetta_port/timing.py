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
    cpu_ns: int  # of the samples together, all threads of the process


def time_call(
    evaluate: Callable[[], Any], *, warmup: int, samples: int, min_sample_ns: int
) -> tuple[Timing, Any]:
    """A first call apart, `warmup` calls, `samples` samples of `evals` calls each; and the last result.

    `evals` doubles whenever a sample is too short, and the samples begin again.
    """
    first_ns, _, result = _elapsed(evaluate, 1)
    for _ in range(warmup):
        _elapsed(evaluate, 1)
    evals = 1
    samples_ns: list[float] = []
    cpu_ns = 0
    while len(samples_ns) < samples:
        took, used, result = _elapsed(evaluate, evals)
        if took < min_sample_ns:
            evals, samples_ns, cpu_ns = 2 * evals, [], 0
        else:
            samples_ns.append(took / evals)
            cpu_ns += used
    return Timing(first_ns, evals, samples_ns, cpu_ns), result


def _elapsed(evaluate: Callable[[], Any], evals: int) -> tuple[int, int, Any]:
    """Wall and processor time of so many calls, and the last result."""
    used = time.process_time_ns()
    start = time.perf_counter_ns()
    for _ in range(evals):
        result = evaluate()
    took = time.perf_counter_ns() - start
    return took, time.process_time_ns() - used, result
