"""Caches handed from port to port: the honest continue each other's, and a file that lacks something is seen."""

import sys

import pytest
from test_liars import FOLDER, TIMEOUTS

from conformance.bounds.eviction import find_undecided
from conformance.outcome import Result
from conformance.pairs import check_pairs, list_relays, scripts
from conformance.ports import Port
from conformance.questions import EVERYTHING, Narrowing
from conformance.session import Session

F32 = Narrowing(dtypes=["f32"])


def pairs_of(*commands: str, narrowing: Narrowing = F32) -> dict[str, list[Result]]:
    """Ports of these names, each a liar or honest."""
    sessions = []
    for command in commands:
        script, *arguments = command.split()
        port = Port(command, "Python", "port", [sys.executable, str(FOLDER / f"{script}.py"), *arguments])
        sessions.append(Session(port, timeouts=TIMEOUTS))
        sessions[-1].start()
    try:
        return check_pairs(sessions, narrowing)
    finally:
        for session in sessions:
            session.kill()


def test_the_honest_go_on_from_their_own_files() -> None:
    (results,) = pairs_of("honest", narrowing=EVERYTHING).values()
    assert [r for r in results if r.judgement.outcome != "pass"] == []
    assert len(results) == 2 * len(list(scripts()))
    assert results[0].case == "pairs/contiguous/honest-to-honest"


def test_one_that_forgets_positions_is_seen_as_the_one_that_loads() -> None:
    results = pairs_of("honest", "cache_lives positions")
    assert {name: len(found) for name, found in results.items()} == {
        name: 2 * len(list(scripts())) for name in results
    }
    bad = {name: [r.case for r in found if r.judgement.outcome != "pass"] for name, found in results.items()}
    assert bad["honest"] == []
    assert "pairs/contiguous/honest-to-cache_lives positions" in bad["cache_lives positions"]
    assert not any("latent" in case for case in bad["cache_lives positions"])


def test_every_script_changes_hands_between_a_save_and_a_load(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    for relay in list_relays(["f32"], tmp_path_factory.mktemp("relays")):
        assert relay.first.config["steps"][-1]["do"] == "save"
        assert relay.second.config["steps"][0]["do"] == "load"
        assert relay.first.want
        assert not set(relay.first.want) & set(relay.second.want)
        assert {*relay.first.want, *relay.second.want} == set(relay.expected)


def test_no_relay_hangs_on_a_rounding(tmp_path_factory: pytest.TempPathFactory) -> None:
    kinds = set()
    for relay in list_relays(["f32", "bf16"], tmp_path_factory.mktemp("relays")):
        config = relay.case.config
        assert find_undecided(config, relay.inputs, relay.case.steps, relay.dtype) == [], relay.case.id
        kinds |= {config["kind"], *(f for f in ("track", "rope_at", "key_groups") if config.get(f))}
    assert {"per_head", "track", "rope_at", "key_groups"} < kinds


def test_a_port_without_caches_is_not_asked() -> None:
    with Session(Port("x", "X", "port", ["no-such-command"])) as session:
        assert check_pairs([session], EVERYTHING) == {}
