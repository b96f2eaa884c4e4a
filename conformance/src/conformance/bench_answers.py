"""What an answer to `bench` must have in it, and what nobody believes."""

from typing import Any

# A core of today computes less in f32: two units of 16 lanes at 6 GHz are 384 GFLOP/s.
MOST_GFLOPS = 500.0
# The limit is a maximum over a second, and clocks rise and fall with heat and neighbours: twice is beyond all that.
BEYOND_PEAK = 2.0


class BadTimes(Exception):
    """An answer to bench without usable samples."""


def read_samples(answer: dict[str, Any]) -> list[float]:
    """The times of an answer to bench, in nanoseconds per evaluation. Raises BadTimes."""
    samples = answer.get("samples_ns")
    if answer.get("status") != "ok":
        raise BadTimes(f"answered {answer.get('status')}: {answer.get('message') or answer.get('feature')}")
    if not isinstance(samples, list) or not samples or not all(_is_time(x) for x in samples):
        raise BadTimes(f"samples_ns: expected a list of positive numbers, got {samples!r}")
    for name in ("first_ns", "evals"):
        if not _is_time(answer.get(name)):
            raise BadTimes(f"{name}: expected a positive number, got {answer.get(name)!r}")
    if answer.get("cpu_ns") is not None and not (_is_time(answer["cpu_ns"]) or answer["cpu_ns"] == 0):
        raise BadTimes(f"cpu_ns: expected a number that is not negative, got {answer['cpu_ns']!r}")
    return [float(x) for x in samples]


def _is_time(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and x > 0


def check_believable(answer: dict[str, Any], wall_s: float, flops: int, most_gflops: float) -> None:
    """Raises BadTimes for times that cannot be: longer than the request took, or faster than the machine computes."""
    claimed = answer["evals"] * sum(answer["samples_ns"]) / 1e9
    if claimed > wall_s:
        raise BadTimes(f"samples_ns: {claimed:.3g} s of samples in a request that took {wall_s:.3g} s")
    fastest = min(answer["samples_ns"])
    if flops > most_gflops * fastest:
        raise BadTimes(
            f"samples_ns: {fastest:.3g} ns for {flops} floating-point operations, which no machine does:"
            f" more than {most_gflops:.0f} GFLOP/s"
        )
