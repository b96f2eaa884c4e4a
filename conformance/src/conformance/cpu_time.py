"""How much processor time another process has used, as finely as the system tells."""

import time

import psutil  # type: ignore[import-untyped]


def processor_seconds(pid: int | None) -> float:
    """What the process and its children have used so far, all threads together; 0 when it is not there."""
    if pid is None:  # to psutil that is this very process
        return 0.0
    try:
        process = psutil.Process(pid)
        return sum(_own(each) for each in (process, *process.children(recursive=True)))
    except psutil.Error:
        return 0.0


def _own(process: psutil.Process) -> float:
    try:
        # Linux names the processor clock of a process by its number (clock_getcpuclockid): nanoseconds, where
        # psutil's times come in ticks of ten milliseconds, longer than many a request.
        return time.clock_gettime_ns((~process.pid << 3) | 2) / 1e9
    except (AttributeError, OSError):
        times = process.cpu_times()
        return float(times.user + times.system)
