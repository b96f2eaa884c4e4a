"""The campaign for kernels: what it draws, that a seed decides it, and the kernels that only such questions catch."""

import io
import sys
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from conformance.cli import app
from conformance.conform import Options, run_conformance
from conformance.errors import UsageError
from conformance.fixtures import load_folder
from conformance.fuzz.campaign import Drawn, Tally, draw_question, run_campaign
from conformance.fuzz.command import run_fuzz
from conformance.fuzz.kernels import GROUPS, MOST_KEYS, UNITS, WIDTHS, unseen_keys
from conformance.oracle.sdpa import visible_keys
from conformance.ports import Port

LIARS = Path(__file__).parent / "liars"
SEED = 3
ENOUGH = 600


def port(script: str) -> Port:
    return Port(
        name=script, language="Python", kind="port", command=[sys.executable, str(LIARS / f"{script}.py")]
    )


def campaign(script: str, count: int, folder: Path) -> Tally:
    console = Console(file=io.StringIO())
    return run_campaign([port(script)], ["sdpa"], count, SEED, folder, console, for_kernels=True)


def draw(count: int, seed: int) -> list[Drawn]:
    drawn: list[Drawn] = []

    def one(data: st.DataObject) -> None:
        drawn.append(draw_question(data.draw, "sdpa", for_kernels=True))

    settings = hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    hypothesis.seed(seed)(settings(hypothesis.given(st.data())(one)))()
    return drawn


@pytest.fixture(scope="module")
def many() -> list[Drawn]:
    return draw(ENOUGH, SEED)


def test_lengths_are_around_every_multiple(many: list[Drawn]) -> None:
    keys = {x.draft.inputs["k"].shape[2] for x in many}
    queries = {x.draft.inputs["q"].shape[2] for x in many}
    assert max(keys) <= MOST_KEYS
    for unit in UNITS:
        assert keys >= {unit - 1, unit, unit + 1}
        assert unit == max(UNITS) or queries & {unit - 1, unit, unit + 1}
    assert any(n > 2 * max(UNITS) for n in keys)


def test_heads_of_every_size_and_group(many: list[Drawn]) -> None:
    shapes = [[x.draft.inputs[name].shape for name in ("q", "k", "v")] for x in many]
    assert {q[3] for q, _, _ in shapes} == set(WIDTHS)
    assert {q[1] // k[1] for q, k, _ in shapes} == set(GROUPS)
    assert any(v[3] != q[3] for q, _, v in shapes)


def test_tiles_are_hidden_everywhere_by_everything_and_poisoned(many: list[Drawn]) -> None:
    found = set()
    tile = 64
    for drawn in many:
        draft = drawn.draft
        q, k, v = (draft.inputs[name] for name in ("q", "k", "v"))
        shape = (*q.shape[:3], k.shape[2])
        tiles = shape[3] // tile
        if tiles < 3:
            continue
        unseen = unseen_keys(draft.config, draft.inputs, shape)[..., : tiles * tile]
        hidden = unseen.reshape(*unseen.shape[:2], tiles, tile).all(axis=-1).reshape(-1, tiles)
        if hidden.all():
            continue
        for name in ("causal", "window"):
            found |= {name} if name in draft.config and hidden.any() else set()
        for name in ("mask", "bias", "kv_lengths"):
            found |= {name} if name in draft.inputs and hidden.any() else set()
        found |= {"first"} if hidden[:, 0].any() else set()
        found |= {"last"} if hidden[:, -1].any() else set()
        found |= {"middle"} if (hidden[:, 1:-1].any(axis=1) & ~hidden[:, 0] & ~hidden[:, -1]).any() else set()
        for name, x in (("k", k), ("v", v)):
            found |= {f"poison in {name}"} if hidden.any() and not np.isfinite(x).all() else set()
    wanted = {"causal", "window", "mask", "bias", "kv_lengths", "first", "middle", "last"}
    assert found == wanted | {"poison in k", "poison in v"}


def test_what_is_called_unseen_is_seen_by_nobody(many: list[Drawn]) -> None:
    for drawn in many[:40]:
        config, inputs = drawn.draft.config, drawn.draft.inputs
        q, k = inputs["q"], inputs["k"]
        shape = (*q.shape[:3], k.shape[2])
        unseen = unseen_keys(config, inputs, shape)
        bias = np.broadcast_to(inputs.get("bias", np.zeros(1)), shape)
        seen = np.zeros_like(unseen)
        for b, h, i in np.ndindex(*shape[:3]):
            shown = visible_keys(config, inputs, b, h, i, shape) & (bias[b, h, i] != -np.inf)
            seen[b, h * k.shape[1] // q.shape[1]] |= shown
        assert (seen == ~unseen).all()


def test_a_seed_decides_every_question() -> None:
    def contents(drawn: list[Drawn]) -> list[tuple[object, ...]]:
        return [
            (x.dtype, str(x.draft.config), *((name, a.tobytes()) for name, a in x.draft.inputs.items()))
            for x in drawn
        ]

    first, second, other = (contents(draw(30, seed)) for seed in (5, 5, 6))
    assert first == second
    assert first != other


def test_an_honest_port_passes(tmp_path: Path) -> None:
    tally = campaign("honest", 60, tmp_path)
    assert [str(found) for found in tally.found] == []
    assert set(tally.questions) == {"sdpa"}
    assert set(tally.answers) == {"pass"}
    assert tally.answers["pass"] >= 60 * 4, "in each variant"


@pytest.mark.parametrize("script", ["kernel_hidden_block", "kernel_last_lane", "kernel_correction"])
def test_a_kernel_that_lies_is_found_and_its_case_fails_again(script: str, tmp_path: Path) -> None:
    tally = campaign(script, 400, tmp_path)
    (folder,) = tally.folders
    assert {result.variant for result in tally.found[0].results} == {"flash"}
    report = tmp_path / "report.jsonl"
    options = Options(protocol=False, metamorphic=False, sentences=False, known_failures=None, report=report)
    suites = [load_folder(folder)]
    assert not run_conformance([port(script)], suites, options, Console(file=io.StringIO())).ok
    assert run_conformance([port("honest")], suites, options, Console(file=io.StringIO())).ok


def test_the_command(tmp_path: Path) -> None:
    said = io.StringIO()
    console = Console(file=said, width=200)
    assert run_fuzz([port("honest")], [], 5, SEED, tmp_path / "out", console, for_kernels=True) == 0
    assert f"fuzz: seed {SEED}, 5 questions for kernels, honest" in said.getvalue()
    with pytest.raises(UsageError, match="softmax"):
        run_fuzz([port("honest")], ["softmax"], 5, SEED, tmp_path / "out", console, for_kernels=True)
    assert "--kernels" in CliRunner().invoke(app, ["fuzz", "--help"], terminal_width=200).output
