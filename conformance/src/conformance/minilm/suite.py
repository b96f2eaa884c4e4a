"""The suite `minilm`: what every layer's attention really gets, on a dozen sentences in one padded batch.

Made where it is used and never committed: its weights are those of an installed package. Made again only when
that package, the sentences, or the code that makes it has changed.

Letters: B sentences, T tokens of the longest, C model width, H heads, D head size.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from .. import case, oracle
from .. import realise as realisation
from ..case import Case, Suite, encode_suite
from ..cases.draft import Draft
from ..features import cost, features
from ..flags import NOTES
from ..realise import realise, write_case
from . import encoder, erf, sentences
from .encoder import attention_mask, embed, load_encoder, plain_attention
from .sentences import package_version, sentences_sha256, tokenise

NAME = "minilm"
VERSION = 1
OTHER_FORM_LAYER = 3  # whose input is also asked about with lengths, and with the padding on the other side


def ensure_suite(folder: Path) -> Path:
    """The folder, with the suite in it. Raises ModuleNotFoundError when the package is not installed."""
    stamp = folder / "stamp.json"
    origin = _origin()
    if not (stamp.is_file() and (folder / "manifest.json").is_file() and stamp.read_text() == origin):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as new:
            build_suite(Path(new, NAME))
            Path(new, NAME, stamp.name).write_text(origin)
            shutil.rmtree(folder, ignore_errors=True)
            Path(new, NAME).rename(folder)
    return folder


def build_suite(folder: Path) -> Suite:
    """Writes every case and the manifest."""
    cases = [_write(folder, draft) for draft in make_drafts()]
    flags = sorted({flag for made in cases for flag in made.flags})
    suite = Suite(NAME, VERSION, cases, {flag: NOTES[flag] for flag in flags})
    (folder / "manifest.json").write_bytes(encode_suite(suite))
    return suite


def make_drafts() -> Iterator[Draft]:
    """Every layer with its mask; one layer also with lengths, and with the padding on the other side."""
    model = load_encoder("f32")
    tokens = tokenise()
    mask = attention_mask(tokens)  # (B, 1, 1, T)
    for layer, x in enumerate(layer_inputs()):
        draft = Draft(
            id=f"{NAME}/layer-{layer}/mask",
            op="mha",
            config={"num_heads": model.num_heads},
            inputs={"x": x, "mask": mask, **model.attention_weights(layer)},
            flags=("Real",),
            note=f"layer {layer} of all-MiniLM-L6-v2 on {len(x)} sentences of {tokens.lengths.min()} to "
            f"{tokens.lengths.max()} tokens; the mask hides the padding on the right",
            dtypes=("f32",),
        )
        yield draft
        if layer == OTHER_FORM_LAYER:
            rest = {name: tensor for name, tensor in draft.inputs.items() if name != "mask"}
            yield replace(
                draft,
                id=f"{NAME}/layer-{layer}/kv_lengths",
                inputs={**rest, "kv_lengths": tokens.lengths},
                note=f"layer {layer} with lengths in place of the mask: the answer is the same",
            )
            yield replace(
                draft,
                id=f"{NAME}/layer-{layer}/left_padding",
                inputs={**rest, "x": pad_left(x, tokens.mask), "mask": mask[..., ::-1]},
                flags=("Real", "LeftPadding"),
                note=f"layer {layer} with the padding on the left: the same rows of numbers in other places",
            )


def layer_inputs() -> list[np.ndarray]:
    """The input of every layer's attention: (B, T, C) float32.

    Computed in float64 and rounded at the end, so that it does not depend on how a machine sums in float32.
    """
    reference = load_encoder("f64")
    inner = plain_attention(reference)
    seen: list[np.ndarray] = []

    def attention(layer: int, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        seen.append(x.astype(np.float32))
        return inner(layer, x, mask)

    embed(reference, tokenise(), attention)
    return seen


def pad_left(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Every row of (B, T, C) moved to the end, its padding to the front."""
    return np.stack(
        [np.roll(row, len(shown) - shown.sum(), axis=0) for row, shown in zip(x, mask, strict=True)]
    )


def _write(folder: Path, draft: Draft) -> Case:
    """Writes the two files of a case and returns its entry."""
    inputs, expected = realise(draft, "f32")
    assert expected is not None
    flops, moved = cost(draft.op, draft.config, inputs, expected)
    return Case(
        id=draft.id,
        op=draft.op,
        config=draft.config,
        files={"f32": write_case(folder, draft, "f32", inputs, expected)},
        want=list(draft.want),
        features=features(draft.op, draft.config, inputs, draft.want),
        flags=list(draft.flags),
        note=draft.note,
        shapes={name: list(tensor.shape) for name, tensor in inputs.items()},
        flops=flops,
        bytes=moved,
    )


def _origin() -> str:
    """What the suite is made from: package, sentences and code."""
    code = [Path(str(module.__file__)) for module in (case, realisation, encoder, erf, sentences)]
    code += [Path(__file__), *sorted(Path(str(oracle.__file__)).parent.glob("*.py"))]
    return json.dumps(
        {
            "package": package_version(),
            "sentences": sentences_sha256(),
            "code": hashlib.sha256(b"".join(path.read_bytes() for path in code)).hexdigest(),
        }
    )
