"""The command `conformance ports`: what there is, and on request what each one says of itself."""

from collections.abc import Sequence

from rich.console import Console

from .ports import Port
from .session import PortFault, Session


def show_ports(ports: Sequence[Port], console: Console, *, start: bool = False) -> int:
    """A line for each port; with `start` also its answer to start. 1 when one of them did not start."""
    status = 0
    for port in ports:
        _say(console, f"{port.name:<12} {port.kind:<5} {port.language:<12} {' '.join(port.command)}")
        if start:
            with Session(port) as session:
                try:
                    claims = session.start()
                    session.stop()
                except PortFault as fault:
                    status = 1
                    _say(console, f"    {fault}")
                    continue
            _say(console, f"    {claims.runtime or 'runtime not said'}, {claims.threads} thread(s)")
            for op, claim in claims.ops.items():
                kinds = f"{', '.join(claim.variants)} in {', '.join(claim.dtypes)}"
                _say(console, f"    {op}: {kinds}; {', '.join(claim.features) or 'no features'}")
    return status


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
