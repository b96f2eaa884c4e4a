"""What the scripts share: where things are, running a command into a log, stamps, and one line per step."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin/python"
TOOLS = ROOT / ".tools"
LOGS = TOOLS / "log"

TAIL_LINES = 40
# What tools write into the language folders: no build depends on it.
MADE_FOLDERS = {"target", "node_modules", "__pycache__", "build", "dist"}
MADE_SUFFIXES = {".so", ".pyc"}


class SetupError(Exception):
    """A step failed. The message is written for the person who typed the command."""


def say(line: str) -> None:
    """One plain line, at once, also when the output is a file."""
    print(line, flush=True)


def fail(message: str) -> int:
    """Says why on stderr; the value is the exit status."""
    print(message, file=sys.stderr, flush=True)
    return 1


@contextmanager
def step(what: str) -> Iterator[None]:
    """One line: what is being done and, once it is, the seconds it took."""
    print(f"  {what:<64}", end="", flush=True)
    started = time.monotonic()
    try:
        yield
    except BaseException:
        print("  FAILED", flush=True)
        raise
    print(f"{time.monotonic() - started:6.1f} s", flush=True)


@contextmanager
def beside(what: str, work: Callable[[], None] | None) -> Iterator[None]:
    """Does a long step in a thread of its own while the steps of the block are done, and then waits for it.

    A failure of it is raised when it is waited for. One of the block is raised once the long step has ended, which
    thus is not lost.
    """
    if work is None:
        yield
        return
    say(f"  {what}: begins, beside the steps that follow")
    with ThreadPoolExecutor(1) as thread:
        begun = thread.submit(work)
        yield
        with step(f"{what}: what is left of it"):
            begun.result()


def tool_environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of every command: the checkout's own tools come first."""
    own = {
        "VIRTUAL_ENV": str(VENV),
        "PATH": os.pathsep.join([str(VENV / "bin"), str(TOOLS / "bin"), os.environ.get("PATH", "")]),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYO3_PYTHON": str(VENV_PYTHON),
        # Empty is unset. Images of containers set it, and each of the hundreds of Pythons that the tests start would
        # compile NumPy anew, which is half of its start.
        "PYTHONDONTWRITEBYTECODE": "",
        "NO_COLOR": "1",
        "CARGO_TERM_COLOR": "never",
    }
    return os.environ | own | (extra or {})


def log_path(log: str) -> Path:
    """Where the full output of a step is kept."""
    LOGS.mkdir(parents=True, exist_ok=True)
    return LOGS / f"{log}.log"


def run_logged(
    command: Sequence[str], log: str, *, cwd: Path = ROOT, env: dict[str, str] | None = None
) -> None:
    """Runs a command with its output appended to a log; a failure shows the end of what it said."""
    path = log_path(log)
    line = " ".join(command)
    with path.open("ab") as stream:
        stream.write(f"\n$ {line}\n".encode())
        stream.flush()
        start = stream.tell()
        try:
            status = subprocess.run(
                command,
                cwd=cwd,
                env=tool_environment(env),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        except OSError as error:
            raise SetupError(f"cannot start {command[0]}: {error.strerror}") from None
    if status != 0:
        said = tail_of(path, start)
        raise SetupError(f"{said}\n`{line}` ended with status {status}; all of its output: {relative(path)}")


def tail_of(log: Path, start: int = 0) -> str:
    """The last lines of a log (from a byte on), set off for the console."""
    text = re.sub(r"\x1b\[[\d;]*m", "", log.read_bytes()[start:].decode(errors="replace"))
    lines = text.splitlines()[-TAIL_LINES:]
    return "\n".join(f"    | {line}" for line in lines)


def relative(path: Path) -> str:
    """A path as a reader sees it from the checkout."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def source_files(folder: Path) -> Iterator[Path]:
    """The files below a folder that people wrote, without what tools made."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in MADE_FOLDERS and name[0] != "."]
        for name in files:
            path = Path(parent, name)
            if path.suffix not in MADE_SUFFIXES and path.is_file():
                yield path


def hash_files(paths: Iterable[Path], *words: str) -> str:
    """One hash over the names and contents of files, and over words that matter beside them."""
    digest = hashlib.sha256("\0".join(words).encode())
    for path in sorted(paths):
        digest.update(f"\0{relative(path)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def is_stamped(stamp: Path, value: str) -> bool:
    """Whether a step was finished for exactly this input."""
    return stamp.is_file() and stamp.read_text() == value


def write_stamp(stamp: Path, value: str) -> None:
    """Notes that a step is finished. Written last, so that an interrupted step is done again."""
    stamp.parent.mkdir(parents=True, exist_ok=True)
    temporary = stamp.with_suffix(".new")
    temporary.write_text(value)
    temporary.replace(stamp)


def write_executable(path: Path, text: str) -> bool:
    """Writes a small script; false when it is there already."""
    if path.is_file() and not path.is_symlink() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return True
