"""The memory of real models' caches: well-known sums, and that the arithmetic is what caches really hold."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformance import cli
from conformance.errors import UsageError
from conformance.kv_cost import CODES, DTYPES, Format, Load, cache_bytes, find_model, savings, slot_bytes
from conformance.kv_models import MODELS, Model
from conformance.ports import Port
from conformance.session import Session
from conformance.tensors import NUMPY_DTYPES, read_tensors, write_tensors

B, T, HKV, D, DV = 2, 11, 3, 10, 7
SIZES = {"batch": B, "num_kv_heads": HKV, "head_dim": D, "value_dim": DV}
ONE_LAYER = Model("m", "M", "o/m", 64, layers=1, heads=HKV, kv_heads=HKV, head_dim=D, value_dim=DV)
LATENT = replace(ONE_LAYER, latent_dim=9, rope_dim=4)


@pytest.mark.parametrize(
    ("name", "load", "form", "expected"),
    [
        ("llama-3-8b", Load(4096, 100), Format(), 4096 * 100 * 131072),  # 50 GiB
        ("llama-2-7b", Load(1), Format(), 2 * 32 * 4096 * 2),  # half a MiB a token
        ("gpt2", Load(1024), Format("f32"), 1024 * 2 * 12 * 768 * 4),
        ("mistral-7b", Load(32768), Format(), 4096 * 131072),  # never more than the window
        ("gemma-2-9b", Load(8192), Format(), 21 * (4096 + 8192) * 2 * 8 * 256 * 2),
        ("gpt-oss-20b", Load(131072), Format(), 12 * (128 + 131072) * 2 * 8 * 64 * 2),
        ("deepseek-v3", Load(1), Format(), 61 * 576 * 2),
        ("llama-3-8b", Load(10, 3, page_size=16), Format(), 16 * 3 * 131072),
        ("llama-3-8b", Load(1), Format("int8"), 32 * 2 * 8 * (128 + 4)),
        ("llama-3-8b", Load(1), Format("int4", 32, zero_point=True), 32 * 2 * 8 * (64 + 4 * 8)),
    ],
)
def test_known_sums(name: str, load: Load, form: Format, expected: int) -> None:
    assert cache_bytes(find_model(name), load, form) == expected


def test_50_gib() -> None:
    assert cache_bytes(find_model("Llama 3 8B"), Load(4096, 100), Format("f16")) == 50 * 2**30 == 53687091200


def test_shares_of_f32() -> None:
    """With heads of 128 channels; the done-when of the cache kinds."""
    f32, int8, int4 = (
        slot_bytes(find_model("llama-3-8b").kept, Format(dtype)) for dtype in ("f32", "int8", "int4")
    )
    assert int8 / f32 <= 0.27
    assert int4 / f32 <= 0.16


def test_the_heads_of_the_models_fit() -> None:
    for model in MODELS:
        assert model.heads % model.kv_heads == 0, model.name
        assert (model.window is None) == (model.windowed == 0), model.name
        assert 0 <= model.windowed <= model.layers
    assert len({model.name for model in MODELS}) == len(MODELS)


def test_what_saves_what() -> None:
    steps = savings(find_model("gpt-oss-20b"), Load(131072), Format("int8"))
    assert [step.name.split()[0] for step in steps] == ["all", "GQA:", "window", "int8,"]
    assert [step.left for step in steps] == sorted((step.left for step in steps), reverse=True)
    assert steps[0].left == 8 * steps[1].left
    deepseek = savings(find_model("deepseek-v3"), Load(7), Format())
    assert [step.left for step in deepseek] == [7 * 61 * 128 * 320 * 2, 7 * 61 * 576 * 2]
    assert [step.name.split(":")[0] for step in deepseek[1:]] == ["MLA"]
    assert len(savings(find_model("llama-2-7b"), Load(7), Format())) == 1


def test_pages_of_a_window() -> None:
    assert Load(10, page_size=4).slots() == 12
    assert Load(12, page_size=4).slots(4) == 4
    assert Load(13, page_size=4).slots(4) == 8  # positions 9 to 12 lie in two pages
    assert Load(3, page_size=4).slots(100) == 4
    assert Load(13).slots(4) == 4


@pytest.fixture(scope="module")
def port() -> Iterator[Session]:
    command = [sys.executable, "-m", "rosetta_port.numpy_port"]
    with Session(Port(name="python", language="Python", kind="port", command=command)) as session:
        session.start()
        yield session


def held(port: Session, folder: Path, dtype: str, config: dict[str, object]) -> int:
    """The bytes that a cache of the port says it holds: one long append, then single ones, T positions in all."""
    latent = config.get("kind") == "latent"
    first, second = ("latent", "rope_key") if latent else ("k", "v")
    heads, m, n = LATENT.kept if latent else ONE_LAYER.kept
    shape = (B,) if latent else (B, heads)
    rng = np.random.default_rng(0)
    steps: list[dict[str, object]] = []
    tensors = {}
    for number, count in enumerate([T - 3, 1, 1, 1]):
        for name, channels in ((f"a{number}", m), (f"b{number}", n)):
            tensors[name] = rng.standard_normal((*shape, count, channels)).astype(NUMPY_DTYPES[dtype])
        steps.append({"do": "append", first: f"a{number}", second: f"b{number}"})
    write_tensors(folder / "in.safetensors", tensors)
    answer = port.run(
        {
            "case": "kv-cost",
            "op": "kv_cache",
            "variant": "naive",
            "config": config | {"steps": [*steps, {"do": "stats", "out": "s"}]},
            "inputs": str(folder / "in.safetensors"),
            "outputs": str(folder / "out.safetensors"),
            "want": ["s.bytes"],
        }
    )
    assert answer["status"] == "ok", answer
    assert set(answer["steps"]) == {"ok"}, answer
    return int(read_tensors(folder / "out.safetensors")["s.bytes"][0])


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(
    ("config", "model", "load"),
    [
        (SIZES, ONE_LAYER, Load(T, B)),
        (SIZES | {"kind": "rotating", "window": 4}, replace(ONE_LAYER, window=4, windowed=1), Load(T, B)),
        (SIZES | {"kind": "rotating", "window": 40}, replace(ONE_LAYER, window=40, windowed=1), Load(T, B)),
        (SIZES | {"kind": "paged", "page_size": 4, "num_pages": 9}, ONE_LAYER, Load(T, B, page_size=4)),
        ({"kind": "latent", "batch": B, "latent_dim": 9, "rope_dim": 4}, LATENT, Load(T, B)),
    ],
    ids=["contiguous", "rotating", "rotating, not full", "paged", "latent"],
)
def test_caches_hold_what_the_arithmetic_says(
    port: Session, tmp_path: Path, config: dict[str, object], model: Model, load: Load, dtype: str
) -> None:
    assert held(port, tmp_path, dtype, config) == cache_bytes(model, load, Format(dtype))


@pytest.mark.parametrize(
    "form",
    [
        *(Format(dtype) for dtype in DTYPES if dtype != "f32"),
        *(Format(dtype, group) for dtype in CODES for group in (1, 4, 10)),
        *(Format(dtype, group, zero_point=True) for dtype in CODES for group in (None, 4)),
    ],
    ids=lambda form: f"{form.dtype} {form.group} {form.zero_point}",
)
def test_quantised_caches_hold_what_the_arithmetic_says(port: Session, tmp_path: Path, form: Format) -> None:
    name = "fp8_e4m3" if form.dtype == "fp8" else form.dtype
    config: dict[str, object] = SIZES | {"kind": "quantised", "format": name, "zero_point": form.zero_point}
    config |= {} if form.group is None else {"group": form.group}
    assert held(port, tmp_path, "f32", config) == cache_bytes(ONE_LAYER, Load(T, B), form)


def test_names_are_found_however_they_are_written() -> None:
    for name in ("llama-3-8b", "Llama 3 8B", "meta-llama/Meta-Llama-3-8B", "meta-llama-3-8b"):
        assert find_model(name).title == "Llama 3 8B"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lama-3-8b"], "no model is called 'lama-3-8b' (did you mean 'llama-3-8b'?)"),
        (["--dtype", "f8"], "no dtype is called 'f8'; known: f32"),
        (["--context", "0"], "--context: expected at least 1, got 0"),
        (["--users", "-1"], "--users: expected at least 1, got -1"),
        (["--page-size", "0"], "--page-size: expected at least 1, got 0"),
        (["--dtype", "int8", "--group", "0"], "--group: expected at least 1, got 0"),
        (["--group", "4"], "expected an integer dtype (int8, int4), got f16"),
        (["--zero-point"], "expected an integer dtype"),
        (["gpt2", "gpt2"], "unexpected extra argument"),
    ],
)
def test_wrong_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    status, _, err = call(monkeypatch, capsys, arguments)
    assert status == 2
    assert message in err


def test_the_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(monkeypatch, capsys, ["llama-3-8b", "--users", "100"])
    assert status == 0
    for word in ("GQA: 8 key/value heads", "50.00 GiB, 53,687,091,200 bytes", "meta-llama/Meta-Llama-3-8B"):
        assert word in out
    status, out, _ = call(monkeypatch, capsys, ["--dtype", "int8", "--page-size", "16"])
    assert status == 0
    assert all(model.name in out for model in MODELS)
    assert "pages of 16" in out
    assert "gpt2 1,024" in out
    assert "promises 1,024 positions" in call(monkeypatch, capsys, ["gpt2"])[1]


def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["conformance", "kv-cost", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_the_library_refuses_too() -> None:
    with pytest.raises(UsageError, match="no dtype"):
        Format("f64")
