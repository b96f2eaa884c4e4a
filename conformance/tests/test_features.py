"""Every feature that the protocol lets a port claim is asked by some case that has an answer."""

import re
from functools import cache

import pytest

from conformance import cases
from conformance.cases import bench_caches
from conformance.features import features
from conformance.realise import realise
from conformance.repository import ROOT

ROW = re.compile(r"^\| (\w+) \| (.+) \|$", re.MULTILINE)


def documented() -> dict[str, set[str]]:
    """The table of features in docs/protocol.md, op by op."""
    text = (ROOT / "docs" / "protocol.md").read_text()
    table = text[text.index("| op | features |") : text.index("`unsupported` names what is missing")]
    claims = {}
    for op, row in ROW.findall(table):
        if op != "op":
            row = re.sub(r"\([^)]*\)", "", row.replace("those of block without context", ""))
            claims[op] = set(re.findall(r"[a-z]\w*", re.sub(r"\b(and|the|outputs?)\b", "", row)))
    claims["transformer"] |= claims["block"] - {"context", "context_lengths"}
    return claims


CLAIMS = documented()


@cache
def asked() -> dict[str, set[str]]:
    """What the cases ask for, op by op."""
    found: dict[str, set[str]] = {}
    for suite in cases.SUITES:
        for draft in cases.drafts(suite):
            if draft.error is None:
                inputs, _ = realise(draft, draft.dtypes[0], answers=False)
                names = features(draft.op, draft.config, inputs, draft.want)
                found.setdefault(draft.op, set()).update(names)
    for draft in bench_caches.drafts():  # made where they are timed
        found["kv_cache"].update(features(draft.op, draft.config, draft.inputs, draft.want))
    return found


def test_the_table_is_read() -> None:
    assert len(CLAIMS) >= 25
    assert CLAIMS["gelu"] == {"tanh"}
    assert {"swiglu", "unembedding", "logits"} <= CLAIMS["transformer"]


@pytest.mark.parametrize("op", CLAIMS)
def test_every_feature_is_asked_and_no_other(op: str) -> None:
    assert asked()[op] == CLAIMS[op]
