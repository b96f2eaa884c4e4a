"""Times that mean the same on a busy machine: those of one thread on the processor, without waiting for it."""

import os
import sys
import time
from collections.abc import Callable, Sequence

VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

seconds = time.thread_time


def least(call: Callable[[], object], repeats: int) -> float:
    """Seconds of a call: the least of `repeats`, since noise only ever adds, after one that does not count."""
    call()
    found = []
    for _ in range(repeats):
        start = seconds()
        call()
        found.append(seconds() - start)
    return min(found)


def start_anew(module: str, arguments: Sequence[str]) -> None:
    """Runs `python -m module` in place of this process, with one thread for matrix products; not when it has one.

    A library reads how many threads it may have when it is loaded, and by now it is.
    """
    if any(os.environ.get(name) != "1" for name in VARIABLES):
        os.environ.update(dict.fromkeys(VARIABLES, "1"))
        os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
