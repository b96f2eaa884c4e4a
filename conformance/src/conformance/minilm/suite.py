"""The suite `minilm`: what every layer's attention really gets, on a dozen sentences in one padded batch.

Made where it is used and never committed: its weights are those of an installed package. Made again only when
that package, the sentences, or the code that makes it has changed.

Letters: B sentences, T tokens of the longest, C model width, H heads, D head size.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..case import Suite
from ..cases.draft import Draft
from ..generated import ensure_made, hash_code, name_origin, write_draft, write_manifest
from . import encoder, erf, sentences
from .encoder import attention_mask, embed, load_encoder, plain_attention
from .sentences import package_version, sentences_sha256, tokenise

NAME = "minilm"
VERSION = 1
OTHER_FORM_LAYER = 3  # whose input is also asked about with lengths, and with the padding on the other side


def ensure_suite(folder: Path) -> Path:
    """The folder, with the suite in it. Raises ModuleNotFoundError when the package is not installed."""
    origin = name_origin(
        package=package_version(),
        sentences=sentences_sha256(),
        code=hash_code(encoder, erf, sentences, sys.modules[__name__]),
    )
    return ensure_made(folder, origin, build_suite)


def build_suite(folder: Path) -> Suite:
    """Writes every case and the manifest."""
    return write_manifest(folder, NAME, VERSION, [write_draft(folder, draft) for draft in make_drafts()])


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
