"""The command `conformance kv-bytes`: how many bytes a token takes in each kind of cache, as ports say it.

Every port is driven by the protocol alone: it appends the same tokens to a cache of each kind and is asked for `stats`.
All that are asked must answer with the same number.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from .case import Case, Files
from .features import features
from .inputs import Draw
from .lines_file import read_lines, write_lines
from .machine import now
from .ports import Port
from .questions import find_unclaimed
from .repository import ROOT
from .session import PortFault, Session
from .tensors import NUMPY_DTYPES, Tensors, read_tensors, write_tensors

FORMAT = 1
DEFAULT_KV_BYTES = ROOT / "site/kv-bytes.jsonl"
OP = "kv_cache"
SIDE_BY_SIDE = 2
TOKENS, HEADS, HEAD_DIM = 1024, 8, 128
WINDOW, PAGE, BUDGET, SINKS, KEY_GROUP = 256, 16, 256, 4, 32
LATENT, ROPE = 512, 64
FULL = "contiguous f32"
SIZES = {"batch": 1, "num_kv_heads": HEADS, "head_dim": HEAD_DIM}


@dataclass(frozen=True)
class Kept:
    """One way to keep tokens. steps: what comes after the append of all but the last token, and of that one."""

    name: str
    config: dict[str, Any]
    dtype: str = "f32"
    steps: tuple[dict[str, Any], ...] = ()


KINDS: tuple[Kept, ...] = (
    Kept(FULL, {"kind": "contiguous"}),
    Kept("contiguous f16", {"kind": "contiguous"}, "f16"),
    Kept(f"rotating, window {WINDOW}", {"kind": "rotating", "window": WINDOW}),
    Kept(f"paged, {PAGE} a page", {"kind": "paged", "page_size": PAGE, "num_pages": TOKENS // PAGE}),
    *(
        Kept(f"quantised {name}", {"kind": "quantised", "format": name})
        for name in ("f16", "bf16", "int8", "int4", "fp8_e4m3")
    ),
    *(
        Kept(
            f"quantised {name}, keys by {KEY_GROUP} tokens",
            {"kind": "quantised", "format": name, "key_groups": KEY_GROUP},
        )
        for name in ("int8", "int4")
    ),
    Kept(f"latent {LATENT} + {ROPE}", {"kind": "latent", "latent_dim": LATENT, "rope_dim": ROPE}),
    Kept("cross", {"kind": "cross"}),
    Kept(
        f"contiguous, {BUDGET} kept by a policy",
        {"kind": "contiguous"},
        steps=({"do": "evict", "policy": {"type": "window", "budget": BUDGET, "sinks": SINKS}},),
    ),
)


class Row(msgspec.Struct, frozen=True, tag_field="kind", tag="row"):
    """One way to keep tokens. held: bytes of all of them by port, of those that keep tokens so."""

    name: str
    slots: int
    held: dict[str, int]

    @property
    def bytes(self) -> int:
        """What most ports say; 0 where none was asked."""
        return Counter(self.held.values()).most_common(1)[0][0] if self.held else 0


class KvBytesHeader(msgspec.Struct, frozen=True, tag_field="kind", tag="header"):
    """What was asked. without: why a port that was chosen says nothing at all."""

    format: int
    date: str
    tokens: int
    heads: int
    head_dim: int
    ports: list[str]
    without: dict[str, str]


class KvBytesFooter(msgspec.Struct, frozen=True, tag_field="kind", tag="footer"):
    """What went wrong: a port that failed, or says another number than the others."""

    problems: list[str]


@dataclass(frozen=True)
class KvBytes:
    """The whole file."""

    header: KvBytesHeader
    rows: list[Row]
    footer: KvBytesFooter

    def a_token(self, row: Row) -> float:
        """Bytes of one of the tokens that were appended, kept or not."""
        return row.bytes / self.header.tokens

    def share(self, row: Row) -> float:
        """Of what keys and values in f32 take; NaN where nobody told that."""
        full = next((other.bytes for other in self.rows if other.name == FULL), 0)
        return row.bytes / full if full else float("nan")


def run_kv_bytes(
    ports: Sequence[Port],
    file: Path = DEFAULT_KV_BYTES,
    *,
    tokens: int = TOKENS,
    tick: Callable[[str], None] = lambda name: None,
) -> KvBytes:
    """Asks every port, two at a time, and writes the file."""
    with (
        tempfile.TemporaryDirectory(prefix="conformance-kv-bytes-") as name,
        ThreadPoolExecutor(SIDE_BY_SIDE) as pool,
    ):
        cases = [_write(kept, tokens, Path(name)) for kept in KINDS]
        told = list(pool.map(lambda port: _ask_all(port, cases, Path(name), tick), ports))
    without = {
        port.name: "it claims no cache that says what it holds"
        for port, (found, fault) in zip(ports, told, strict=True)
        if not found and not fault
    }
    problems = [f"{port.name}: {fault}" for port, (_, fault) in zip(ports, told, strict=True) if fault]
    rows = []
    for kept in KINDS:
        answers = {
            port.name: found[kept.name]
            for port, (found, _) in zip(ports, told, strict=True)
            if kept.name in found
        }
        for what, said in zip(("bytes", "slots"), zip(*answers.values(), strict=True), strict=False):
            if len(set(said)) > 1:
                each = ", ".join(f"{port} {n}" for port, n in zip(answers, said, strict=True))
                problems.append(f"{kept.name}: ports hold different numbers of {what}: {each}")
        held = {port: number for port, (number, _) in answers.items()}
        rows.append(Row(kept.name, min((slots for _, slots in answers.values()), default=0), held))
    asked = [port.name for port in ports if port.name not in without]
    header = KvBytesHeader(FORMAT, now(), tokens, HEADS, HEAD_DIM, asked, without)
    footer = KvBytesFooter(problems)
    write_lines(file, header, rows, footer)
    return KvBytes(header, rows, footer)


def read_kv_bytes(path: Path = DEFAULT_KV_BYTES) -> KvBytes:
    """A finished file. Raises UsageError."""
    return KvBytes(*read_lines(path, KvBytesHeader, Row, KvBytesFooter, "conformance kv-bytes"))


class _WrongAnswer(Exception):
    """An answer to a question that the port claims to know which tells no bytes."""


def _write(kept: Kept, tokens: int, folder: Path) -> Case:
    """The question; its inputs are a file of the folder, shared by all that take the same.

    The last token comes by itself, since a rotating cache forgets before it adds: a chunk stays whole.
    """
    latent, once = kept.config["kind"] == "latent", kept.config["kind"] == "cross"
    counts = (tokens,) if once else (tokens - 1, 1)
    parts = ("latent", "rope_key") if latent else ("k", "v")
    path = folder / f"{'-'.join(parts)}-{len(counts)}.{kept.dtype}.safetensors"
    if not path.exists():
        draw = Draw("kv-bytes")
        shapes = {"latent": (LATENT,), "rope_key": (ROPE,)}
        inputs: Tensors = {}
        for n, count in enumerate(counts):
            for part in parts:
                x = draw.normal(1, count, *shapes[part]) if latent else draw.normal(1, HEADS, count, HEAD_DIM)
                inputs[f"{part}{n}"] = x.astype(NUMPY_DTYPES[kept.dtype])
        write_tensors(path, inputs)
    appends = [{"do": "append"} | {part: f"{part}{n}" for part in parts} for n in range(len(counts))]
    steps = [*appends, *kept.steps, {"do": "stats", "out": "stats"}]
    sizes: dict[str, Any] = {"batch": 1} if latent else SIZES
    config = kept.config | sizes | {"steps": steps}
    want = ["stats.positions", "stats.bytes"]
    return Case(
        id=f"kv-bytes/{kept.name.replace(' ', '-')}",
        op=OP,
        config=config,
        files={kept.dtype: Files(str(path), None)},
        want=want,
        features=features(OP, config, {}, want),
        steps=["ok"] * len(steps),
    )


def _ask_all(
    port: Port, cases: Sequence[Case], folder: Path, tick: Callable[[str], None]
) -> tuple[dict[str, tuple[int, int]], str]:
    """Bytes and slots held for each way that the port claims, and what went wrong if anything did."""
    found: dict[str, tuple[int, int]] = {}
    outputs = folder / f"{port.name}.safetensors"
    try:
        with Session(port) as session:
            claims = session.start()
            for kept, case in zip(KINDS, cases, strict=True):
                if OP in claims.ops and not find_unclaimed(claims, case, kept.dtype):
                    found[kept.name] = _ask(session, case, kept, outputs)
                tick(port.name)
            session.stop()
    except (PortFault, _WrongAnswer) as fault:
        return found, str(fault)
    return found, ""


def _ask(session: Session, case: Case, kept: Kept, outputs: Path) -> tuple[int, int]:
    """Bytes and slots held. Raises PortFault, _WrongAnswer."""
    outputs.unlink(missing_ok=True)
    assert session.claims is not None
    request = {
        "case": case.id,
        "op": OP,
        "variant": session.claims.ops[OP].variants[0],
        "config": case.config,
        "inputs": case.files[kept.dtype].inputs,
        "outputs": str(outputs),
        "want": case.want,
    }
    answer = session.run(request)
    if answer.get("status") != "ok" or answer.get("steps") != case.steps:
        raise _WrongAnswer(f"{kept.name}: expected every step to be ok, got {answer}")
    try:
        found = read_tensors(outputs)
        return int(found["stats.bytes"].item()), int(np.sum(found["stats.positions"]))
    except (OSError, KeyError, ValueError) as error:
        raise _WrongAnswer(f"{kept.name}: no stats to read: {type(error).__name__}: {error}") from None
