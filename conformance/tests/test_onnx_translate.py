"""The translators of ONNX's operators: layouts, and the calls that they refuse."""

from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from conformance.onnx_suite import attention, blocks, linear, positions
from conformance.onnx_suite.calls import (
    Call,
    Layout,
    TranslationError,
    joined_axes,
    moved_axis,
    packed_heads,
)
from conformance.onnx_suite.translate import TRANSLATORS, VERSIONS, translate
from conformance.onnx_suite.vectors import read_vectors
from conformance.oracle import answer
from conformance.repository import ROOT

Change = Callable[[Call], Call]


def plain(operator: str, name: str = "") -> Call:
    """The first vector of an operator, or the one of that name."""
    return next(v.call for v in read_vectors(operator) if name in ("", v.name))


def with_inputs(**inputs: np.ndarray) -> Change:
    return lambda call: replace(call, inputs=call.inputs | inputs)


def with_attributes(**attributes: object) -> Change:
    return lambda call: replace(call, attributes=call.attributes | attributes)


REFUSED: list[tuple[str, Change, str]] = [
    ("Attention", with_inputs(sinks=np.zeros(3, np.float32)), "Attention: not translated: sinks"),
    ("Attention", lambda call: replace(call, wanted=("Y", "lse")), "not translated: lse"),
    ("Attention", with_attributes(alibi=1), "not translated: alibi"),
    (
        "Attention",
        with_attributes(softmax_precision=10),
        "softmax_precision: expected float or double, got 10",
    ),
    (
        "Attention",
        with_inputs(attn_mask=np.zeros((4, 6), np.int64)),
        "attn_mask: expected bool or the type of Q",
    ),
    ("Attention", with_inputs(V=np.zeros((2, 6, 24), np.float32)), "V: expected rank 4, got 3"),
    (
        "Attention",
        with_inputs(V=np.zeros((2, 3, 6, 8))),
        "expected inputs of one float type .* got float32, float64",
    ),
    ("Attention", with_inputs(attn_mask=np.ones((4, 7), bool)), "attn_mask: expected at most 6 keys"),
    (
        "Attention",
        with_inputs(past_key=np.zeros((2, 3, 1, 8), np.float32)),
        "past_key and past_value together",
    ),
    (
        "Attention",
        with_inputs(
            past_key=np.zeros((2, 3, 1, 8), np.float32),
            past_value=np.zeros((2, 3, 1, 8), np.float32),
            nonpad_kv_seqlen=np.ones(2, np.int64),
        ),
        "past_key or nonpad_kv_seqlen, got both",
    ),
    ("RotaryEmbedding", with_inputs(cos_cache=np.zeros((2, 3, 4), np.float32)), "expected tables of rank 2"),
    (
        "RotaryEmbedding",
        with_inputs(X=np.zeros((2, 3, 32), np.float32)),
        "a number of heads that divides 32, got None",
    ),
    (
        "TensorScatter",
        with_attributes(mode=b"modular"),
        "mode: expected one of circular, linear, got modular",
    ),
    ("TensorScatter", with_attributes(axis=0), "axis: expected one beside the batch .* got 0"),
    ("LinearAttention", with_attributes(kv_num_heads=5), "a number of heads that divides 32, got 5"),
    ("LinearAttention", with_attributes(update_rule=b"hebb"), "update_rule: expected one of .* got hebb"),
    ("LayerNormalization", with_attributes(stash_type=11), "stash_type: expected 1"),
    ("LayerNormalization", with_attributes(axis=4), "axis: expected one of rank 4, got 4"),
    ("Gelu", with_attributes(approximate=b"sigmoid"), "approximate: expected one of none, tanh, got sigmoid"),
    ("SwiGLU", with_attributes(beta=1.0), "not translated: beta"),
    ("Softmax", with_inputs(mask=np.zeros(3, bool)), "not translated: mask"),
]


@pytest.mark.parametrize(("operator", "change", "message"), REFUSED)
def test_what_is_not_translated_is_an_error(operator: str, change: Change, message: str) -> None:
    with pytest.raises(TranslationError, match=message):
        translate(change(plain(operator)))


def test_an_operator_that_is_not_known_is_an_error() -> None:
    with pytest.raises(TranslationError, match=r"operator: expected one of Attention, .* got Conv"):
        translate(replace(plain("Softmax"), operator="Conv"))


def test_an_older_or_a_newer_form_of_an_operator_is_an_error() -> None:
    """Softmax joined axes before version 13, and what version 99 will do nobody knows."""
    for version in (11, 99):
        with pytest.raises(TranslationError, match=f"Softmax: version: expected one of 13, got {version}"):
            translate(replace(plain("Softmax"), version=version))
    assert {v.call.version for v in read_vectors("Attention")} == set(VERSIONS["Attention"])
    assert VERSIONS.keys() == TRANSLATORS.keys()


