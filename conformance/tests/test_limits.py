"""The limits of the machine: the helper itself, briefly; and what is said where it cannot be had."""

import shutil
from pathlib import Path

import msgspec
import pytest

from conformance import limits
from conformance.bench_file import BenchFooter, BenchHeader, Cell, Sample, build_report
from conformance.bench_text import limits_line, show_rate
from conformance.limits import Limits, NoLimits, best_of, build_helper, measure_limits
from conformance.machine import describe_machine

FOUND = Limits("avx512", 100.0, 10.0, 20.0, 15.0, 512)


def fake_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str, status: int = 0) -> Path:
    """A rustc that writes a shell script, and a source for it."""
    compiler = folder / "rustc"
    compiler.write_text(
        f"""#!/bin/sh
[ "$1" = --version ] && echo fake && exit 0
echo "error: it is late" >&2
[ {status} != 0 ] && exit {status}
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\\n%s\\n' '{program}' > "$2" && chmod +x "$2"
"""
    )
    compiler.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(compiler) if name == "rustc" else None)
    monkeypatch.setattr(limits, "BUILT", folder / "built")
    return compiler


def measure_fake(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> Limits:
    fake_compiler(folder, monkeypatch, program)
    monkeypatch.setattr(limits, "build_helper", lambda: build_helper(limits.SOURCE, folder / "built"))
    return measure_limits(0.1)


@pytest.mark.skipif(shutil.which("rustc") is None, reason="needs a Rust compiler")
def test_the_helper_measures_something(tmp_path: Path) -> None:
    found = measure_limits(0.001, 2)
    assert found.mebibytes == 2
    assert min(found.fma_gflops, found.read_gbs, found.read4_gbs, found.copy_gbs) > 0
    with pytest.raises(NoLimits, match="mebibytes: expected an integer from 1"):
        measure_limits(0.001, 0)
    with pytest.raises(NoLimits, match="seconds: expected a number from 0"):
        measure_limits(-1, 2)


def test_the_highest_of_each_figure_is_the_limit() -> None:
    other = msgspec.structs.replace(FOUND, fma_gflops=90.0, copy_gbs=16.0)
    assert best_of([FOUND, other]) == msgspec.structs.replace(FOUND, copy_gbs=16.0)
    assert best_of([]) is None


def test_a_helper_is_compiled_once_for_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_compiler(tmp_path, monkeypatch, "true")
    source = tmp_path / "limits.rs"
    source.write_text("one")
    first = build_helper(source, tmp_path / "built")
    made = first.stat().st_mtime_ns
    assert build_helper(source, tmp_path / "built") == first
    assert first.stat().st_mtime_ns == made
    source.write_text("two")
    assert build_helper(source, tmp_path / "built") != first


def test_why_there_are_none_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoLimits, match="something else than limits"):
        measure_fake(tmp_path, monkeypatch, "echo hello")
    for path in (tmp_path / "built").iterdir():
        path.unlink()
    with pytest.raises(NoLimits, match="measured nothing"):
        measure_fake(
            tmp_path, monkeypatch, 'echo "{\\"tier\\":\\"x\\",\\"fma_gflops\\":0,\\"read_gbs\\":1,'
            '\\"read4_gbs\\":1,\\"copy_gbs\\":1,\\"mebibytes\\":1}"',
        )  # fmt: skip
    for path in (tmp_path / "built").iterdir():
        path.unlink()
    with pytest.raises(NoLimits, match="exit status 3"):
        measure_fake(tmp_path, monkeypatch, "exit 3")
    fake_compiler(tmp_path, monkeypatch, "true", status=1)
    with pytest.raises(NoLimits, match="rustc: exit status 1: error: it is late"):
        build_helper(limits.SOURCE, tmp_path / "other")
    with pytest.raises(NoLimits, match=r"none\.rs: No such file"):
        build_helper(tmp_path / "none.rs", tmp_path / "other")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(NoLimits, match="no rustc"):
        build_helper()


def test_figures_are_shares_of_the_limits() -> None:
    header = BenchHeader(
        2, "", "", "", describe_machine(), "quick", 1, 1, "python", [], {}, no_limits="no rustc"
    )
    cell = Cell("c", "sdpa", "python", "naive", True, "pass", flops=5000, bytes=1000)
    timed = Sample("c", "python", "naive", 0, 0, False, 1, [100.0], 1.0, 1.0)
    footer = BenchFooter(1, 1, True, [], 1.0)
    row = build_report(header, [FOUND, cell, timed], footer).rows[0]
    assert (row.gflops, row.peak_share, row.gigabytes, row.read_share) == (50.0, 0.5, 10.0, 0.5)
    without = build_report(header, [cell, timed], footer)
    assert (without.rows[0].peak_share, without.limits) == (0.0, None)
    assert "the limits of the machine were not measured: no rustc" in without.warnings()


def test_the_shares_are_written_beside_the_rates() -> None:
    assert show_rate(50.0, 0.5) == "50.0 (50 %)"
    assert show_rate(50.0, 0.0) == "50.0"
    assert show_rate(0.0, 0.0) == ""
    assert "avx512): 100 GFLOP/s" in limits_line(FOUND)


def test_webassembly_has_a_limit_of_its_own_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(program: str) -> float:
        node = tmp_path / "node"
        node.write_text(f"#!/bin/sh\n{program}\n")
        node.chmod(0o755)
        monkeypatch.setattr(limits, "NODE", node)
        return limits._measure_wasm(0.01)

    assert measured('echo "{\\"gflops\\": 40.5, \\"relaxed\\": true}"') == 40.5
    for broken in ("exit 1", "echo nothing", "echo 3", 'echo "{}"'):
        assert measured(broken) == 0
    monkeypatch.setattr(limits, "NODE", tmp_path / "none")
    assert limits._measure_wasm(0.01) == 0
    assert "WebAssembly" not in limits_line(FOUND)
    assert "; 40.5 GFLOP/s in WebAssembly" in limits_line(msgspec.structs.replace(FOUND, wasm_gflops=40.5))
