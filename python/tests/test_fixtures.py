"""The golden cases, walked through the ports' own answers with a plain tolerance.

The harness judges by derived bounds; this is the quick check that needs nothing but this folder's tools. One
test walks all cases of an op in a dtype, and names those that fail.
"""

import pytest
from golden import Golden, golden
from ports import libraries

from rosetta_port import Library, numpy_port
from rosetta_port.serve import Port

CASES: dict[str, list[Golden]] = {}
for case in golden():
    CASES.setdefault(f"{case.case['op']}-{case.dtype}", []).append(case)


def test_the_committed_cases_are_here():
    assert sum(map(len, CASES.values())) > 900


def claimed(library: Library) -> dict[str, list[Golden]]:
    """The cases that a library claims; the groups where there are any."""
    ops = library.ops()
    found = {group: [case for case in cases if case.claimed(ops)] for group, cases in CASES.items()}
    return {group: cases for group, cases in found.items() if cases}


CLAIMED = [
    pytest.param(library, cases, id=f"{library.name}-{group}")
    for library in libraries()
    for group, cases in claimed(library).items()
]


def test_numpy_claims_every_case():
    assert claimed(numpy_port.LIBRARY) == CASES


@pytest.mark.parametrize("library", libraries(), ids=lambda library: library.name)
def test_every_op_of_a_library_is_walked(library):
    assert {case.case["op"] for cases in claimed(library).values() for case in cases} == set(library.ops())


@pytest.mark.parametrize(("library", "cases"), CLAIMED)
def test_cases(library, cases, tmp_path):
    port, failures = Port(library), []
    port.answer(b'{"cmd": "start", "protocol": 1}')
    for case in cases:
        try:
            check(case, port, tmp_path / "out.safetensors")
        except AssertionError as error:
            failures.append(f"{case.id}: {error}")
    assert not failures, "\n".join(failures[:5])


def check(case, port, outputs):
    outputs.unlink(missing_ok=True)
    answer = case.run(port, outputs)
    if case.expected is None:
        assert answer.get("code") == case.case["error"], answer
        assert not outputs.exists()
    else:
        assert answer["status"] == "ok", answer
        assert answer.get("steps") == case.case.get("steps")
        case.check(outputs)
