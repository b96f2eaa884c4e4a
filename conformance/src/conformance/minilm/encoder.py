"""The encoder in NumPy: BERT with the layer norm after each residual sum, mean pooling, unit length.

Attention is a callable, so that a port can take every layer's over; all the rest is done here, the same for
all.

Letters: B sentences, T tokens, C = 384 model width, H = 12 heads, D = 32 head size.

Sources: Devlin et al., "BERT", 2019; Wang et al., "MiniLM", 2020; Reimers and Gurevych, "Sentence-BERT",
2019.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from safetensors.numpy import load_file

from ..tensors import NUMPY_DTYPES, Dtype, Tensors
from .erf import erf
from .sentences import Tokens, model_folder

# attention(layer, x (B, T, C), mask (B, 1, 1, T) true = attend) -> (B, T, C): projections, heads and all.
Attention = Callable[[int, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Encoder:
    """The weights, in the dtype that is computed in; the embedding tables stay as they were stored."""

    weights: Tensors
    num_layers: int
    num_heads: int
    epsilon: float
    dtype: Dtype

    def attention_weights(self, layer: int) -> Tensors:
        """The weights of one layer's attention under the names of the protocol's `mha`."""
        prefix = f"encoder.layer.{layer}.attention."
        parts = {"q": "self.query", "k": "self.key", "v": "self.value", "o": "output.dense"}
        named = {f"w_{letter}": self.weights[f"{prefix}{part}.weight"] for letter, part in parts.items()}
        return named | {f"b_{letter}": self.weights[f"{prefix}{part}.bias"] for letter, part in parts.items()}


@cache
def load_encoder(dtype: Dtype = "f32") -> Encoder:
    """The encoder of the installed package. f32 is what is stored and what a port sees, f64 the reference."""
    folder = model_folder()
    config = json.loads((folder / "config.json").read_text())
    weights = {
        name: tensor.astype(NUMPY_DTYPES[dtype], copy=False) if "layer." in name else tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    return Encoder(
        weights,
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        epsilon=config["layer_norm_eps"],
        dtype=dtype,
    )


def embed(encoder: Encoder, tokens: Tokens, attention: Attention | None = None) -> np.ndarray:
    """The embeddings of the sentences, each of length 1: (B, C). Without `attention`, the plain one below."""
    attention = plain_attention(encoder) if attention is None else attention
    x = _embed_tokens(encoder, tokens.ids)  # (B, T, C)
    mask = attention_mask(tokens)  # (B, 1, 1, T)
    for layer in range(encoder.num_layers):
        prefix = f"encoder.layer.{layer}."
        x = _layer_norm(encoder, f"{prefix}attention.output.LayerNorm", x + attention(layer, x, mask))
        wide = _gelu(_dense(encoder, f"{prefix}intermediate.dense", x))  # (B, T, 4C)
        x = _layer_norm(
            encoder, f"{prefix}output.LayerNorm", x + _dense(encoder, f"{prefix}output.dense", wide)
        )
    return _pool(x, tokens.mask)


def attention_mask(tokens: Tokens) -> np.ndarray:
    """Every query sees the tokens of its own sentence: (B, 1, 1, T)."""
    return tokens.mask[:, None, None, :]


def plain_attention(encoder: Encoder) -> Attention:
    """Multi-head attention as the formula says, in the encoder's own dtype."""

    def attention(layer: int, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        w = encoder.attention_weights(layer)
        B, T, C = x.shape
        H = encoder.num_heads
        q, k, v = (
            _linear(x, w[f"w_{part}"], w[f"b_{part}"]).reshape(B, T, H, C // H).swapaxes(1, 2)
            for part in "qkv"
        )  # (B, H, T, D)
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(C // H)  # (B, H, T, T)
        scores = np.where(mask, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = (weights / weights.sum(axis=-1, keepdims=True)).astype(x.dtype)
        merged = (weights @ v).swapaxes(1, 2).reshape(B, T, C)
        return _linear(merged, w["w_o"], w["b_o"])

    return attention


def _embed_tokens(encoder: Encoder, ids: np.ndarray) -> np.ndarray:
    """Token, position and segment tables added up, then normed: (B, T) to (B, T, C)."""
    rows = [
        encoder.weights["embeddings.word_embeddings.weight"][ids],
        encoder.weights["embeddings.position_embeddings.weight"][: ids.shape[1]],
        encoder.weights["embeddings.token_type_embeddings.weight"][0],
    ]
    words, positions, segment = (row.astype(NUMPY_DTYPES[encoder.dtype], copy=False) for row in rows)
    return _layer_norm(encoder, "embeddings.LayerNorm", words + segment + positions)


def _linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """y = x Wᵀ + b, as one matrix product: NumPy would make one a sentence, which is slower."""
    y: np.ndarray = x.reshape(-1, x.shape[-1]) @ weight.T + bias
    return y.reshape(*x.shape[:-1], len(weight))


def _dense(encoder: Encoder, name: str, x: np.ndarray) -> np.ndarray:
    """The linear map of that name."""
    return _linear(x, encoder.weights[f"{name}.weight"], encoder.weights[f"{name}.bias"])


def _layer_norm(encoder: Encoder, name: str, x: np.ndarray) -> np.ndarray:
    """Mean 0 and variance 1 over the channels, then scale and shift."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    scale = encoder.weights[f"{name}.weight"].astype(x.dtype, copy=False)
    shift = encoder.weights[f"{name}.bias"].astype(x.dtype, copy=False)
    y: np.ndarray = centred / np.sqrt(variance + encoder.epsilon) * scale + shift
    return y


def _gelu(x: np.ndarray) -> np.ndarray:
    """x · Φ(x), with the normal distribution itself: the tanh formula is off by up to 5e-4."""
    y: np.ndarray = 0.5 * x * (1 + erf(x / math.sqrt(2)))
    return y.astype(x.dtype)


def _pool(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The mean over the tokens that are there, scaled to length 1: (B, T, C) to (B, C)."""
    shown = mask[:, :, None]
    mean = np.where(shown, x, 0).sum(axis=1) / shown.sum(axis=1)
    unit: np.ndarray = mean / np.linalg.norm(mean, axis=-1, keepdims=True)
    return unit.astype(x.dtype)
