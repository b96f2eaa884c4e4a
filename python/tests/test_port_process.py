"""The ports as real processes: what is on their stdout, and how they end."""

import json
import subprocess
import sys

import numpy as np
import pytest
from ports import libraries, load, save

MODULES = {"python": "rosetta_port.numpy_port", "torch": "rosetta_port.torch_port"}

# A library that prints where it should not: from Python, and below Python on the file descriptor itself.
NOISY = """
import os
from rosetta_port import numpy_port, serve
from dataclasses import replace
def set_threads(n):
    print("noise from Python", flush=True)
    os.write(1, b"noise from below\\n")
    return 1
serve(replace(numpy_port.LIBRARY, set_threads=set_threads))
"""


def talk(command: list[str], requests: list[dict]) -> tuple[list[dict], str]:
    """All requests at once, then the end of the input; one answer is expected a line."""
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run(
        [sys.executable, *command], input=lines, capture_output=True, text=True, timeout=60, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.parametrize("name", [library.name for library in libraries()])
def test_a_session(name, tmp_path):
    inputs = save(tmp_path / "in", x=np.float32([0, 0]))
    run = {"cmd": "run", "op": "softmax", "inputs": inputs, "outputs": str(tmp_path / "out")}
    answers, errors = talk(
        ["-W", "error", "-m", MODULES[name]],
        [
            run | {"seq": 1},
            {"cmd": "start", "protocol": 1, "threads": 1},
            run | {"seq": 2},
            run | {"seq": 3, "op": "dance"},
            {**run, "cmd": "bench", "seq": 4, "samples": 1},
            {"cmd": "start", "protocol": 1, "threads": 1},
            {"cmd": "stop"},
            run | {"seq": 5},
        ],
    )
    statuses = [(answer.get("seq"), answer["status"]) for answer in answers]
    assert statuses == [
        (1, "error"),
        (None, "ok"),
        (2, "ok"),
        (3, "unsupported"),
        (4, "ok"),
        (None, "ok"),
        (None, "ok"),
    ]
    assert answers[1]["name"] == name
    assert load(tmp_path / "out")["output"].tolist() == [0.5, 0.5]
    assert errors == ""


def test_the_end_of_the_input_is_the_end():
    answers, _ = talk(["-m", MODULES["python"]], [{"cmd": "start", "protocol": 1}])
    assert [answer["status"] for answer in answers] == ["ok"]


def test_nothing_but_answers_is_on_stdout():
    answers, errors = talk(["-c", NOISY], [{"cmd": "start", "protocol": 1}, {"cmd": "stop"}])
    assert [answer["status"] for answer in answers] == ["ok", "ok"]
    assert errors.splitlines() == ["noise from Python", "noise from below"]


def test_answers_come_one_by_one():
    """A driver waits for each: nothing may be held back in a buffer."""
    command = [sys.executable, "-m", MODULES["python"]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for seq in range(3):
            process.stdin.write(json.dumps({"cmd": "start", "protocol": 1, "seq": seq}) + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["seq"] == seq
        process.stdin.close()
        assert process.wait(timeout=20) == 0
