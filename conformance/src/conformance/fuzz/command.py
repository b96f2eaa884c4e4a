"""The command `conformance fuzz`: a campaign, and what a person reads of it."""

import re
import secrets
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ..errors import UsageError
from ..outcome import OUTCOMES
from ..ports import Port, check_names
from ..repository import ROOT
from ..session import PortGivenUp
from .campaign import KERNELS, QUESTIONS, describe, run_campaign

FOLDER = ROOT / "site" / "fuzz"
FOUND = re.compile(rf"({'|'.join(QUESTIONS)})-\d+")  # as write_disagreement names a folder


def run_fuzz(
    ports: Sequence[Port],
    ops: Sequence[str],
    count: int,
    seed: int,
    out: Path | None,
    console: Console,
    *,
    for_kernels: bool = False,
) -> int:
    """The exit status: 1 when any port disagreed, or none answered. for_kernels: questions that kernels get wrong.

    Raises UsageError for an unknown op and a dead port.
    """
    known = list(KERNELS if for_kernels else QUESTIONS)
    check_names("op", ops, known)
    seed = seed or secrets.randbelow(2**31)
    folder = out or FOLDER
    for old in folder.glob("*/manifest.json"):
        if FOUND.fullmatch(old.parent.name):  # of an earlier campaign, and nothing else that lies there
            shutil.rmtree(old.parent)
    started = time.monotonic()
    console.print(
        f"fuzz: seed {seed}, {count} questions{' for kernels' if for_kernels else ''},"
        f" {', '.join(port.name for port in ports)}",
        highlight=False,
    )
    try:
        tally = run_campaign(ports, ops or known, count, seed, folder, console, for_kernels=for_kernels)
    except PortGivenUp as fault:
        raise UsageError(f"fuzz: {fault}") from None
    for found, target in zip(tally.found, tally.folders, strict=True):
        for line in describe(found, target):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    answers = ", ".join(
        f"{tally.answers[outcome]} {outcome}" for outcome in OUTCOMES if tally.answers[outcome]
    )
    console.print(
        f"fuzz: {tally.questions.total()} questions ({tally.errors} of them bad on purpose), {answers};"
        f" {len(tally.found)} disagreements; seed {seed} ({time.monotonic() - started:.0f} s)",
        style="red" if tally.found else "green",
        highlight=False,
        soft_wrap=True,
    )
    if not tally.answers:
        console.print(
            "fuzz: no port claims any of these ops: nothing was asked", style="red", highlight=False
        )
    return 1 if tally.found or not tally.answers else 0