@pytest.mark.parametrize("operator", TRANSLATORS)
def test_every_layout_goes_there_and_back(operator: str) -> None:
    for vector in read_vectors(operator):
        wanted = set(vector.outputs)
        for question in translate(vector.call):
            back = question.results(question.answers(vector.outputs))
            wanted -= set(back)
            for name, x in back.items():
                assert x.dtype == vector.outputs[name].dtype
                np.testing.assert_array_equal(x, vector.outputs[name])
        assert not wanted, vector.name


def test_the_scores_after_the_bias_are_hidden_on_the_way_back() -> None:
    """There every condition is in them, which the comparison of layouts above cannot see: -inf stays -inf."""
    name = "4d_with_past_and_present_qk_matmul_bias_4d_mask_causal"
    vector = next(v for v in read_vectors("Attention") if v.name == name)
    question = attention.to_sdpa(vector.call)
    ours = answer(question.op, question.config, question.inputs)
    assert np.isfinite(ours["biased"]).all()
    theirs = question.results(ours)["qk_matmul_output"]
    np.testing.assert_array_equal(np.isneginf(theirs), np.isneginf(vector.outputs["qk_matmul_output"]))
    assert np.isneginf(theirs).any()


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (packed_heads("X", 3, 6), (1, 2, 6)),
        (moved_axis(0, -1), (3, 4, 5)),
        (joined_axes((2, 3, 4), 1), (2, 3, 4)),
        (joined_axes((2, 3), 0), (2, 3)),
        (blocks.joined_statistic((2, 3, 4), 1), (2, 1, 1)),
        (blocks.joined_statistic((2, 3), 0), (1, 1)),
    ],
)
def test_a_layout_and_its_reverse(layout: Layout, shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape)).reshape(shape)
    np.testing.assert_array_equal(layout.to_theirs(layout.to_ours(x)), x)


def test_packed_heads_lie_side_by_side() -> None:
    """(B, T, H·n): the second head's numbers follow the first one's."""
    x = np.arange(12, dtype=np.float32).reshape(1, 2, 6)
    assert packed_heads("X", 3, 6).to_ours(x)[0, 1].tolist() == [[2, 3], [8, 9]]


def test_tables_without_positions_are_numbered_by_token() -> None:
    cos = np.arange(12.0).reshape(2, 3, 2)
    found = positions.numbered(cos, cos)
    assert found["positions"].tolist() == [[0, 1, 2], [3, 4, 5]]
    np.testing.assert_array_equal(found["cos"][found["positions"]], cos)


def test_a_number_a_head_lies_on_the_heads() -> None:
    x = np.arange(6).reshape(1, 2, 3)  # (B, T, H)
    assert linear.per_head(x)[0, :, :, 0].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_weight_is_broadcast_to_the_axes_that_are_joined() -> None:
    call = Call("RMSNormalization", 23, {}, {"scale": np.array([1, 2])}, ("Y",))
    assert blocks.joined_weight(call, "scale", (3, 2)).tolist() == [1, 2, 1, 2, 1, 2]
    with pytest.raises(
        TranslationError, match=r"scale: expected a shape that broadcasts to \(2, 3\), got \(2,\)"
    ):
        blocks.joined_weight(call, "scale", (2, 3))


def test_statistics_of_halves_are_refused() -> None:
    """ONNX's are float32 there, ours would have been rounded."""
    call = plain("LayerNormalization")
    halves = {name: x.astype(ml_dtypes.bfloat16) for name, x in call.inputs.items()}
    with pytest.raises(TranslationError, match="Mean and InvStdDev: expected X in f32, got bf16"):
        translate(replace(call, inputs=halves))
    (question,) = translate(replace(call, inputs=halves, wanted=("Y",)))
    assert question.want == ("output",)


def test_the_page_names_everything_that_is_translated() -> None:
    text = (ROOT / "docs/onnx.md").read_text()
    known = attention.KNOWN_INPUTS | attention.KNOWN_OUTPUTS | attention.KNOWN_ATTRIBUTES
    known |= positions.KNOWN_INPUTS | positions.KNOWN_ATTRIBUTES
    known |= linear.KNOWN_INPUTS | linear.KNOWN_ATTRIBUTES | blocks.NORM_ATTRIBUTES
    known |= {name for operator in TRANSLATORS for v in read_vectors(operator) for name in v.call.inputs}
    known |= {name for operator in TRANSLATORS for v in read_vectors(operator) for name in v.call.attributes}
    for name in sorted(known):
        assert f"`{name}`" in text, name
