"""Real input: the encoder against the package's own, the suite made of it, and ports put into it."""

import hashlib
import importlib.util
import io
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from fakes import fake_port
from rich.console import Console

from conformance.case import read_suite
from conformance.judge import judge_answer
from conformance.minilm import golden, sentences, similarity, suite
from conformance.minilm.attention import AttentionFault, PortAttention
from conformance.minilm.encoder import Attention, attention_mask, embed, load_encoder, plain_attention
from conformance.minilm.erf import erf
from conformance.minilm.record import record
from conformance.minilm.sentences import SENTENCES, tokenise
from conformance.minilm.similarity import PortSimilarity, distance, measure, measure_session, to_results
from conformance.minilm.table import similarity_table
from conformance.outcome import Judgement
from conformance.page_minilm import read_minilm, view_minilm
from conformance.session import Session, Timeouts
from conformance.tensors import Dtype, read_tensors, write_tensors

Edit = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (scores, mask) -> logits
HEADS, HEAD_SIZE = 12, 32


def edited_attention(logits: Edit, head_order: np.ndarray | None = None) -> Attention:
    """Attention with its mask and scale, or the order in which heads are merged, as they are given."""
    model = load_encoder("f32")
    order = np.arange(HEADS) if head_order is None else head_order

    def attention(layer: int, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        w = model.attention_weights(layer)
        B, T, C = x.shape
        q, k, v = (
            (x @ w[f"w_{p}"].T + w[f"b_{p}"]).reshape(B, T, HEADS, HEAD_SIZE).swapaxes(1, 2) for p in "qkv"
        )
        z = logits(q @ k.swapaxes(-1, -2), mask)
        p = np.exp(z - z.max(axis=-1, keepdims=True))
        heads = ((p / p.sum(axis=-1, keepdims=True)).astype(x.dtype) @ v)[:, order]
        output: np.ndarray = heads.swapaxes(1, 2).reshape(B, T, C) @ w["w_o"].T + w["b_o"]
        return output

    return attention


def hide(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.where(mask, scores / math.sqrt(HEAD_SIZE), -np.inf)


def ignore_mask(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return scores / math.sqrt(HEAD_SIZE)


def forget_scale(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.where(mask, scores, -np.inf)


def weaken_padding(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return scores / math.sqrt(HEAD_SIZE) + np.where(mask, 0, -10)


# What an attention does, and whether the embedding and the padding check notice something wrong.
ATTENTIONS = {
    "right": (edited_attention(hide), False, False),
    "mask ignored": (edited_attention(ignore_mask), True, True),
    "scale missing": (edited_attention(forget_scale), True, False),
    "heads reversed": (edited_attention(hide, np.arange(HEADS)[::-1]), True, False),
    "heads tiled": (edited_attention(hide, np.arange(HEADS).reshape(2, 6).T.ravel()), True, False),
    "padding only weakened": (edited_attention(weaken_padding), True, True),
}


@cache
def measured(name: str) -> PortSimilarity:
    return measure(load_encoder("f32"), ATTENTIONS[name][0], name, "naive")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The suite, made once."""
    return suite.ensure_suite(tmp_path_factory.mktemp("fixtures") / "minilm")


def test_erf_is_the_standard_librarys() -> None:
    x = np.concatenate([np.linspace(-7, 7, 50_001), [0.0, 1e-300, np.inf, -np.inf]])
    assert np.abs(erf(x) - [math.erf(v) for v in x]).max() < 1e-14
    assert np.isnan(erf(np.array([np.nan]))).all()
    assert np.signbit(erf(np.array([-0.0]))).all()
    assert erf(np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_a_dozen_sentences_of_different_lengths() -> None:
    tokens = tokenise()
    assert len(SENTENCES) == len({name for name, _ in SENTENCES}) == 12
    assert len(set(tokens.lengths.tolist())) == 12
    assert tokens.ids.shape == (12, tokens.lengths.max())
    assert (tokens.mask == (np.arange(tokens.ids.shape[1]) < tokens.lengths[:, None])).all()
    assert (tokens.ids[~tokens.mask] == 0).all()


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_the_encoder_is_the_packages(dtype: Dtype) -> None:
    found = embed(load_encoder(dtype), tokenise())
    assert found.dtype == {"f32": np.float32, "f64": np.float64}[dtype]
    assert max(map(distance, golden.read_golden(), found)) < 1e-11  # of 1e-9 allowed


def test_padding_is_nothing_to_the_reference() -> None:
    model = load_encoder("f64")
    batch = embed(model, tokenise())
    alone = np.concatenate([embed(model, tokenise((text,))) for _, text in SENTENCES])
    assert np.abs(batch - alone).max() < 1e-14


def test_similar_sentences_are_similar() -> None:
    found = golden.read_golden().astype(np.float64)
    cosines = np.triu(found @ found.T, 1)
    pairs = {(SENTENCES[i].name, SENTENCES[j].name) for i, j in np.argwhere(cosines > 0.4)}
    assert pairs == {
        ("cat-mat", "kitten-rug"),
        ("password", "login"),
        ("rain", "umbrella"),
        ("query", "attention"),
    }


def test_golden_of_other_sentences_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "sentences_sha256", lambda: "other")
    with pytest.raises(ValueError, match="sentences: expected other"):
        golden.read_golden()


# The package's own runtime comes with the torch port.
@pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None, reason="the torch port is not installed"
)
def test_golden_is_what_the_package_computes() -> None:
    assert np.abs(golden.compute_golden() - golden.read_golden()).max() < 1e-5


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "MODULE", "no_such_module_here")
    with pytest.raises(ModuleNotFoundError, match=r"`make setup` installs requirements/minilm\.txt"):
        sentences.model_folder()


@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_broken_attention_is_caught(name: str) -> None:
    _, moves_embedding, moves_padding = ATTENTIONS[name]
    found = measured(name)
    assert found.ok == (name == "right")
    assert any(judgement.outcome == "fail" for judgement in found.embedding) == moves_embedding
    assert any(judgement.outcome == "fail" for judgement in found.padding) == moves_padding
    assert ("1 - cosine is" in found.fault) == (name != "right")
    if name == "right":
        assert max(found.embedding_distance, found.padding_distance) < 1e-11


def test_the_judgements_are_lines_of_a_report() -> None:
    results = to_results(measured("right"))
    assert len({result.case for result in results}) == len(results) == 24
    assert {result.case.rpartition("/")[0] for result in results} == {"minilm/embedding", "minilm/padding"}
    assert {(r.port, r.suite, r.dtype, r.variant) for r in results} == {("right", "minilm", "f32", "naive")}


def test_the_page_gets_all_of_it(tmp_path: Path) -> None:
    found = measured("right")
    record([found], tmp_path / "minilm.jsonl")
    back = read_minilm(tmp_path / "minilm.jsonl")
    assert [name for name, _ in back.header.sentences] == [name for name, _ in SENTENCES]
    assert back.ports[0].table == found.table
    assert view_minilm(back).heats[0].own == found.embedding_distance


def test_a_fault_in_the_batch_is_every_sentences() -> None:
    def attention(layer: int, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        raise AttentionFault(Judgement("crash", "layer 0: gone"))

    found = measure(load_encoder("f32"), attention)
    assert {judgement.outcome for judgement in [*found.embedding, *found.padding]} == {"crash"}
    assert found.table == []
    assert len(to_results(found)) == 24


def test_a_fault_alone_is_that_sentences() -> None:
    right = plain_attention(load_encoder("f32"))

    def attention(layer: int, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        if x.shape[:2] == (1, 4):  # the shortest, alone
            raise AttentionFault(Judgement("error", "layer 0: internal: index out of range"))
        return right(layer, x, mask)

    found = measure(load_encoder("f32"), attention)
    assert [judgement.outcome for judgement in found.embedding] == ["pass"] * 12
    assert [judgement.outcome for judgement in found.padding] == ["error"] + ["pass"] * 11


def test_the_tables_fit_the_terminal() -> None:
    none = similarity._all_alike("julia", "-", Judgement("crash", "it died\n  stderr: why"))
    for found, words in (
        (measured("right"), "equal the package's own"),
        (measured("mask ignored"), "allowed"),
        (none, "it died"),
    ):
        stream = io.StringIO()
        Console(file=stream, width=100).print(similarity_table(found))
        lines = stream.getvalue().splitlines()
        assert words in lines[0]
        assert "…" not in stream.getvalue()
        assert max(map(len, lines)) <= 100
        assert sum(name in line for line in lines for name, _ in SENTENCES) >= 12


def test_the_manifest_says_what_is_there(folder: Path) -> None:
    found = read_suite(folder)
    forms = {f"minilm/layer-{layer}/mask" for layer in range(6)}
    assert {case.id for case in found.cases} == forms | {
        "minilm/layer-3/kv_lengths",
        "minilm/layer-3/left_padding",
    }
    for case in found.cases:
        assert (case.op, case.config, case.want) == ("mha", {"num_heads": 12}, ["output"])
        assert "projection_bias" in case.features
        assert "Real" in case.flags
        assert set(case.flags) <= set(found.notes)
        files = case.files["f32"]
        for what, sha in files.sha256.items():
            content = (folder / {"inputs": files.inputs, "expected": str(files.expected)}[what]).read_bytes()
            assert hashlib.sha256(content).hexdigest() == sha
        inputs = read_tensors(folder / files.inputs)
        assert case.shapes == {name: list(tensor.shape) for name, tensor in inputs.items()}
        assert {tensor.dtype for name, tensor in inputs.items() if name not in ("mask", "kv_lengths")} == {
            np.dtype("f4")
        }
        assert all(np.isfinite(tensor).all() for tensor in inputs.values())
        assert read_tensors(folder / str(files.expected))["output"].dtype == np.float64


def test_mask_lengths_and_left_padding_have_one_answer(folder: Path) -> None:
    outputs = {
        case.id: read_tensors(folder / str(case.files["f32"].expected))["output"]
        for case in read_suite(folder).cases
    }
    mask = outputs["minilm/layer-3/mask"]
    left = suite.pad_left(mask, tokenise().mask)
    assert np.abs(outputs["minilm/layer-3/kv_lengths"] - mask).max() < 1e-12
    assert np.abs(outputs["minilm/layer-3/left_padding"] - left).max() < 1e-12


def test_the_judge_tells_right_from_wrong(folder: Path, tmp_path: Path) -> None:
    case = read_suite(folder).cases[5]
    inputs = read_tensors(folder / case.files["f32"].inputs)
    expected = read_tensors(folder / str(case.files["f32"].expected))
    for name in ("right", "mask ignored", "scale missing", "heads reversed"):
        outputs = tmp_path / f"{name}.safetensors"
        write_tensors(outputs, {"output": ATTENTIONS[name][0](3, inputs["x"], inputs["mask"])})
        judgement = judge_answer(case, "f32", {"status": "ok"}, inputs, expected, outputs)
        assert judgement.outcome == ("pass" if name == "right" else "fail"), name


def test_the_suite_is_made_again_only_when_its_source_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (folder / "manifest.json").stat().st_mtime_ns
    assert suite.ensure_suite(folder) == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == made

    def build(new: Path) -> None:
        new.mkdir()
        (new / "manifest.json").write_text("anew")

    copy = folder.with_name("copy")
    copy.mkdir()
    for name in ("manifest.json", "stamp.json"):
        (copy / name).write_bytes((folder / name).read_bytes())
    monkeypatch.setattr(suite, "build_suite", build)
    suite.ensure_suite(copy)
    assert (copy / "manifest.json").read_text() != "anew"
    monkeypatch.setattr(suite, "package_version", lambda: "0.2.0")
    suite.ensure_suite(copy)
    assert (copy / "manifest.json").read_text() == "anew"


PORT = """
import numpy as np
from safetensors.numpy import load_file, save_file
from pathlib import Path

CLAIM = {"variants": ["naive"], "dtypes": ["f32"], "features": ["mask", "projection_bias"]}
START["ops"] = {"mha": CLAIM}

def attend(request):
    t = load_file(request["inputs"])
    H = request["config"]["num_heads"]
    B, T, C = t["x"].shape
    q, k, v = ((t["x"] @ t["w_" + p].T + t["b_" + p]).reshape(B, T, H, C // H).swapaxes(1, 2) for p in "qkv")
    z = q @ k.swapaxes(-1, -2) / np.float32(C // H) ** np.float32(0.5)
    z = np.where(t["mask"], z, np.float32(-np.inf))
    p = np.exp(z - z.max(axis=-1, keepdims=True))
    heads = (p / p.sum(axis=-1, keepdims=True)) @ v
    return heads.swapaxes(1, 2).reshape(B, T, C) @ t["w_o"].T + t["b_o"]

def write(request, output):
    save_file({"output": np.ascontiguousarray(output)}, request["outputs"])
"""
HONEST = """
for request in requests():
    write(request, attend(request))
    say(ok(request))
"""
# What a port answers to a call, and how that must end.
FAULTS = {
    "nothing written": ("say(ok(request))", "fail", "no outputs that can be read"),
    "wrong shape": ("write(request, attend(request)[:, 1:]); say(ok(request))", "fail", "expected float32"),
    "NaN": ("write(request, attend(request) * np.float32('nan')); say(ok(request))", "fail", "not finite"),
    "float64": ("write(request, attend(request).astype(float)); say(ok(request))", "fail", "got float64"),
    "error": (
        "say({**ok(request), 'status': 'error', 'code': 'internal', 'message': 'm'})",
        "error",
        "internal: m",
    ),
    "unsupported": (
        "say({**ok(request), 'status': 'unsupported', 'feature': 'x'})",
        "fail",
        "claimed all of it",
    ),
    "written on error": (
        "write(request, attend(request)); say({**ok(request), 'status': 'error', 'code': 'internal'})",
        "fail",
        "but wrote a file",
    ),
    "crash": ("os._exit(3)", "crash", "exit status 3"),
    "hang": ("time.sleep(60)", "timeout", "no answer"),
}


def test_a_port_takes_the_attention_over(tmp_path: Path) -> None:
    with Session(fake_port(tmp_path, PORT + HONEST)) as session:
        found = measure_session(session)
        assert found.ok, found.fault
        assert (found.port, found.variant) == ("fake", "naive")
        session.stop()


@pytest.mark.parametrize("name", FAULTS)
def test_a_ports_fault_is_judged(tmp_path: Path, name: str) -> None:
    answer, outcome, words = FAULTS[name]
    body = f"{PORT}\nfor request in requests():\n    {answer}\n"
    model = load_encoder("f32")
    tokens = tokenise((SENTENCES[0].text,))
    x = np.ones((1, 4, 384), np.float32)
    with Session(fake_port(tmp_path, body), timeouts=Timeouts(start=20, run=2, stop=2)) as session:
        attention = PortAttention(session, model, "naive", tmp_path)
        with pytest.raises(AttentionFault, match=words) as caught:
            attention(2, x, attention_mask(tokens))
    assert caught.value.judgement.outcome == outcome
    assert caught.value.judgement.message.startswith("layer 2: ")


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ("START['ops'] = {}", "op mha"),
        ("CLAIM['dtypes'] = ['f64']", "dtype f32 of mha"),
        ("CLAIM['features'] = ['mask']", "projection_bias of mha"),
    ],
)
def test_what_is_not_claimed_is_not_asked(tmp_path: Path, change: str, missing: str) -> None:
    with Session(
        fake_port(tmp_path, f"{PORT}\n{change}\nfor request in requests():\n    os._exit(3)\n")
    ) as session:
        found = measure_session(session)
    judgements = {(judgement.outcome, judgement.message) for judgement in [*found.embedding, *found.padding]}
    assert judgements == {("unsupported", f"{missing} is not claimed")}
