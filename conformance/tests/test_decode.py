"""The decode experiments of the ports: what a program says is checked, and one that is wrong costs itself alone."""

import io
import re
import sys
import textwrap
from pathlib import Path

import pytest
from rich.console import Console

from conformance import cli
from conformance.decode import QUICK, DecodeFooter, read_decode, run_decode
from conformance.decode_counts import CACHE, EVERYTHING, KEYS_VALUES, WAYS, count
from conformance.decode_text import exponent, show_decode, show_times
from conformance.errors import UsageError
from conformance.page import draw
from conformance.ports import Port
from conformance.repository import ROOT

LENGTHS = (2, 3, 5)
PROGRAM = """
import argparse, json, sys
from conformance.decode_counts import WAYS, count
parser = argparse.ArgumentParser()
for name in ("--n", "--width", "--heads", "--repeats"):
    parser.add_argument(name)
parser.add_argument("--json", action="store_true")
chosen = parser.parse_args()
assert chosen.json and chosen.repeats == "4"
lines = []
for way in WAYS:
    for n in map(int, chosen.n.split(",")):
        c = count(way, n, int(chosen.width), int(chosen.heads))
        line = {"port": NAME, "way": way, "tokens": n, "seconds": 1e-4 * n ** (3 - WAYS.index(way)),
                "multiply_adds": c.multiply_adds, "moved": c.moved, "held": c.held}
        lines.append(line)
"""
SAY = "for line in lines:\n    print(json.dumps(line), flush=True)\n"


def port(folder: Path, body: str = SAY, name: str = "fake") -> Port:
    script = folder / f"{name}.py"
    script.write_text(PROGRAM.replace("NAME", repr(name)) + textwrap.dedent(body))
    return Port(name, "Python", "port", ["no-such-port"], decode=[sys.executable, str(script)])


def test_counts_by_hand() -> None:
    """Two tokens, width 2, one head. Step 1: 4 products 1x2x2 and two 1x2x1 ones: 4·4 + 2·2 = 20 multiply-adds."""
    assert count(CACHE, 1, 2, 1).multiply_adds == 20
    assert count(CACHE, 1, 2, 1) == count(KEYS_VALUES, 1, 2, 1).__class__(20, 4 * (4 * 8 + 2 * 5), 16)
    assert count(CACHE, 2, 2, 1).multiply_adds == 20 + (4 * 4 + 2 * 4)
    assert count(KEYS_VALUES, 2, 2, 1).multiply_adds == 20 + (2 * 4 + 2 * 8 + 2 * 4)
    assert count(EVERYTHING, 2, 2, 1).multiply_adds == 20 + (4 * 8 + 2 * 8)
    assert [count(way, 9, 4, 2).held for way in WAYS] == [0, 0, 2 * 9 * 4 * 4]


@pytest.mark.parametrize("t", [1, 7, 64])
def test_counts_follow_the_formulas(t: int) -> None:
    C = 128
    step = {way: count(way, t, C, 8).multiply_adds - count(way, t - 1, C, 8).multiply_adds for way in WAYS}
    assert step[EVERYTHING] == 4 * t * C * C + 2 * t * t * C
    assert step[KEYS_VALUES] == 2 * t * C * C + 2 * C * C + 2 * t * C
    assert step[CACHE] == 4 * C * C + 2 * t * C


