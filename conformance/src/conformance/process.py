"""One process that speaks lines: started in a group of its own, read by threads, killed with its children.

Knows pipes and deadlines, nothing of the protocol. stdout and stderr are drained by threads, so that a port
can log as much as it likes without ever blocking, and so that a line which came too early or too often is
still seen.
"""

import contextlib
import os
import queue
import select
import signal
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

# An answer has no tensors in it: more than this is a port that does not stop talking.
LONGEST_LINE = 4 * 2**20
STDERR_KEPT = 16 * 2**10
CHUNK = 2**16
EXIT_GRACE_S = 1.0  # from the end of stdout to the end of the process
LOOK_S = 0.25  # how often a wait looks whether the process is still there

_running: "weakref.WeakSet[LineProcess]" = weakref.WeakSet()


class ProcessEnded(Exception):
    """No line can come any more; the message says how the process ended."""


class NoAnswer(Exception):
    """The deadline passed; the message says what had come by then."""


class LineProcess:
    """A running command with lines in and lines out. Deadlines are values of time.monotonic()."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        """Raises OSError when the command cannot be started."""
        self._popen = subprocess.Popen(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._popen.stdin is not None
        self._stdin = self._popen.stdin.fileno()
        os.set_blocking(self._stdin, False)
        self._chunks: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
        self._lines: deque[bytes] = deque()
        self._partial = b""
        self._too_long = False
        self._ended = False
        self._stderr: deque[bytes] = deque()
        self._threads = [
            threading.Thread(target=self._read_stdout, daemon=True),
            threading.Thread(target=self._read_stderr, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        _running.add(self)

    @property
    def pid(self) -> int:
        """The process id, which is also that of its group."""
        return self._popen.pid

    def send(self, line: bytes, deadline: float) -> None:
        """Writes the line. Raises ProcessEnded, or NoAnswer when the process does not read in time."""
        rest = memoryview(line)
        while rest:
            ready = select.select([], [self._stdin], [], max(0.0, deadline - time.monotonic()))[1]
            if not ready:
                raise NoAnswer("it does not read its input")
            try:
                rest = rest[os.write(self._stdin, rest) :]
            except BlockingIOError:
                continue
            except OSError:
                raise ProcessEnded(self._how_it_ended()) from None

    def receive(self, deadline: float) -> bytes:
        """The next line without its end. Raises ProcessEnded, NoAnswer."""
        gone_since: float | None = None
        while not self._lines:
            now = time.monotonic()
            if self._ended or (gone_since is not None and now - gone_since > EXIT_GRACE_S):
                raise ProcessEnded(self._how_it_ended())
            if now >= deadline:
                raise NoAnswer(self._what_came())
            with contextlib.suppress(queue.Empty):
                self._take(self._chunks.get(timeout=min(LOOK_S, deadline - now)))
            # A child that outlives the port can hold stdout open, so its end alone does not tell.
            if gone_since is None and self._popen.poll() is not None:
                gone_since = time.monotonic()
        return self._lines.popleft()

    def pending(self) -> list[bytes]:
        """Lines that have come and were not received; does not wait."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(self._chunks.get_nowait())
        lines = list(self._lines)
        self._lines.clear()
        return lines

    def wait(self, seconds: float) -> int | None:
        """The exit status, or None when the process is still there after that time."""
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def close_input(self) -> None:
        """End of input, which means stop."""
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError):
            self._popen.stdin.close()

    def kill(self) -> str:
        """Ends the process and all that it started, and returns the end of its stderr. Safe to call again."""
        _running.discard(self)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        self.close_input()
        for thread in self._threads:  # what is still in the pipes is read before the threads end
            thread.join(1.0)
        return b"".join(self._stderr)[-STDERR_KEPT:].decode(errors="replace").strip()

    def _take(self, chunk: list[bytes] | None) -> None:
        if chunk is None:
            self._ended = True
        else:
            self._lines.extend(chunk)

    def _read_stdout(self) -> None:
        """Hands lines over in the portions in which they came, so that two lines at once are seen at once."""
        assert self._popen.stdout is not None
        rest = b""
        while data := _read(self._popen.stdout.fileno()):
            *lines, rest = (rest + data).split(b"\n")
            self._partial = rest
            if lines:
                self._chunks.put(lines)
            if len(rest) > LONGEST_LINE:
                self._too_long = True
                break
        self._chunks.put(None)

    def _read_stderr(self) -> None:
        assert self._popen.stderr is not None
        kept = 0
        while data := _read(self._popen.stderr.fileno()):
            self._stderr.append(data)
            kept += len(data)
            while kept - len(self._stderr[0]) > STDERR_KEPT:
                kept -= len(self._stderr.popleft())

    def _what_came(self) -> str:
        return f"only an unfinished line came: {show(self._partial)}" if self._partial else "nothing came"

    def _how_it_ended(self) -> str:
        status = self.wait(EXIT_GRACE_S)
        if self._too_long:
            how = f"it wrote a line of more than {LONGEST_LINE} bytes"
        elif status is None:
            how = "it closed its stdout and went on running"
        elif status < 0:
            how = f"it died of {signal.Signals(-status).name}"
        else:
            how = f"it ended with exit status {status}"
        return f"{how}, in the middle of a line: {show(self._partial)}" if self._partial else how


def kill_all() -> None:
    """Ends every process that is still there, as when the run is interrupted."""
    for process in list(_running):
        process.kill()


def show(line: bytes, limit: int = 200) -> str:
    """A line as a message quotes it: escaped and cut."""
    text = repr(line[:limit].decode(errors="backslashreplace"))
    return text if len(line) <= limit else f"{text}... ({len(line)} bytes)"


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, CHUNK)
    except OSError:  # closed under the thread, when the process is being killed
        return b""
