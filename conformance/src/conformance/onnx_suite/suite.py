"""The suite `onnx`: ONNX's node cases as questions to our ops, with two answers each, the oracle's and ONNX's own.

A port's answer must be within the derived bound of ours *and* within ONNX's tolerance of theirs. That the two do not
contradict each other is shown here, when the suite is made: the oracle itself must pass by ONNX's tolerance.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..case import Case, Published, Suite
from ..cases import draft as drafts
from ..cases import script as scripts
from ..cases.draft import Draft
from ..cases.script import Script
from ..fixtures import FixtureError
from ..generated import ensure_made, hash_code, name_origin, write_draft, write_manifest
from ..judge import judge_published
from ..realise import realise
from ..tensors import NUMPY_DTYPES, Tensors, is_float
from .attention import all_keys, conditions, options, past_length, to_sdpa, unpack
from .calls import Call, TranslationError
from .flags import attention_flags, describe, describe_attention, flags_of
from .translate import TRANSLATORS, translate
from .vectors import PACKAGE, PREFIXES, Vector, VectorError, package_version, read_vectors

NAME = "onnx"
VERSION = 2
# Outputs that are only moved about, and so must come out bit for bit.
EXACT = {"cache_write": ("output",)}


def ensure_suite(folder: Path) -> Path:
    """The folder, with the suite in it. Raises FixtureError when the package is not there, or not the right one."""
    try:
        own = sorted(Path(__file__).parent.glob("*.py"))
        code = hash_code(drafts, scripts, *own)
        return ensure_made(folder, name_origin(package=package_version(), code=code), build_suite)
    except (VectorError, TranslationError) as error:
        raise FixtureError(f"suite {NAME}: {error}") from error


def build_suite(folder: Path) -> Suite:
    """Writes every case and the manifest. Raises VectorError when ours and ONNX's answers contradict each other."""
    source = f"{PACKAGE} {package_version()}"
    cases = []
    for vector, draft, answers in make_drafts():
        published = Published(source, vector.rtol, vector.atol)
        case = write_draft(folder, draft, published, answers)
        check_agreement(case, draft, answers)
        cases.append(case)
    return write_manifest(folder, NAME, VERSION, cases)


def make_drafts() -> Iterator[tuple[Vector, Draft, Tensors]]:
    """Every vector as a question, with ONNX's answers under our names; those with a past also as a cache."""
    for operator in TRANSLATORS:
        for vector in read_vectors(operator):
            yield vector, *to_draft(vector)
    for vector in read_vectors("Attention"):
        if past_length(vector.call):
            yield vector, *to_cache(vector)


def to_draft(vector: Vector) -> tuple[Draft, Tensors]:
    """The vector's first question: of Attention the one to sdpa, since the cache has a case of its own."""
    call = vector.call
    question = translate(call)[0]
    answers = question.answers(vector.outputs)
    described = call.operator == "Attention"
    draft = Draft(
        id=f"{NAME}/{PREFIXES[call.operator]}/{vector.name}",
        op=question.op,
        inputs=question.inputs,
        config=question.config,
        want=tuple(answers),
        flags=flags_of(question),
        note=describe_attention(call, question.config, question.inputs) if described else describe(call),
        exact=EXACT.get(question.op, ()),
        dtypes=(call.dtype,),
    )
    return draft, answers


def to_cache(vector: Vector) -> tuple[Draft, Tensors]:
    """The same call on a cache that holds the past: append it, append what is new, attend, read what is present."""
    call = vector.call
    past, q = past_length(call), unpack(call, "Q", "q_num_heads")
    k, v = (unpack(call, name, "kv_num_heads") for name in "KV")
    B, Hkv, new, D = k.shape
    script = Script(vector.name, B, q.shape[1], Hkv, D, v.shape[3], capacity=past + new)
    script.append(past, k=call.inputs["past_key"], v=call.inputs["past_value"]).append(new, k=k, v=v)
    asked: dict[str, Any] = options(call) | conditions(call)
    script.attend(q.shape[2], q=q, lse=False, q_offset=past, **asked).read()
    config, inputs = options(call) | {"q_offset": past}, all_keys(call) | conditions(call)
    draft = script.draft(
        f"{describe_attention(plain_of(call), config, inputs)}; on a cache that holds the past and is read afterwards",
        *dict.fromkeys([*attention_flags(config, inputs), "StaleReset"]),
    )
    answers = {
        "out0": to_sdpa(call).answers(vector.outputs)["output"],
        "read0.k": vector.outputs["present_key"],
        "read0.v": vector.outputs["present_value"],
    }
    answers |= {f"again.{name}": x for name, x in answers.items()}  # the replay after a reset
    return replace(draft, id=f"{NAME}/cache/{vector.name}", dtypes=(call.dtype,)), answers


def plain_of(call: Call) -> Call:
    """The call without the intermediate, which a cache does not give."""
    return replace(call, wanted=tuple(name for name in call.wanted if name != "qk_matmul_output"))


def check_agreement(case: Case, draft: Draft, answers: Tensors) -> float:
    """The share of ONNX's tolerance that the oracle, rounded to the case's type, uses. Raises VectorError above 1.

    Only then does an answer that is within the derived bound of ours have anything to do with ONNX's.
    """
    (dtype,) = draft.dtypes
    inputs, expected = realise(draft, dtype)
    assert expected is not None
    verdict = judge_published(case, dtype, inputs, answers, rounded(expected, dtype))
    if verdict.outcome != "pass":
        raise VectorError(f"{case.id}: the oracle disagrees with {PACKAGE}: {verdict.message}")
    return verdict.share


def rounded(expected: Tensors, dtype: str) -> Tensors:
    """The oracle's answers as an honest port would store them."""
    return {name: x.astype(NUMPY_DTYPES[dtype]) if is_float(x) else x for name, x in expected.items()}
