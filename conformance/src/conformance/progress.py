"""How far a long command is: bars on a terminal, plain lines elsewhere."""

import threading
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

BAD_STYLE = "red"


class Bars:
    """A bar for each name. Safe to use from threads; nothing to see without a terminal."""

    def __init__(self, console: Console, totals: dict[str, int]) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._totals = totals
        self._done = dict.fromkeys(totals, 0)
        self._bad = dict.fromkeys(totals, 0)
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description:<12}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(f"[{BAD_STYLE}]{{task.fields[bad]}}"),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            self._tasks = {
                name: self._progress.add_task(name, total=total, bad="") for name, total in totals.items()
            }

    def __enter__(self) -> "Bars":
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def tick(self, name: str, bad: bool = False) -> None:
        """One more of `name` is done."""
        with self._lock:
            self._done[name] += 1
            self._bad[name] += bad
            if self._progress is not None:
                shown = f"{self._bad[name]} bad" if self._bad[name] else ""
                self._progress.update(self._tasks[name], advance=1, bad=shown)

    def say_plain(self, line: str) -> None:
        """The line where there are no bars to look at."""
        if self._progress is None:
            self.say(line)

    def say(self, line: str) -> None:
        """A plain line, above the bars where there are any."""
        with self._lock:
            (self._progress.console if self._progress is not None else self._console).print(
                line, highlight=False, markup=False, soft_wrap=True
            )
