"""The peers that are installed, on ONNX's vectors: each result passes or is on the peer's list."""

from pathlib import Path

import pytest

from conformance import fixtures
from conformance.errors import UsageError
from conformance.known_failures import judge_results, read_failures
from conformance.onnx_suite import suite
from conformance.outcome import Result
from conformance.ports import Port, check_commands, read_port, read_ports
from conformance.repository import ROOT
from conformance.run import run_port
from conformance.session import PortGivenUp, Session

PEERS = {port.name: port for port in read_ports() if port.kind == "peer"}
# Of the 191 cases: what each passes, in our words.
PASSED = {"onnxruntime": 162, "onnxruntime-web": 134, "tfjs": 89}


def ask(port: Port) -> list[Result] | None:
    """Every vector; None when the peer is not installed."""
    loaded = fixtures.load_folder(suite.ensure_suite(fixtures.CACHE / suite.NAME))
    try:
        check_commands([port])
        with Session(port) as session:
            session.start()
            return run_port(session, [loaded])
    except (UsageError, PortGivenUp):
        return None


@pytest.mark.parametrize("name", PASSED)
def test_a_peer_that_is_installed_answers_the_vectors_as_listed(name: str) -> None:
    results = ask(PEERS[name])
    if results is not None:  # peers come with `make setup PORTS=...` only
        verdict = judge_results(name, results, read_failures(name), narrowed=True)
        assert not verdict.unexpected
        assert not verdict.problems
        assert sum(result.judgement.outcome == "pass" for result in results) == PASSED[name]


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
