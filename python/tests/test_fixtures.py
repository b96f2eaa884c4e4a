"""The golden cases, walked through the ports' own answers with a plain tolerance.

The harness judges by derived bounds; this is the quick check that needs nothing but this folder's tools. One
test walks all cases of an op in a dtype, and names those that fail.
"""

import pytest
from golden import Golden, golden
from ports import libraries

from rosetta_port.serve import Port

CASES: dict[str, list[Golden]] = {}
for case in golden():
    CASES.setdefault(f"{case.case['op']}-{case.dtype}", []).append(case)


def test_the_committed_cases_are_here():
    assert sum(map(len, CASES.values())) > 900


@pytest.fixture(scope="module", params=libraries(), ids=lambda library: library.name)
def port(request):
    port = Port(request.param)
    port.answer(b'{"cmd": "start", "protocol": 1}')
    return port


@pytest.mark.parametrize("group", CASES)
def test_cases(port, tmp_path, group):
    ops, failures = port.library.ops(), []
    for case in CASES[group]:
        if case.claimed(ops):
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