def test_a_good_program_is_measured_and_one_without_is_named(tmp_path: Path) -> None:
    ticks: list[str] = []
    said: list[str] = []
    without = Port("other", "X", "port", ["x"])
    file = tmp_path / "decode.jsonl"
    ports = [port(tmp_path), without]
    found = run_decode(ports, LENGTHS, 4, file, tick=ticks.append, say=said.append)
    assert found.footer == DecodeFooter([])
    assert len(found.points) == len(ticks) == 9
    assert read_decode(file) == found
    assert any("other" in line for line in said)
    assert found.saved("fake", EVERYTHING, 5) == pytest.approx(25)
    assert exponent(found.seconds("fake", KEYS_VALUES)) == pytest.approx(2)
    out = io.StringIO()
    show_decode(found, Console(file=out, width=100))
    assert "x 25.0" in out.getvalue()
    assert "T^3.00" in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 100


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "lines[4]['multiply_adds'] += 1\n" + SAY,
            "multiply_adds of 'keys and values' at 3 tokens: expected",
        ),
        ("lines[0]['moved'] -= 4\n" + SAY, "moved of 'everything' at 2 tokens: expected"),
        ("lines[8]['held'] = 0\n" + SAY, "held of 'cache' at 5 tokens: expected"),
        ("lines[0]['port'] = 'x'\n" + SAY, "port: expected fake, got 'x'"),
        ("lines[0]['way'] = 'keys, values'\n" + SAY, "way: expected everything or keys and values or cache"),
        ("lines[0]['tokens'] = 4\n" + SAY, "tokens: expected 2 or 3 or 5, got 4"),
        ("lines[0]['seconds'] = 0\n" + SAY, "seconds: expected a time > 0"),
        ("lines[1] = lines[0]\n" + SAY, "everything at 2 tokens came twice"),
        ("del lines[8]\n" + SAY, "ended with exit status 0, after 8 of 9 lines"),
        ("lines.append(lines[0])\n" + SAY, "expected 9 lines, then came"),
        (SAY + "sys.exit('the ways do not agree')", "exit status 1\n  stderr: the ways do not agree"),
        ("print('hello')", "expected a line of JSON, got 'hello'"),
        ("import time; time.sleep(60)", "did not end within 2 s"),
    ],
)
def test_a_wrong_program_is_told_what_is_wrong_and_costs_itself_alone(
    tmp_path: Path, body: str, message: str
) -> None:
    ports = [port(tmp_path, body), port(tmp_path, name="good")]
    found = run_decode(ports, LENGTHS, 4, tmp_path / "decode.jsonl", limit_s=2 if "sleep" in body else 60)
    (problem,) = found.footer.problems
    assert problem.startswith("fake: ")
    assert message in problem
    assert found.measured() == ["good"]
    out = io.StringIO()
    show_decode(found, Console(file=out, width=100))
    assert "problem: fake" in out.getvalue()


def test_without_any_program_there_is_nothing_to_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none of these has a program for it: other"):
        run_decode([Port("other", "X", "port", ["x"])], LENGTHS, 1, tmp_path / "decode.jsonl")
    gone = Port("gone", "X", "port", ["x"], decode=["./gone"])
    with pytest.raises(UsageError, match=r"not there: gone: \./gone"):
        run_decode([gone], LENGTHS, 1, tmp_path / "decode.jsonl")


def test_the_command_and_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "ports"
    folder.mkdir()
    fake = port(tmp_path, SAY)
    (tmp_path / "fake.py").write_text((tmp_path / "fake.py").read_text().replace('"4"', '"1"'))
    command = ", ".join(f'"{word}"' for word in fake.decode)
    (folder / "fake.toml").write_text(
        f'name = "fake"\nlanguage = "X"\nkind = "port"\ncommand = ["x"]\ndecode = [{command}]\n'
    )
    file = tmp_path / "decode.jsonl"
    arguments = ["decode", "--quick", "--out", str(file), "--ports-dir", str(folder)]
    monkeypatch.setattr(sys, "argv", ["conformance", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "fake         12 measured" in out
    assert f"{QUICK[-1]}" in out
    text = draw(tmp_path, []).read_text()
    assert text.count("<polyline") == 3
    assert re.search(r'<svg class="decode"', text)
    assert "grows as" in text
    file.write_bytes(file.read_bytes().rsplit(b"\n", 2)[0])
    with pytest.raises(UsageError, match="cut short"):
        draw(tmp_path, [])


def test_times_of_the_cache_are_not_said_of_itself() -> None:
    assert [show_times(x) for x in (1, 2.04, 99.9, 100.4)] == ["", "x 2.0", "x 99.9", "x 100"]


def test_the_document_says_what_the_command_checks() -> None:
    page = (ROOT / "docs/decode.md").read_text()
    for way in WAYS:
        assert f'"{way}"' in page
    for field in ("multiply_adds", "moved", "held", "seconds", "tokens"):
        assert field in page
