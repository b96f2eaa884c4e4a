"""The oracle of casts, random words, positions and partial attention, against what it does not share a line with."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import cases
from conformance.bounds import derive
from conformance.bounds.arithmetic import Arithmetic
from conformance.cases.draft import Draft
from conformance.cases.mha_options import pack
from conformance.cases.sdpa_sizes import random_inputs
from conformance.cases.varlen import packed
from conformance.inputs import Draw
from conformance.oracle import answer
from conformance.oracle.cast import FORMATS, round_exactly
from conformance.oracle.philox import philox_block, philox_stream
from conformance.oracle.positions import alibi_slopes, bucket_of
from conformance.realise import realise


def one(op: str, config: dict[str, Any], **inputs: Any) -> np.ndarray:
    return answer(op, config, {name: np.asarray(x) for name, x in inputs.items()})["output"]


def drafts_of(suite: str, op: str) -> list[Draft]:
    return [d for d in cases.drafts(suite) if d.op == op and d.error is None]


# Casts


@given(st.floats(allow_nan=False, width=64))
@settings(max_examples=400, deadline=None)
def test_a_cast_to_f16_and_f32_is_numpys(x: float) -> None:
    """NumPy rounds f64 to f16 and to f32 in one step."""
    with np.errstate(all="ignore"):
        for name, dtype in (("f16", np.float16), ("f32", np.float32)):
            expected = float(dtype(x))
            got = round_exactly(x, FORMATS[name])
            assert (got, math.copysign(1, got)) == (expected, math.copysign(1, expected))


@given(st.floats(allow_nan=False, width=32))
@settings(max_examples=400, deadline=None)
def test_a_cast_of_f32_to_bf16_is_that_of_ml_dtypes(x: float) -> None:
    with np.errstate(all="ignore"):
        assert round_exactly(x, FORMATS["bf16"]) == float(np.float32(x).astype(ml_dtypes.bfloat16))


@given(st.floats(2.0**-130, 2.0**126), st.integers(-3, 3))
@settings(max_examples=300, deadline=None)
def test_a_cast_of_f64_to_bf16_is_the_nearest_and_ties_are_even(x: float, steps: int) -> None:
    """By its definition, among the neighbours: ml_dtypes goes by way of f32, and is no judge here."""
    got = round_exactly(x, FORMATS["bf16"])
    code = int(np.float32(got).view(np.uint32)) >> 16
    other = float(np.uint32((code + steps) << 16).view(np.float32)) if code + steps >= 0 else 0.0
    assert abs(got - x) <= abs(other - x)
    if steps % 2 and abs(got - x) == abs(other - x):
        assert code % 2 == 0


# Random words


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0,) * 4, (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_has_the_known_answers(counter: Any, key: Any, words: str) -> None:
    """The vectors that are published with Random123, kat_vectors: philox4x32 of 10 rounds."""
    assert " ".join(f"{word:08x}" for word in philox_block(counter, key)) == words


def test_the_stream_can_be_entered_anywhere() -> None:
    whole = list(philox_stream(7, 2**34 - 9, 30))
    assert whole[11:16] == list(philox_stream(7, 2**34 + 2, 5))
    assert list(philox_stream(2**32 + 5, 0, 4)) == list(philox_block((0, 0, 0, 0), (5, 1)))
    assert whole[9:13] == list(philox_block((0, 1, 0, 0), (7, 0)))


def test_dropout_keeps_the_mean() -> None:
    """30,000 words: the share that stays is that of the binomial law within five standard deviations."""
    keep = answer("dropout", {"p": 0.3, "seed": 1}, {"x": np.ones(30_000)})["keep"]
    assert abs(keep.mean() - 0.7) < 5 * math.sqrt(0.3 * 0.7 / 30_000)


# Positions


def test_sinusoidal_of_the_paper() -> None:
    table = answer("sinusoidal", {"offset": 3}, {"x": np.zeros((1, 2, 6))})["table"]
    for t in range(2):
        for i in range(3):
            angle = (3 + t) / 10000 ** (2 * i / 6)
            assert table[0, t, 2 * i : 2 * i + 2] == pytest.approx(
                [math.sin(angle), math.cos(angle)], abs=1e-15
            )


def test_rope_by_hand() -> None:
    """Both pairings at position 1, and one cosine far out."""
    x = np.array([1.0, 2, 3, 4]).reshape(1, 1, 1, 4)
    half = one("rope", {"offset": 1}, x=x).ravel()
    assert half == pytest.approx([-1.984111, 1.959901, 2.462378, 4.019800], abs=5e-7)
    neighbours = one("rope", {"offset": 1, "interleaved": True}, x=x).ravel()
    assert neighbours == pytest.approx([-1.142640, 1.922076, 2.959851, 4.029800], abs=5e-7)
    far = answer("rope", {"offset": 1857}, {"x": np.zeros((1, 1, 1, 32))})
    assert far["cos"][0, 0, 1] == pytest.approx(0.306693, abs=5e-7)


@given(st.integers(0, 5000), st.integers(-200, 200), st.booleans())
@settings(max_examples=40, deadline=None)
def test_rotated_products_depend_on_the_distance_only(p: int, distance: int, interleaved: bool) -> None:
    draw = Draw(f"rope/{p}/{distance}")
    q, k = draw.normal(1, 1, 1, 8), draw.normal(1, 1, 1, 8)

    def score(shift: int) -> float:
        rows = [{"x": x, "positions": np.array([[n + shift]])} for x, n in ((q, p), (k, p + distance))]
        turned = [answer("rope", {"interleaved": interleaved}, row)["output"] for row in rows]
        return float((turned[0] * turned[1]).sum())

    assert score(0) == pytest.approx(score(977), abs=1e-10)


@pytest.mark.parametrize("base", [10000.0, 500000.0])
@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "yarn-smooth", "llama3", "longrope"])
def test_scaled_frequencies_are_those_of_transformers(kind: str, base: float) -> None:
    """In f32, as they compute them there."""
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
    torch = pytest.importorskip("torch")
    theirs: dict[str, Any] = {"factor": 4.0, "original_max_position_embeddings": 4096, "rope_theta": base}
    ours: dict[str, Any] = {"type": kind.split("-")[0], "factor": 4.0, "original_length": 4096}
    if kind == "yarn-smooth":
        theirs |= {"truncate": False, "beta_fast": 8}
        ours |= {"truncate": False, "beta_fast": 8}
    if kind == "llama3":
        theirs |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind == "longrope":
        lists = {"short_factor": [1.0] * 32, "long_factor": np.linspace(1, 9, 32).tolist()}
        theirs |= lists
        ours |= lists
    settings_ = type("Config", (), {})()
    settings_.rope_parameters = {"rope_type": ours["type"], **theirs}
    settings_.hidden_size, settings_.num_attention_heads, settings_.head_dim = 64, 1, 64
    settings_.max_position_embeddings = 4096
    settings_.standardize_rope_params = lambda *args, **options: None
    frequencies, factor = rope_utils.ROPE_INIT_FUNCTIONS[ours["type"]](
        settings_, torch.device("cpu"), seq_len=9000
    )
    rows = {"x": np.zeros((1, 1, 2, 64)), "positions": np.array([[1, 8999]])}
    cos, sin = (answer("rope", {"base": base, "scaling": ours}, rows)[name][0, 0] for name in ("cos", "sin"))
    exact = Arithmetic.of("f64")  # cos and sin of one angle, times the factor, and the root of their squares
    assert np.hypot(cos, sin) == pytest.approx(factor, rel=exact.elementary + exact.gamma(4))
    # Theirs are of f32: its rounding of an exponent counts ln(base) times, and a few more come after it.
    assert np.arctan2(sin, cos) == pytest.approx(frequencies.numpy(), rel=(math.log(base) + 8) * 2.0**-24)


def test_alibi_slopes_are_those_of_the_paper() -> None:
    """Its own recipe: halves of the next power of two, recursively."""

    def recipe(n: int) -> list[float]:
        if math.log2(n).is_integer():
            start = 2 ** (-(2 ** -(math.log2(n) - 3)))
            return [start * start**i for i in range(n)]
        m = 2 ** math.floor(math.log2(n))
        return recipe(m) + recipe(2 * m)[0::2][: n - m]

    assert alibi_slopes(3) == [2**-4, 2**-8, 2**-2]
    for H in range(1, 40):
        # The rounding of `start` counts once for each power, of which there are fewer than 2 H.
        assert alibi_slopes(H) == pytest.approx(recipe(H), rel=(2 * H + 2) * 2.0**-52, abs=0)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_are_those_of_the_formula_with_logarithms(bidirectional: bool) -> None:
    for rows in (4, 6, 8, 10, 32, 64):
        n = rows // 2 if bidirectional else rows
        e = n // 2
        for longest in (e + 1, 16, 50, 128, 324):
            for r in range(-400, 401) if longest > e else ():
                d = abs(r) if bidirectional else max(-r, 0)
                far = e + math.floor(math.log(max(d, e) / e) / math.log(longest / e) * (n - e) + 1e-9)
                expected = (n if bidirectional and r > 0 else 0) + (d if d < e else min(n - 1, far))
                assert bucket_of(r, rows, longest, bidirectional) == expected


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_are_those_of_t5(bidirectional: bool) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    torch = pytest.importorskip("torch")
    distances = torch.arange(-300, 301)
    theirs = t5.T5Attention._relative_position_bucket(distances, bidirectional, 32, 128)
    assert theirs.tolist() == [bucket_of(r, 32, 128, bidirectional) for r in distances.tolist()]


# Partial attention


@given(st.integers(0, 9), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_two_halves_merge_to_the_whole(cut: int, seed: int) -> None:
    inputs = random_inputs(f"merge/{seed}", 1, 2, 1, 3, 9, 4, 5)
    whole = answer("sdpa", {}, inputs)
    parts = [
        answer("sdpa", {}, inputs | {name: inputs[name][:, :, keys] for name in ("k", "v")})
        for keys in (slice(0, cut), slice(cut, 9))
    ]
    states = {
        f"{name}_{what}": part[what]
        for name, part in zip("ab", parts, strict=True)
        for what in ("output", "lse")
    }
    merged = answer("merge", {}, states)
    bounds = derive("sdpa", {}, inputs, "f64")
    for name in ("output", "lse"):
        assert (np.abs(merged[name] - whole[name]) <= bounds[name]).all()


def test_merge_in_powers_of_two_would_be_wrong() -> None:
    states = {"a_output": [[0.0]], "a_lse": [0.0], "b_output": [[4.0]], "b_lse": [math.log(3)]}
    merged = answer("merge", {}, {name: np.array(x) for name, x in states.items()})
    assert merged["output"].item() == pytest.approx(3, abs=1e-15)
    assert merged["lse"].item() == pytest.approx(math.log(4), abs=1e-15)


def test_packed_sequences_are_padded_rows() -> None:
    """Each sequence as a row of a padded batch with lengths."""
    q_lengths, k_lengths = (3, 1, 5), (4, 6, 5)
    inputs = packed("padded", q_lengths, k_lengths, 4, 2)
    output = answer("varlen", {"causal": True}, inputs)["output"]
    q, k, v = np.zeros((3, 4, 5, 4)), np.zeros((3, 2, 6, 4)), np.zeros((3, 2, 6, 3))
    for s in range(3):
        a, c = inputs["cu_seqlens_q"][s], inputs["cu_seqlens_k"][s]
        q[s, :, : q_lengths[s]] = inputs["q"][a : a + q_lengths[s]].swapaxes(0, 1)
        for padded, rows in ((k, inputs["k"]), (v, inputs["v"])):
            padded[s, :, : k_lengths[s]] = rows[c : c + k_lengths[s]].swapaxes(0, 1)
    whole = answer("sdpa", {"causal": True}, {"q": q, "k": k, "v": v, "kv_lengths": np.array(k_lengths)})[
        "output"
    ]
    rows = [whole[s, :, : q_lengths[s]].swapaxes(0, 1) for s in range(3)]
    bound = derive("varlen", {"causal": True}, inputs, "f64")["output"]
    assert (np.abs(output - np.concatenate(rows)) <= bound).all()


@pytest.mark.parametrize("draft", drafts_of("scoring", "scoring"), ids=lambda d: d.id)
def test_scoring_against_whole_arrays(draft: Draft) -> None:
    """The same by products of whole arrays, within the bound of float64."""
    inputs, expected = realise(draft, draft.dtypes[-1])
    assert expected is not None
    x = {name: t.astype(np.float64) for name, t in inputs.items()}
    form = draft.config["form"]
    if form == "additive":
        hidden = np.tanh((x["q"] @ x["w_q"].T)[:, :, None] + (x["k"] @ x["w_k"].T)[:, None])
        scores = hidden @ x["w_v"]
    else:
        left = x["q"] @ x["w"] if form == "general" else x["q"]
        scores = left @ x["k"].swapaxes(1, 2) / (math.sqrt(left.shape[-1]) if form == "scaled" else 1)
    Tk = x["v"].shape[1]
    shown = np.arange(Tk) < inputs.get("kv_lengths", np.full(len(scores), Tk))[:, None, None]
    bounds = derive(
        "scoring",
        draft.config,
        {name: t.astype(np.float64) if t.dtype.kind != "i" else t for name, t in inputs.items()},
        "f64",
    )
    with np.errstate(all="ignore"):
        z = np.where(shown, scores, -np.inf)
        top = z.max(axis=-1, initial=-1e300, keepdims=True)
        weights = np.exp(z - top)
        total = weights.sum(axis=-1, keepdims=True)
        weights = np.where(shown, weights / np.where(total == 0, 1, total), 0)
        output = (
            weights @ np.where(shown[:, 0, :, None], x["v"], 0) if Tk else np.zeros(expected["output"].shape)
        )
    for name, got in (("weights", weights), ("output", output)):
        finite = np.isfinite(expected[name])
        assert (np.abs(got - expected[name])[finite] <= bounds[name][finite]).all(), name


# The layer


def test_a_packed_layer_is_the_layer() -> None:
    draft = next(d for d in drafts_of("mha", "mha") if d.id == "mha/gqa/6-2")
    whole = answer("mha", draft.config, draft.inputs)["output"]
    square = {**draft.inputs, "w_v": draft.inputs["w_k"] * 0.5, "w_o": draft.inputs["w_o"][:, :18]}
    whole = answer("mha", draft.config, square)["output"]
    for packing in ("blocks", "heads"):
        one_weight = answer("mha", {**draft.config, "packing": packing}, pack(square, packing, 6, 2))
        assert np.array_equal(one_weight["output"], whole)


def test_a_layer_that_rotates_is_sdpa_of_rotated_heads() -> None:
    """By hand through the op rope, and q_norm by its formula."""
    draft = next(d for d in drafts_of("mha", "mha") if d.id == "mha/qk-norm/rope")
    x, w = draft.inputs["x"], draft.inputs
    heads = {}
    for name, count in (("q", 4), ("k", 2), ("v", 2)):
        y = (x @ w[f"w_{name}"].T).reshape(2, 5, count, 4).swapaxes(1, 2)
        if name != "v":
            y = y / np.sqrt((y**2).mean(axis=-1, keepdims=True) + 1e-6) * w[f"{name}_norm"]
            y = one("rope", {}, x=y)
        heads[name] = y
    attended = answer("sdpa", {}, heads)["output"]
    output = attended.swapaxes(1, 2).reshape(2, 5, 16) @ w["w_o"].T
    bound = derive("mha", draft.config, w, "f64")["output"]
    assert (np.abs(answer("mha", draft.config, w)["output"] - output) <= bound).all()


def test_the_position_of_a_new_token_counts() -> None:
    """2.937694; 2.380015 with the new token at 0, 2.163366 with keys turned twice."""
    draft = next(d for d in drafts_of("mha", "mha") if d.id == "mha/by-hand/rope")
    output = answer("mha", draft.config, draft.inputs)["output"]
    assert output[0, 2, 0] == pytest.approx(2.937694, abs=5e-7)
