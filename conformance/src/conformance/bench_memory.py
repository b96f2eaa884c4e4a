"""How much memory a call takes, beside its time: a few lengths, in processes of their own."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from .bench_file import Memory
from .bench_plan import MOST_MEMORY_S, Rates
from .errors import UsageError
from .memory import HEAD_DIM, can_measure, measure, write_inputs
from .session import Session

TABLE = (
    "naive",
    "split",
    "folded",
    "compiled",
)  # the rungs that hold the scores of all keys: their memory is known


def measure_memory(
    sessions: Sequence[Session], lengths: Sequence[int], rates: Rates, problems: list[str]
) -> list[Memory]:
    """Of every rung of a port of ours that does not hold a table, where its rate lets one wait for it.

    A measurement that fails is told among the problems.
    """
    if not lengths or not can_measure():
        return []
    found = []
    with tempfile.TemporaryDirectory(prefix="conformance-memory-") as name:
        folder = Path(name)
        write_inputs(folder, lengths)
        for session in sessions:
            if session.port.kind != "port" or session.claims is None or "sdpa" not in session.claims.ops:
                continue
            for variant in session.claims.ops["sdpa"].variants:
                rate = rates.fastest("sdpa", session.port.name, variant)
                for length in lengths if variant not in TABLE else ():
                    if 4 * length**2 * HEAD_DIM > MOST_MEMORY_S * 1e9 * rate:
                        continue
                    try:
                        taken = measure(session.port, variant, length, folder)
                    except UsageError as error:
                        problems.append(str(error))
                        continue
                    found.append(Memory(session.port.name, variant, length, taken))
    return found
