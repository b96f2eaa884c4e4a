"""What a token takes: the ports' own numbers are those of the arithmetic, and one that says another is seen."""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console
from test_liars import FOLDER

from conformance.kv_bytes import FULL, KINDS, KvBytes, read_kv_bytes, run_kv_bytes
from conformance.kv_bytes_text import show_kv_bytes
from conformance.kv_cost import Format, slot_bytes
from conformance.page import draw
from conformance.ports import Port

TOKENS = 320  # whole pages and groups, and more than a window and a budget


def liar(command: str) -> Port:
    script, *arguments = command.split()
    return Port(command, "Python", "port", [sys.executable, str(FOLDER / f"{script}.py"), *arguments])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> KvBytes:
    """By the reference machine as a port."""
    return run_kv_bytes([liar("machine_port")], tmp_path_factory.mktemp("kv") / "b.jsonl", tokens=TOKENS)


def test_every_way_is_asked_and_nothing_is_wrong(found: KvBytes) -> None:
    assert found.footer.problems == []
    assert [row.name for row in found.rows] == [kept.name for kept in KINDS]
    assert all(set(row.held) == {"machine_port"} for row in found.rows)


def test_the_shares_that_were_promised(found: KvBytes) -> None:
    """With heads of 128: int8 at most 0.27 of f32, int4 at most 0.16, by tokens and by groups of tokens."""
    shares = {row.name: found.share(row) for row in found.rows}
    int8, int4 = ({n: x for n, x in shares.items() if kind in n} for kind in ("int8", "int4"))
    assert len(int8) == len(int4) == 2
    assert max(int8.values()) <= 0.27
    assert max(int4.values()) <= 0.16
    assert shares[FULL] == 1


def test_the_bytes_are_those_of_the_arithmetic(found: KvBytes) -> None:
    rows = {row.name: row for row in found.rows}
    for name in ("f16", "bf16", "int8", "int4", "fp8_e4m3"):
        assert found.a_token(rows[f"quantised {name}"]) == slot_bytes(
            (8, 128, 128), Format(name.split("_")[0])
        )
    assert rows["rotating, window 256"].slots == rows["contiguous, 256 kept by a policy"].slots == 256
    assert found.a_token(rows["latent 512 + 64"]) == 4 * 576
    # a group of 32 tokens: codes as without, one scale a channel of a head instead of 32
    grouped = 8 * (128 + 128 * 4 / 32) + 8 * (128 + 4)
    assert found.a_token(rows["quantised int8, keys by 32 tokens"]) == grouped


STATS = """
import json, sys
import numpy as np
from safetensors.numpy import save_file
claims = {"kv_cache": {"variants": ["naive"], "dtypes": ["f32"], "features": ["contiguous", "grow", "append", "stats"]}}
for line in sys.stdin:
    request = json.loads(line)
    if request["cmd"] == "start":
        answer = {"status": "ok", "protocol": 1, "name": "fake", "ops": claims}
    elif request["cmd"] == "run":
        tensors = {"stats.positions": np.array([SLOTS]), "stats.bytes": np.array([BYTES])}
        save_file({n: x for n, x in tensors.items() if n in request["want"]}, request["outputs"])
        answer = {"seq": request["seq"], "status": "ok", "steps": STEPS}
    else:
        answer = {"status": "ok"}
    print(json.dumps(answer), flush=True)
    if request["cmd"] == "stop":
        break
"""


def fake(folder: Path, name: str, **said: object) -> Port:
    script = folder / f"{name}.py"
    text = STATS
    for word, value in ({"SLOTS": TOKENS, "BYTES": 1, "STEPS": ["ok"] * 3} | said).items():
        text = text.replace(word, repr(value))
    script.write_text(text)
    return Port(name, "Python", "port", [sys.executable, str(script)])


def test_ports_that_disagree_are_named(tmp_path: Path) -> None:
    ports = [fake(tmp_path, "a"), fake(tmp_path, "b", BYTES=2), fake(tmp_path, "c", SLOTS=7)]
    found = run_kv_bytes(ports, tmp_path / "kv-bytes.jsonl", tokens=TOKENS)
    assert found.footer.problems == [
        f"{FULL}: ports hold different numbers of bytes: a 1, b 2, c 1",
        f"{FULL}: ports hold different numbers of slots: a {TOKENS}, b {TOKENS}, c 7",
    ]
    assert read_kv_bytes(tmp_path / "kv-bytes.jsonl") == found
    said = io.StringIO()
    show_kv_bytes(found, Console(file=said, width=100))
    assert "problem: contiguous f32" in said.getvalue()
    assert "no port claims it" in said.getvalue()
    assert "different numbers of bytes" in draw(tmp_path, []).read_text()


def test_a_port_that_fails_or_has_no_cache_is_named(tmp_path: Path) -> None:
    ports = [fake(tmp_path, "a"), fake(tmp_path, "b", STEPS=["ok", "ok", "invalid_config"])]
    without = fake(tmp_path, "c")
    script = Path(without.command[1])
    script.write_text(script.read_text().replace("kv_cache", "softmax"))
    found = run_kv_bytes([*ports, without], tmp_path / "b.jsonl", tokens=TOKENS)
    (problem,) = found.footer.problems
    assert problem.startswith(f"b: {FULL}: expected every step to be ok")
    assert set(found.header.without) == {"c"}
    assert found.header.ports == ["a", "b"]
