"""The suite `onnx`: ONNX's node cases as questions to our ops, with two answers each, the oracle's and ONNX's own.

A port's answer must be within the derived bound of ours *and* within ONNX's tolerance of theirs. That the two do not
contradict each other is shown here, when the suite is made: the oracle itself must pass by ONNX's tolerance.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from ..case import Case, Published, Suite, Tensors
from ..cases import draft as drafts
from ..cases import script
from ..cases.draft import Draft
from ..fixtures import FixtureError
from ..generated import DTYPE, ensure_made, hash_code, name_origin, write_draft, write_manifest
from ..judge import judge_published
from ..realise import realise
from . import attention, flags, softmax, vectors
from .attention import past_length, to_cache, to_sdpa
from .softmax import to_softmax
from .vectors import PACKAGE, Vector, VectorError, package_version, read_vectors

NAME = "onnx"
VERSION = 1


def ensure_suite(folder: Path) -> Path:
    """The folder, with the suite in it. Raises FixtureError when the package is not there, or not the right one."""
    try:
        code = hash_code(attention, drafts, flags, script, softmax, vectors, sys.modules[__name__])
        return ensure_made(folder, name_origin(package=package_version(), code=code), build_suite)
    except VectorError as error:
        raise FixtureError(f"suite {NAME}: {error}") from error


def build_suite(folder: Path) -> Suite:
    """Writes every case and the manifest. Raises VectorError when ours and ONNX's answers contradict each other."""
    source = f"{PACKAGE} {package_version()}"
    cases = []
    for vector, draft, answers in translate():
        published = Published(source, vector.rtol, vector.atol)
        case = write_draft(folder, draft, published, answers)
        check_agreement(case, draft, answers)
        cases.append(case)
    return write_manifest(folder, NAME, VERSION, cases, left_out())


def translate() -> Iterator[tuple[Vector, Draft, Tensors]]:
    """Every vector that our ops can express, as a question, with ONNX's answers under our names."""
    expressible = [vector for vector in read_vectors("Attention") if vector.half_type is None]
    for vector in expressible:
        yield vector, *to_sdpa(vector)
    for vector in expressible:
        if past_length(vector):
            yield vector, *to_cache(vector)
    for vector in read_vectors("Softmax"):
        yield vector, *to_softmax(vector)


def left_out() -> dict[str, str]:
    """The vectors that cannot be asked yet, under the ids that they will have, and why."""
    return {
        f"{NAME}/attention/{vector.name}": f"stored in {vector.half_type}, which no op of ours takes yet"
        for vector in read_vectors("Attention")
        if vector.half_type is not None
    }


def check_agreement(case: Case, draft: Draft, answers: Tensors) -> float:
    """The share of ONNX's tolerance that the oracle uses. Raises VectorError above 1.

    Only then does an answer that is within the derived bound of ours have anything to do with ONNX's.
    """
    inputs, expected = realise(draft, DTYPE)
    assert expected is not None
    verdict = judge_published(case, DTYPE, inputs, answers, expected)
    if verdict.outcome != "pass":
        raise VectorError(f"{case.id}: the oracle disagrees with {PACKAGE}: {verdict.message}")
    return verdict.share
