"""Caches that one port saves and another one continues: every ordered pair of the chosen ports, each with itself too.

A script runs in port A up to a `save`. Port B starts with a `load` of A's file and runs the rest. The oracle has
the whole script, so what B answers is judged as if one port had run all of it: a position, a code or a scale that
does not survive the file is an answer out of its bound.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .case import Case, Files
from .cases.cache_script import (
    CacheScript,
    LatentScript,
    contiguous,
    cross,
    paged,
    per_head,
    quantised,
    rotating,
)
from .features import features
from .judge import judge_answer
from .oracle import answer as oracle_answer
from .oracle.cache_state import EVICTING
from .oracle.kv_cache import predict_codes
from .outcome import Judgement, Result
from .questions import Narrowing, find_unclaimed
from .realise import realise
from .session import PortFault, Session
from .tensors import Tensors, write_tensors

SUITE = "pairs"
OP = "kv_cache"
DTYPES = ("f32", "bf16")
SIDE_BY_SIDE = 2
ROPE = {"base": 100.0}


@dataclass(frozen=True)
class Relay:
    """A script in one type: its inputs, all its answers, and after which step the file changes hands."""

    case: Case
    dtype: str
    inputs: Tensors
    expected: Tensors
    saved: int

    def part(self, steps: slice) -> Case:
        """The case of these steps alone, with what they write."""
        chosen = self.case.config["steps"][steps]
        names = [name for name in self.expected if any(_writes(step, name) for step in chosen)]
        codes = (self.case.steps or [])[steps]
        return Case(
            id=self.case.id,
            op=OP,
            config=self.case.config | {"steps": chosen},
            files=self.case.files,
            want=names,
            features=features(OP, self.case.config | {"steps": chosen}, self.inputs, names),
            steps=codes,
        )

    @cached_property
    def first(self) -> Case:
        """What port A does, the save included."""
        return self.part(slice(0, self.saved + 1))

    @cached_property
    def second(self) -> Case:
        """What port B does, the load included."""
        return self.part(slice(self.saved + 1, None))


def scripts() -> Iterator[CacheScript]:
    """A script of each kind, up to its save."""
    yield contiguous("contiguous").append(5, [5, 2]).evict(1, 4)
    yield contiguous("contiguous-rope", D=4, rope=ROPE).append(5, [5, 3]).evict(0).shift(-1, 1)
    yield contiguous("contiguous-rope-late", D=4, rope=ROPE, rope_at="attend").append(5, [5, 3]).shift(2, 1)
    yield contiguous("contiguous-track", track=True).append(5, [5, 2]).attend(2, causal=True).evict(1)
    yield per_head("per-head").append(5, [5, 3]).evict_by("key_norm", [4, 2])
    yield per_head("per-head-rope", D=4, rope=ROPE).append(5, [5, 4]).evict_by("window", [3, 0])
    late = per_head("per-head-track", D=4, rope=ROPE, rope_at="attend", track=True)
    yield late.append(5, [5, 4]).attend(2, causal=True).evict_by("window", [2, 4], sinks=1)
    yield rotating("rotating", 3, 1).append(6, [6, 2]).append(2, [1, 2])
    yield rotating("rotating-rope", 3, 1, D=4, rope=ROPE).append(7, [7, 1])
    yield rotating("rotating-rope-late", 3, 1, D=4, rope=ROPE, rope_at="attend").append(7, [7, 1])
    yield paged("paged", 3, 12).append(5, [5, 2]).fork("b").append(1).drop("b")
    yield paged("paged-rope", 3, 12, D=4, rope=ROPE).append(5, [5, 2])
    for name in ("f16", "bf16", "int8", "int4", "fp8_e4m3"):
        yield quantised(name, name, D=5).append(4, [4, 2])
    yield quantised("int8-group", "int8", D=5, group=2).append(4, [4, 2])
    yield quantised("int8-zero", "int8", D=5, zero_point=True).append(4, [4, 2])
    yield quantised("int4-zero-group", "int4", D=5, zero_point=True, group=3).append(4, [4, 2])
    yield quantised("int8-rope", "int8", D=4, rope=ROPE).append(4, [4, 2])
    for name in ("int8", "int4"):
        yield quantised(f"{name}-keys", name, D=5, key_groups=2).append(5, [5, 2])
    yield quantised("int4-keys-zero", "int4", D=5, key_groups=3, zero_point=True).append(7, [7, 4]).evict(1)
    yield quantised("int8-keys-rope", "int8", D=4, key_groups=2, rope=ROPE).append(5, [5, 2])
    both = quantised("int8-keys-track", "int8", D=4, key_groups=2, rope=ROPE, rope_at="attend", track=True)
    yield both.append(5, [5, 3]).attend(2, causal=True)
    yield LatentScript("latent").append(4, [4, 2])
    yield LatentScript("latent-capacity", capacity=7).append(4, [4, 2])
    yield cross("cross").append(4, [4, 2])


def list_relays(dtypes: Sequence[str], folder: Path) -> Iterator[Relay]:
    """Every script in every type, its inputs as files in the folder."""
    for script in scripts():
        kind, before = script.kind["kind"], len(script.steps) + 1
        tracked = bool(script.kind.get("track"))
        script.attend(1).save().load().read(positions=True, tracked=tracked).attend(2, q_offset=3)
        if kind != "cross":
            script.append(2, [2, 1]).attend(2, causal=True).append(1)
        if kind not in ("cross", "per_head"):
            script.truncate(6, 2)
        if kind in EVICTING:
            script.evict_by("heavy_hitters" if tracked else "key_norm", 4, sinks=1)
        with_codes = kind == "quantised" and script.exact_keys
        script.reorder(1, 0).attend(1).read(positions=True, codes=with_codes, tracked=tracked).stats()
        draft = script.draft("")
        steps = 1 + next(n for n, step in enumerate(script.steps) if step["do"] == "stats")  # no replay
        config = draft.config | {"steps": draft.config["steps"][:steps]}
        for dtype in dtypes:
            inputs, _ = realise(draft, dtype, answers=False)
            codes = predict_codes(config, inputs)
            path = folder / f"{script.name}.{dtype}.safetensors"
            sums = {"inputs": write_tensors(path, inputs)}
            case = Case(
                id=f"{SUITE}/{script.name}",
                op=OP,
                config=config,
                files={dtype: Files(str(path), None, sums)},
                steps=codes,
                exact=list(draft.exact),
            )
            yield Relay(case, dtype, inputs, oracle_answer(OP, config, inputs, codes), before)


def check_pairs(sessions: Sequence[Session], narrowing: Narrowing) -> dict[str, list[Result]]:
    """The results of each port as the one that continues. The sessions were started, and stay usable."""
    able = [session for session in sessions if session.claims is not None and OP in session.claims.ops]
    if narrowing.variants:
        able = [session for session in able if _variant(session) in narrowing.variants]
    dtypes = [dtype for dtype in DTYPES if not narrowing.dtypes or dtype in narrowing.dtypes]
    with tempfile.TemporaryDirectory(prefix="conformance-") as name, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        folder = Path(name)
        relays = list(list_relays(dtypes, folder))
        given = list(pool.map(lambda session: _give_all(session, relays, folder), able))
        files = {session.port.name: files for session, files in zip(able, given, strict=True)}
        taken = pool.map(lambda session: _take_all(session, relays, files, folder), able)
        return {session.port.name: results for session, results in zip(able, taken, strict=True)}


def _give_all(giver: Session, relays: Sequence[Relay], folder: Path) -> dict[int, Judgement]:
    """Every first half that the port claims, by the relay's number; the files lie in a folder of each."""
    found = {}
    for number, relay in enumerate(relays):
        if giver.claims is not None and not find_unclaimed(giver.claims, relay.first, relay.dtype):
            shared = _folder(folder, number, giver.port.name)
            shared.mkdir()
            found[number] = _ask(giver, relay, relay.first, shared / "first.safetensors")
    return found


