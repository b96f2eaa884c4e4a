"""The decode experiment: what it counts is what runs, its three ways make the same tokens, and the article's do not."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from backends import HAS_TORCH

from rosetta_attention import Mask, MultiHeadAttention
from rosetta_experiments import decode, decode_article, decode_check, one_thread, plot
from rosetta_experiments.decode_ways import (
    CACHE,
    EVERYTHING,
    KEYS_VALUES,
    NUMPY,
    WAYS,
    cost,
    generate,
    random_weights,
    torch_library,
)

WIDTH, HEADS = 12, 3
LIBRARIES = [NUMPY, torch_library()] if HAS_TORCH else [NUMPY]
FLAGS = {"python": [], "torch": ["--torch"]}
libraries = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.port)


def first(width=WIDTH, dtype=np.float32, seed=2):
    return np.random.default_rng(seed).standard_normal((1, 1, width)).astype(dtype)


class Counting(np.ndarray):
    """An array that counts the multiply-adds and numbers of the matrix products that it takes part in."""

    multiply_adds = 0
    numbers = 0

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        plain = [np.asarray(x) if isinstance(x, Counting) else x for x in inputs]
        if "out" in options:
            options["out"] = tuple(np.asarray(x) for x in options["out"])
        result = getattr(ufunc, method)(*plain, **options)
        if ufunc is np.matmul:
            Counting.multiply_adds += result.size * plain[0].shape[-1]
            Counting.numbers += sum(x.size for x in (*plain, result))
        return result.view(Counting) if isinstance(result, np.ndarray) else result

    def __array_function__(self, func, types, args, kwargs):
        result = super().__array_function__(func, types, args, kwargs)
        return result.view(Counting) if isinstance(result, np.ndarray) else result


@pytest.mark.parametrize("way", WAYS)
def test_what_is_counted_is_what_runs(way):
    weights = [w.view(Counting) for w in random_weights(WIDTH)]
    Counting.multiply_adds = Counting.numbers = 0
    generate(way, weights, HEADS, first(), [7])
    expected = cost(way, 7, WIDTH, HEADS)
    assert Counting.multiply_adds == expected.multiply_adds
    assert Counting.numbers * 4 == expected.moved


def test_the_counts_follow_their_formulas():
    T, C = 50, 24
    t = range(1, T + 1)
    assert cost(EVERYTHING, T, C, 4).multiply_adds == sum(4 * n * C * C + 2 * n * n * C for n in t)
    assert cost(KEYS_VALUES, T, C, 4).multiply_adds == sum(2 * n * C * C + 2 * C * C + 2 * n * C for n in t)
    assert cost(CACHE, T, C, 4).multiply_adds == sum(4 * C * C + 2 * n * C for n in t)


@libraries
def test_three_ways_make_the_same_tokens(library):
    weights = random_weights(WIDTH, dtype=np.float64)
    runs = {way: generate(way, weights, HEADS, first(dtype=np.float64), [5, 20], library) for way in WAYS}
    for way in WAYS[1:]:
        np.testing.assert_allclose(runs[way].text, runs[EVERYTHING].text, rtol=1e-9, atol=1e-12)
        for n in (5, 20):
            want = runs[EVERYTHING].outputs[n]
            np.testing.assert_allclose(runs[way].outputs[n], want, rtol=1e-9, atol=1e-12)
    assert runs[CACHE].held == {n: 2 * n * WIDTH * 8 for n in (5, 20)}  # keys and values, float64
    assert runs[EVERYTHING].held == {5: 0, 20: 0}
    assert all(run.seconds[5] <= run.seconds[20] for run in runs.values())


def test_the_exact_output_is_the_layers():
    weights = random_weights(WIDTH, dtype=np.float64)
    text = np.random.default_rng(6).standard_normal((9, WIDTH))
    want = MultiHeadAttention(*weights, HEADS)(text[None], mask=Mask(causal=True))[0, -1]
    got, bound = decode_check.last_output(text, weights, HEADS)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)
    assert np.all(bound < 1e-11)


@libraries
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("width", [4, 32])
def test_an_output_is_within_its_bound(library, way, width):
    weights = random_weights(width)
    run = generate(way, weights, 2, first(width), [1, 3, 40], library)
    off, bound = decode_check.error(run, weights, 2)
    assert 0 < off <= bound < 1e-2


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 0.1], ids=str)
@pytest.mark.parametrize("n", [3, 40])
def test_an_output_beyond_its_bound(wrong, n):
    weights = random_weights(WIDTH)
    run = generate(CACHE, weights, HEADS, first(), [3, 40])
    outputs = {t: x.copy() for t, x in run.outputs.items()}
    outputs[n][0, 0, 5] += wrong
    off, bound = decode_check.error(replace(run, outputs=outputs), weights, HEADS)
    assert not off <= bound


def test_a_cache_that_loses_a_token_is_noticed(monkeypatch, capsys):
    class Losing(MultiHeadAttention):
        def decode(self, x, cache, **options):
            output = super().decode(x, cache, **options)
            cache.truncate([min(len(cache), 6)])
            return output

    monkeypatch.setattr("rosetta_attention.MultiHeadAttention", Losing)
    with pytest.raises(SystemExit) as stopped:
        decode.main(["--n", "4,16", "--width", "8", "--heads", "2", "--json"])
    code = stopped.value.code  # a text, so that the status is 1
    assert code.startswith("decode: cache: an output is off by")
    ways = [json.loads(line)["way"] for line in capsys.readouterr().out.splitlines()]
    assert ways == [EVERYTHING] * 2 + [KEYS_VALUES] * 2


@libraries
def test_lines_of_json(library, capsys):
    decode.main(["--n", "4,2", "--width", "8", "--heads", "2", "--json", *FLAGS[library.port]])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(x["way"], x["tokens"]) for x in lines] == [(way, n) for way in WAYS for n in (2, 4)]
    for line in lines:
        way, n = line["way"], line["tokens"]
        c = cost(way, n, 8, 2)
        held = 2 * 4 * 8 * n if way == CACHE else 0
        counts = {"multiply_adds": c.multiply_adds, "moved": c.moved, "held": held}
        assert line.pop("seconds") > 0
        assert line == {"port": library.port, "way": way, "tokens": n} | counts


def test_growth():
    counted = {
        way: {n: cost(way, n, 64, 4).multiply_adds for n in (4096, 8192)} for way in (EVERYTHING, KEYS_VALUES)
    }
    assert decode.exponent(counted[EVERYTHING]) == pytest.approx(3, abs=0.05)
    assert decode.exponent(counted[KEYS_VALUES]) == pytest.approx(2, abs=0.05)
    assert decode.exponent({n: cost(CACHE, n, 4096, 4).multiply_adds for n in (32, 64)}) == pytest.approx(
        1, abs=0.02
    )
    assert decode.exponent({3: 5, 10: 7, 20: 28}) == pytest.approx(2)


def test_the_plain_layer_is_attention():
    plain = decode_article.PlainLayer()
    weights = [w.T for w in (plain.w_q, plain.w_k, plain.w_v, plain.w_o)]
    layer = MultiHeadAttention(*weights, decode_article.HEADS)
    x = np.random.default_rng(3).standard_normal((2, 5, decode_article.WIDTH))
    np.testing.assert_allclose(plain.forward(x), layer(x), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(plain.forward(x[:, :2], context=x), layer(x[:, :2], x), rtol=1e-9, atol=1e-12)


def test_the_articles_first_loop_never_attends_to_a_past():
    layer = decode_article.PlainLayer()
    tokens = np.random.default_rng(4).standard_normal((6, 1, decode_article.WIDTH))
    alone = tokens @ layer.w_v @ layer.w_o
    for n, output in enumerate(decode_article.as_it_stands(layer, tokens, cached=False), 1):
        np.testing.assert_allclose(output, alone[:n], rtol=1e-9, atol=1e-12)
    cached = decode_article.as_it_stands(layer, tokens, cached=True)
    np.testing.assert_allclose(cached[0][0], alone[0], rtol=1e-9, atol=1e-12)
    assert not np.allclose(cached[5][0], alone[5])


def test_the_honest_ways_do():
    plain = decode_article.PlainLayer()
    weights = [w.T for w in (plain.w_q, plain.w_k, plain.w_v, plain.w_o)]
    tokens = np.random.default_rng(5).standard_normal((6, 1, decode_article.WIDTH))
    layer = MultiHeadAttention(*weights, decode_article.HEADS)
    expected = layer(tokens.swapaxes(0, 1), mask=Mask(causal=True))  # (1, 6, C)
    for way in WAYS:
        got = np.concatenate(decode_article.honest(plain, tokens, way), axis=1)
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


@libraries
def test_the_tables_and_the_plot(library, capsys, tmp_path):
    file = tmp_path / "plot.svg"
    flags = FLAGS[library.port]
    decode.main(["--n", "4,2", "--width", "8", "--heads", "2", "--plot", str(file), *flags])
    printed = capsys.readouterr().out
    for word in (*WAYS, library.title, "mul-adds", "MiB moved", "grows", "T^", "The cache holds", "Drawn"):
        assert word in printed
    root = ET.fromstring(file.read_text())
    assert [e.tag.rpartition("}")[2] for e in root].count("polyline") == 3
    assert {"cache", "everything", "keys and values", "2", "4"} <= {e.text for e in root.iter() if e.text}


def test_the_article(capsys):
    said = decode_article.article_text(1, 10)
    for word in ("7.1", "axis 0", "55 tokens", "5.5 times as many", "honest"):
        assert word in said
    assert max(map(len, said.splitlines())) <= 110


def test_names_of_lines_do_not_cover_each_other():
    lines = [plot.Line(name, {1: 1.0, 10: y}) for name, y in (("a<b", 5.0), ("c", 5.1), ("d", 5.2))]
    root = ET.fromstring(plot.log_log(lines, "x", "y"))
    ends = sorted(float(e.get("y")) for e in root.iter() if e.text in ("a<b", "c", "d"))
    assert min(np.diff(ends)) >= plot.GAP - 0.1
    ET.fromstring(plot.log_log([plot.Line("one", {7: 0.003})], "x", "y"))  # a single point


def test_one_thread(monkeypatch):
    started = []
    monkeypatch.setattr("os.execv", lambda *command: started.append(command))
    for name in one_thread.VARIABLES:
        monkeypatch.setenv(name, "2")
    one_thread.start_anew("some.module", ["--x"])
    assert started[0][1][1:] == ["-m", "some.module", "--x"]
    one_thread.start_anew("some.module", ["--x"])
    assert len(started) == 1


def test_the_least_of_many_times(monkeypatch):
    times = iter([0, 5, 10, 12, 20, 29])
    monkeypatch.setattr(one_thread, "seconds", lambda: next(times))
    calls = []
    assert one_thread.least(lambda: calls.append(1), 3) == 2
    assert len(calls) == 4  # one before the clock runs


@pytest.mark.parametrize(
    "arguments",
    [
        ["--n", "0"],
        ["--width", "10", "--heads", "4"],
        ["--repeats", "0"],
        ["--n", "2", "--plot", "/no/such/x.svg"],
        ["--article", "--json"],
        ["--article", "--torch"],
    ],
    ids=str,
)
def test_refusals(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        decode.main(arguments)
    assert stopped.value.code == 2
    assert "error" in capsys.readouterr().err


def test_help(capsys):
    with pytest.raises(SystemExit) as stopped:
        decode.main(["--help"])
    assert stopped.value.code == 0
    assert "python -m rosetta_experiments.decode" in capsys.readouterr().out
