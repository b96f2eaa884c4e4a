"""The peers that are installed, on ONNX's vectors: each result passes or is on the peer's list."""

from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np
import pytest

from conformance import fixtures
from conformance.bench_plan import QUICK, Budget
from conformance.bench_rounds import check_cell, list_cells, time_cells
from conformance.known_failures import judge_results, read_failures
from conformance.onnx_suite import suite
from conformance.outcome import Result
from conformance.ports import Port, read_port, read_ports
from conformance.repository import ROOT
from conformance.run import Asker, run_port
from conformance.session import Session

PEERS = {port.name: port for port in read_ports() if port.kind == "peer"}
# Of the 191 cases: what each passes, in our words.
PASSED = {"onnxruntime": 162, "onnxruntime-web": 134, "tfjs": 89, "candle": 20, "faer": 20, "rten": 20}


# What is there once `make setup PORTS=...` has installed a peer, which no other target does.
PACKAGES = {"onnxruntime": "onnxruntime"}
NODE_PACKAGES = {
    "onnxruntime-web": ROOT / "conformance/peers/onnxruntime-web/node_modules",
    "tfjs": ROOT / "conformance/peers/tfjs/node_modules",
}


RUST_PEERS = ROOT / "rust/peers/target/release/rosetta-peers"  # all of Rust's in one


def is_installed(name: str) -> bool:
    if PEERS[name].language == "Rust":
        return RUST_PEERS.is_file()
    return find_spec(PACKAGES[name]) is not None if name in PACKAGES else NODE_PACKAGES[name].is_dir()


def ask(port: Port) -> list[Result]:
    """Every vector. Raises PortGivenUp when the peer does not start."""
    loaded = fixtures.load_folder(suite.ensure_suite(fixtures.CACHE / suite.NAME))
    with Session(port) as session:
        session.start()
        return run_port(session, [loaded])


@pytest.mark.parametrize("name", PASSED)
def test_a_peer_answers_the_vectors_as_listed(name: str) -> None:
    if not is_installed(name):
        pytest.skip(f"{name} comes with `make peers` only")
    results = ask(PEERS[name])
    verdict = judge_results(name, results, read_failures(name), narrowed=True)
    assert not verdict.unexpected
    assert not verdict.problems
    assert sum(result.judgement.outcome == "pass" for result in results) == PASSED[name]


@pytest.mark.parametrize("name", PASSED)
def test_a_peer_is_timed_and_its_timed_result_is_right(name: str, tmp_path: Path) -> None:
    if not is_installed(name):
        pytest.skip(f"{name} comes with `make peers` only")
    suite = fixtures.load_suite("sdpa")
    (gqa,) = (case for case in suite.suite.cases if case.id == "sdpa/gqa/by-hand-6-2")
    gqa = msgspec.structs.replace(gqa, want=["output"], features=["gqa"])
    kept = replace(suite, suite=msgspec.structs.replace(suite.suite, cases=[gqa]))
    with Session(PEERS[name]) as session:
        session.start()
        (question,) = list_cells(session, kept, gqa)
        entrant = check_cell(session, question, Asker(session, tmp_path), QUICK, 0.1)
        assert entrant.cell.outcome == "pass", entrant.cell.message
        samples = time_cells([entrant], QUICK, name, Budget(0))
        assert entrant.cell.outcome == "pass", entrant.cell.message
        assert all(ns > 0 for sample in samples for ns in sample.samples_ns)
        assert len(samples) == 2 * QUICK.rounds


def test_every_peer_is_counted_and_named_on_the_page() -> None:
    text = (ROOT / "docs/onnx.md").read_text()
    assert PEERS.keys() == PASSED.keys()
    for name, count in PASSED.items():
        assert f"| `{name}` |" in text
        assert f"{count} of 191" in text


def test_a_peer_is_built_from_its_own_lock_file() -> None:
    for port in PEERS.values():
        for word in port.build:
            folder = Path(ROOT, word)
            if word.startswith("conformance/peers/"):
                assert (folder / "package-lock.json").is_file()
    assert read_port(ROOT / "conformance/ports/tfjs.toml").build


@pytest.mark.skipif(not is_installed("onnxruntime"), reason="onnxruntime comes with `make peers` only")
@pytest.mark.parametrize(
    ("config", "plan", "opset"),
    [({}, {}, 24), ({"causal": True}, {}, 24), ({"window": [3, 0]}, {}, 25), ({"causal": True}, None, 25)],
)
def test_timed_is_the_opset_that_onnxruntime_has_a_kernel_for(
    config: dict[str, object],
    plan: dict[str, int] | None,
    opset: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "conformance/peers/onnxruntime")
    attention = import_module("attention")
    asked = []

    class Engine:
        attention = 25

        def run_node(self, operator: str, opset: int, *rest: object) -> list[np.ndarray]:
            asked.append((operator, opset))
            return [np.zeros(1)]

    engine = Engine()
    engine.plan = plan  # type: ignore[attr-defined]
    tensors = {name: np.zeros((1, 1, 3, 4), np.float32) for name in ("q", "k", "v")}
    attention.attend(engine, config, tensors, ["output"])
    assert asked == [("Attention", opset)]
