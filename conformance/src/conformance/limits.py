"""What the machine can do at most, measured by a native helper in the same run as the ports.

The helper (`rust/attention/examples/limits.rs`) is compiled by rustc alone when it is first needed, so that the bench
waits for no build of the library. Without a Rust compiler there are no limits, and the report says so.
"""

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from .repository import ROOT

SOURCE = ROOT / "rust/attention/examples/limits.rs"
BUILT = ROOT / "conformance/.cache/limits"
NODE = ROOT / ".tools/bin/node"
WASM = ROOT / "conformance/peers/node/wasm_limit.js"
EDITION = "2024"
COMPILE_S = 120
PATIENCE_S = 60  # beyond the time that the measurements themselves are given


class Limits(msgspec.Struct, frozen=True, tag_field="kind", tag="limits"):
    """One measurement, of one thread in f32. tier: the instruction set of its loops.

    fma_gflops: a loop of multiply-adds in registers. read_gbs, read4_gbs: memory that is read as one stream, or as
    four that are walked at once. copy_gbs: memory that is copied, read and written bytes together.
    mebibytes: how much memory that was. wasm_gflops: such a loop in WebAssembly, in Node; 0 where there is none.
    """

    tier: str
    fma_gflops: float
    read_gbs: float
    read4_gbs: float
    copy_gbs: float
    mebibytes: int
    wasm_gflops: float = 0.0


class NoLimits(Exception):
    """They could not be measured; the message says why."""


def measure_limits(seconds: float, mebibytes: int = 512) -> Limits:
    """The limits of this machine, `seconds` spent on each of the four. Raises NoLimits."""
    command = [str(build_helper()), f"{seconds:g}", str(mebibytes)]
    answer = _run(command, PATIENCE_S + 4 * seconds)
    try:
        found = msgspec.json.decode(b'{"kind":"limits",' + answer.strip().removeprefix(b"{"), type=Limits)
    except msgspec.MsgspecError as error:
        raise NoLimits(f"the helper answered something else than limits: {error}") from None
    if min(found.fma_gflops, found.read_gbs, found.read4_gbs, found.copy_gbs) <= 0:
        raise NoLimits(f"the helper measured nothing: {answer.decode(errors='replace').strip()}")
    return msgspec.structs.replace(found, wasm_gflops=_measure_wasm(seconds))


def _measure_wasm(seconds: float) -> float:
    """GFLOP/s; 0 where Node is not installed or does not run it."""
    if not NODE.exists():
        return 0.0
    try:
        answer = _run([str(NODE), str(WASM), f"{seconds:g}"], PATIENCE_S + seconds)
        return float(msgspec.json.decode(answer)["gflops"])
    except (NoLimits, msgspec.DecodeError, KeyError, TypeError, ValueError):
        return 0.0


def build_helper(source: Path = SOURCE, folder: Path = BUILT) -> Path:
    """The program, compiled for this text of it and this compiler, unless it is there. Raises NoLimits."""
    compiler = shutil.which("rustc")
    if compiler is None:
        raise NoLimits("no rustc on the PATH to compile the helper with")
    try:
        text = source.read_bytes()
    except OSError as error:
        raise NoLimits(f"{source.name}: {error.strerror}") from None
    key = hashlib.sha256(text + _run([compiler, "--version"], COMPILE_S)).hexdigest()[:16]
    program = folder / f"limits-{key}"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / f"{program.name}.new"
        _run([compiler, "--edition", EDITION, "-C", "opt-level=3", "-o", str(made), str(source)], COMPILE_S)
        made.replace(program)
    return program


def best_of(found: Sequence[Limits]) -> Limits | None:
    """The highest of each figure: what else the machine did can only have lowered one."""
    if not found:
        return None
    return Limits(
        tier=found[0].tier,
        fma_gflops=max(each.fma_gflops for each in found),
        read_gbs=max(each.read_gbs for each in found),
        read4_gbs=max(each.read4_gbs for each in found),
        copy_gbs=max(each.copy_gbs for each in found),
        mebibytes=found[0].mebibytes,
        wasm_gflops=max(each.wasm_gflops for each in found),
    )


def _run(command: Sequence[str], seconds: float) -> bytes:
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=seconds)
    except OSError as error:
        raise NoLimits(f"{name}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise NoLimits(f"{name}: not done within {seconds:g} s") from None
    if done.returncode:
        tail = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise NoLimits(f"{name}: exit status {done.returncode}{': ' if tail else ''}{''.join(tail)}")
    return done.stdout
