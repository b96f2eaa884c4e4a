"""The paging experiment: every request is served in full, and what is measured is what the caches hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rosetta_attention import KVCache
from rosetta_experiments import paging
from rosetta_experiments.paging import Paged, Request, Reserved, policies, serve

LONGEST = 16
requests_of_any_length = st.lists(
    st.tuples(st.integers(1, LONGEST - 1), st.integers(1, LONGEST - 1)).map(
        lambda pair: Request(pair[0], min(pair[1], LONGEST - pair[0]))
    ),
    max_size=12,
)


@settings(max_examples=30, deadline=None)
@given(requests=requests_of_any_length, slots=st.integers(LONGEST, 48))
def test_all_are_served_and_all_is_given_back(requests, slots):
    for memory in policies(slots, LONGEST, [1, 4]).values():
        found = serve(requests, memory)
        assert memory.taken == 0
        assert 0 <= found.of_memory <= found.of_taken <= 1
        assert all(0 < held <= taken <= slots for held, taken in zip(found.held, found.taken, strict=True))
        assert found.steps >= max((request.answer for request in requests), default=0)
        assert found.preempted == 0 or isinstance(memory, Paged)


def test_by_hand():
    requests = [Request(2, 2)] * 3
    reserved = serve(requests, Reserved(8, lambda _: 8))
    assert reserved.steps == 6  # one after the other
    assert reserved.held == [3, 4, 3, 4]  # while somebody waits
    assert reserved.of_memory == reserved.of_taken == 14 / 32
    knowing = serve(requests, Reserved(8, lambda request: request.length))
    assert (knowing.steps, knowing.held, knowing.running) == (4, [6, 8], [2, 2])
    paged = serve(requests, Paged(8, 1))
    # three prompts take 6 slots, two of them grow, and the third gives way at once
    assert (paged.steps, paged.held, paged.preempted) == (4, [6, 8], 1)


def test_who_came_last_makes_room_and_goes_on_where_it_was():
    found = serve([Request(1, 7), Request(1, 7)], Paged(10, 1))
    assert found.preempted == 1
    assert found.steps == 7 + 3
    assert max(found.taken) <= 10


def test_pages_beat_what_is_reserved():
    requests = paging.arrivals(60, 128, seed=0)
    found = {name: serve(requests, memory) for name, memory in policies(1024, 128, [4]).items()}
    shares = [found[name].of_memory for name in ("reserved", "power of 2", "its own", "pages of 4")]
    assert shares == sorted(shares)
    assert shares[0] < 0.4
    assert shares[-1] > 0.9
    assert found["pages of 4"].steps < found["reserved"].steps


def test_reserved_caches_are_real_ones():
    memory = Reserved(8, lambda _: 5)
    cache = memory.admit(Request(1, 1))
    assert isinstance(cache, KVCache)
    assert (cache.capacity, memory.taken) == (5, 5)
    assert memory.admit(Request(1, 1)) is None


def test_arrivals_are_seeded_and_fit():
    one, two, other = (paging.arrivals(300, 64, seed) for seed in (1, 1, 2))
    assert one == two != other
    assert all(r.prompt >= 1 and r.answer >= 1 and r.length <= 64 for r in one)
    assert len({r.length for r in one}) > 20


def test_the_table(capsys):
    paging.main(["--requests", "12", "--longest", "16", "--slots", "64", "--page-sizes", "1,4"])
    printed = capsys.readouterr().out
    for word in ("reserved", "power of 2", "its own", "pages of 1", "pages of 4", "usual claim", "%"):
        assert word in printed


@pytest.mark.parametrize(
    "arguments",
    [
        ["--requests", "0"],
        ["--longest", "1"],
        ["--seed", "-1"],
        ["--slots", "1000"],
        ["--slots", "1030", "--longest", "1024", "--page-sizes", "1000"],
        ["--page-sizes", "0"],
    ],
    ids=str,
)
def test_refusals(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        paging.main(arguments)
    assert stopped.value.code == 2
    assert "error" in capsys.readouterr().err


def test_help(capsys):
    with pytest.raises(SystemExit) as stopped:
        paging.main(["--help"])
    assert stopped.value.code == 0
    assert "python -m rosetta_experiments.paging" in capsys.readouterr().out
