"""Memory is measured from outside: a port that holds a table of T x T is told from one that does not."""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from conformance.memory import SHORTEST, WARM_PART, Curve, lowest_before_highest, run_memory, warm_length
from conformance.ports import Port

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells")

PORT = """
import json, sys
import numpy as np
from safetensors.numpy import load_file, save_file
claims = {"sdpa": {"variants": ["naive", "flash"], "dtypes": ["f32"], "features": []}}
for line in sys.stdin:
    request = json.loads(line)
    if request["cmd"] == "start":
        answer = {"status": "ok", "protocol": 1, "name": "fake", "threads": 1, "ops": claims}
    elif request["cmd"] == "run":
        q = load_file(request["inputs"])["q"]
        rows = q.shape[2] if request["variant"] == "naive" else 1
        table = np.ones((rows, q.shape[2]), np.float32)  # touched, so resident
        save_file({"output": q * table[0, 0]}, request["outputs"])
        answer = {"seq": request["seq"], "status": "ok"}
    else:
        answer = {"status": "ok"}
    print(json.dumps(answer), flush=True)
    if request["cmd"] == "stop":
        break
"""


def test_a_table_of_scores_shows(tmp_path: Path) -> None:
    script = tmp_path / "fake.py"
    script.write_text(PORT)
    port = Port(name="fake", language="Python", kind="port", command=[sys.executable, str(script)])
    said = io.StringIO()
    curves = {c.variant: c for c in run_memory([port], (1024, 4096), Console(file=said, width=120))}
    table = 4096 * 4096 * 4
    assert curves["naive"].taken[4096] >= table
    assert curves["flash"].taken[4096] < table / 4
    assert "T^" in said.getvalue()


def test_a_variant_that_refuses_the_call_is_left_out_and_named(tmp_path: Path) -> None:
    script = tmp_path / "fake.py"
    answer = '        answer = {"seq": request["seq"], "status": "ok"}\n'
    assert answer in PORT
    refuses = (
        f'{answer}        if request["variant"] == "naive":\n            answer["status"] = "unsupported"\n'
    )
    script.write_text(PORT.replace(answer, refuses))
    port = Port(name="fake", language="Python", kind="port", command=[sys.executable, str(script)])
    said = io.StringIO()
    curves = run_memory([port], (128, 256), Console(file=said, width=120))
    assert [curve.variant for curve in curves] == ["flash"]
    assert "left out, since they refuse this call: fake naive" in said.getvalue()


def test_the_exponent_is_that_of_the_two_longest() -> None:
    assert Curve("p", "v", {10: 5, 100: 7, 200: 28}).exponent == pytest.approx(2)


@pytest.mark.parametrize(("sizes", "lowest"), [([9], 9), ([9, 4, 12, 2], 4), ([9, 10, 5], 9), ([9, 3, 3], 9)])
def test_what_is_given_back_before_the_highest_is_not_held_by_the_call(sizes: list[int], lowest: int) -> None:
    assert lowest_before_highest(sizes) == lowest


def test_calls_before_are_small_beside_the_one_that_is_measured() -> None:
    assert [warm_length(length) for length in (64, 512, 4096, 32768)] == [SHORTEST, SHORTEST, 256, 2048]
    assert WARM_PART >= 16
