"""What a report says about where it was made. Nothing that names the machine or its folders."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from .repository import ROOT


class Machine(msgspec.Struct, frozen=True):
    """Processor, cores that this process may use, system, and the versions of what judges."""

    cpu: str
    cores: int
    system: str
    python: str
    numpy: str


@cache
def describe_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        numpy=np.__version__,
    )


@cache
def git_commit(root: Path = ROOT) -> str:
    """The commit of the checkout, with a + when files differ from it; empty where there is none."""
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    return commit + ("+" if commit and _git(root, "status", "--porcelain") else "")


def now() -> str:
    """The time of a report, in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