def _take_all(
    taker: Session, relays: Sequence[Relay], files: Mapping[str, Mapping[int, Judgement]], folder: Path
) -> list[Result]:
    """Every second half that the port claims, on the file of each port that left one."""
    results = []
    for number, relay in enumerate(relays):
        if taker.claims is None or find_unclaimed(taker.claims, relay.second, relay.dtype):
            continue
        for giver, given in files.items():
            if number in given:
                shared = _folder(folder, number, giver)
                results.append(_continue(giver, taker, relay, given[number], shared))
    return results


def _continue(giver: str, taker: Session, relay: Relay, given: Judgement, folder: Path) -> Result:
    """The second half, on the file that the first one left."""
    started = time.monotonic()
    if given.outcome == "pass":
        judgement = _ask(taker, relay, relay.second, folder / f"to-{taker.port.name}.safetensors")
    else:
        judgement = Judgement(given.outcome, f"no file to go on from, {giver}: {given.message}")
    return Result(
        port=taker.port.name,
        suite=SUITE,
        case=f"{relay.case.id}/{giver}-to-{taker.port.name}",
        dtype=relay.dtype,
        variant=_variant(taker),
        judgement=judgement,
        seconds=round(time.monotonic() - started, 6),
    )


def _folder(folder: Path, number: int, giver: str) -> Path:
    return folder / f"{number}-{giver}"


def _ask(session: Session, relay: Relay, part: Case, outputs: Path) -> Judgement:
    """One half of the script, judged by the whole of it."""
    request: dict[str, Any] = {
        "case": part.id,
        "op": OP,
        "variant": _variant(session),
        "config": part.config,
        "inputs": relay.case.files[relay.dtype].inputs,
        "outputs": str(outputs),
        "want": part.want,
    }
    try:
        got = session.run(request)
    except PortFault as fault:
        return Judgement(fault.outcome, str(fault))
    if got.get("status") == "ok" and got.get("steps") != part.steps:
        return Judgement("fail", f"steps: expected {part.steps}, got {got.get('steps')}")
    if got.get("status") == "unsupported":
        return Judgement("fail", f"claimed all of it, then answered unsupported: {got.get('feature')}")
    whole = Case(
        id=relay.case.id,
        op=OP,
        config=relay.case.config,
        files=relay.case.files,
        want=part.want,
        steps=relay.case.steps,
        exact=relay.case.exact,
    )
    answer = {**got, "steps": relay.case.steps}
    return judge_answer(whole, relay.dtype, answer, relay.inputs, relay.expected, outputs)


def _variant(session: Session) -> str:
    assert session.claims is not None
    return session.claims.ops[OP].variants[0]


def _writes(step: dict[str, Any], name: str) -> bool:
    """Whether an output is the step's."""
    if step["do"] in ("read", "stats"):
        return name.startswith(f"{step['out']}.")
    return name in (step.get("out"), step.get("lse"))
