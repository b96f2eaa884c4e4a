"""The golden cases, walked through the ports' own answers with a plain tolerance.

The harness judges by derived bounds; this is the quick check that needs nothing but this folder's tools.
"""

import pytest
from golden import golden
from ports import libraries

from rosetta_port.serve import Port

CASES = golden()


def test_the_committed_cases_are_here():
    assert len(CASES) > 900


@pytest.fixture(scope="module", params=libraries(), ids=lambda library: library.name)
def port(request):
    port = Port(request.param)
    port.answer(b'{"cmd": "start", "protocol": 1}')
    return port


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(port, tmp_path, case):
    outputs = tmp_path / "out.safetensors"
    answer = case.run(port, outputs)
    if case.expected is None:
        assert answer.get("code") == case.case["error"], answer
        assert not outputs.exists()
    else:
        assert answer["status"] == "ok", answer
        assert answer.get("steps") == case.case.get("steps")
        case.check(outputs)
