"""The sentence embeddings with a port's attention in every layer, held against those of the package itself.

Two questions, one measure: the distance 1 - cosine.

- embedding: each sentence of the padded batch against the package's own embedding.
- padding: each sentence alone, without any padding, against itself in the padded batch.

In both only roundings differ, since kernels sum in another order. A dot product of 1536 float32 terms errs by some
sqrt(1536) · 2^-24 = 2.3e-6 of its size, twelve residual sums add up to 2.8e-5, and half the square of that is 4e-10.
Allowed is 1e-9: a thousand times what the NumPy reference shows. Padding that is only weakened, by a bias of -12 in
place of -inf, is over it.
"""

import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

from ..outcome import Difference, Judgement, Result
from ..session import PortFault, Session
from .attention import AttentionFault, PortAttention, missing_claim
from .encoder import Attention, Encoder, embed, load_encoder
from .golden import read_golden
from .sentences import SENTENCES, tokenise

SUITE = "minilm"
NO_VARIANT = "-"
TOLERANCE = 1e-9


class PortSimilarity(msgspec.Struct, frozen=True, tag_field="kind", tag="port"):
    """What came of one port, as the file keeps it too. Lists have one entry a sentence, in the order of SENTENCES.

    table: the cosine of every pair; empty when there are no embeddings. embedding, padding: how each of the
    two questions above was judged.
    """

    port: str
    variant: str
    table: list[list[float]]
    embedding: list[Judgement]
    padding: list[Judgement]
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether every sentence passed both."""
        return all(judgement.outcome == "pass" for judgement in [*self.embedding, *self.padding])

    @property
    def embedding_distance(self) -> float:
        """The largest 1 - cosine to the package's own embeddings."""
        return max(judgement.share for judgement in self.embedding) * TOLERANCE

    @property
    def padding_distance(self) -> float:
        """The largest 1 - cosine between a sentence alone and in the batch."""
        return max(judgement.share for judgement in self.padding) * TOLERANCE

    @property
    def fault(self) -> str:
        """The message of the first thing that went wrong, or how it ended; empty when nothing did."""
        bad = (judgement for judgement in [*self.embedding, *self.padding] if judgement.outcome != "pass")
        return next((judgement.message or judgement.outcome for judgement in bad), "")


def measure_session(session: Session) -> PortSimilarity:
    """The port in every layer; it goes on running. Whatever it does, every sentence has its judgements."""
    name = session.port.name
    try:
        claims = session.start()
    except PortFault as fault:
        return _all_alike(name, NO_VARIANT, Judgement(fault.outcome, str(fault)))
    missing = missing_claim(claims)
    if missing is not None:
        return _all_alike(name, NO_VARIANT, Judgement("unsupported", f"{missing} is not claimed"))
    encoder = load_encoder("f32")
    variant = claims.ops["mha"].variants[0]
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        return measure(encoder, PortAttention(session, encoder, variant, Path(folder)), name, variant)


def measure(encoder: Encoder, attention: Attention, port: str = "", variant: str = "") -> PortSimilarity:
    """Any attention in every layer: the padded batch, then each sentence alone."""
    started = time.monotonic()
    try:
        batch = embed(encoder, tokenise(), attention)
    except AttentionFault as fault:
        return _all_alike(port, variant, fault.judgement)
    golden = read_golden()
    embedding = [_judge(*pair, TOLERANCE) for pair in zip(golden, batch, strict=True)]
    padding = []
    for row, (_, text) in zip(batch, SENTENCES, strict=True):
        try:
            alone = embed(encoder, tokenise((text,)), attention)[0]
        except AttentionFault as fault:
            padding.append(fault.judgement)
        else:
            padding.append(_judge(alone, row, TOLERANCE))
    table = (batch.astype(np.float64) @ batch.T).tolist() if np.isfinite(batch).all() else []
    seconds = round(time.monotonic() - started, 6)
    return PortSimilarity(port, variant, table, embedding, padding, seconds)


def to_results(found: PortSimilarity) -> list[Result]:
    """The judgements as lines of a report: minilm/embedding/NAME and minilm/padding/NAME."""
    seconds = round(found.seconds / (2 * len(SENTENCES)), 6)
    return [
        Result(found.port, SUITE, f"{SUITE}/{what}/{name}", "f32", found.variant, judgement, seconds)
        for what, judgements in (("embedding", found.embedding), ("padding", found.padding))
        for (name, _), judgement in zip(SENTENCES, judgements, strict=True)
    ]


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """1 - cosine, as half the squared distance of the unit vectors: exact where 1 - cosine would cancel."""
    a, b = (v.astype(np.float64) / np.linalg.norm(v.astype(np.float64)) for v in (a, b))
    return float(np.square(a - b).sum()) / 2


def _judge(expected: np.ndarray, got: np.ndarray, tolerance: float) -> Judgement:
    """One embedding against another."""
    if not np.isfinite(got).all():
        reason = "the embedding is not finite"
        return Judgement("fail", reason, difference=Difference("embedding", reason))
    found = distance(expected, got)
    max_abs = float(np.abs(expected.astype(np.float64) - got).max())
    if found <= tolerance:
        return Judgement("pass", share=found / tolerance, max_abs=max_abs)
    reason = f"1 - cosine is {found:.1e}, allowed {tolerance:.0e}"
    worst = int(np.abs(expected.astype(np.float64) - got).argmax())
    values = {"expected": f"{expected[worst]:.7g}", "got": f"{got[worst]:.7g}", "bound": f"{tolerance:.0e}"}
    difference = Difference("embedding", reason, [worst], **values)
    return Judgement("fail", reason, share=found / tolerance, max_abs=max_abs, difference=difference)


def _all_alike(port: str, variant: str, judgement: Judgement) -> PortSimilarity:
    """Nothing could be measured, so every sentence is judged the same."""
    judgements = [judgement] * len(SENTENCES)
    return PortSimilarity(port, variant, [], judgements, judgements)
