"""The bounds of a block and of a whole stack, stage by stage.

Beside x, a state holds what a stage has made of it for the next one: its norm, then the hidden layer.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..oracle.block import attention_call, below, parts
from ..tensors import Tensors
from .activations import propagate_gelu, propagate_relu, propagate_swiglu
from .arithmetic import Arithmetic, Bounded
from .mha import linear, propagate_mha
from .norms import propagate_layer_norm, propagate_rms_norm
from .stages import Stage, propagate_stages


def bound_block(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op block: an exact x."""
    stages = list(block_stages(arithmetic, config, inputs))
    return {"output": propagate_stages(stages, arithmetic.exact(inputs["x"])).error}


def bound_transformer(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Tensors:
    """The op transformer: exact embeddings."""
    tokens = inputs["tokens"]
    x = arithmetic.exact(inputs["embedding"][tokens])
    if "position_embedding" in inputs:
        x = arithmetic.add(x, arithmetic.exact(inputs["position_embedding"][: tokens.shape[1]]))
    if "segments" in inputs:
        x = arithmetic.add(x, arithmetic.exact(inputs["segment_embedding"][inputs["segments"]]))
    lengths = {name: inputs[name] for name in ("kv_lengths",) if name in inputs}
    unembedding = arithmetic.exact(inputs.get("unembedding", inputs["embedding"]).T)

    stages = list(_norm_stage(arithmetic, config, below(inputs, "embedding_norm.")))
    for number in range(int(config["num_layers"])):
        stages += block_stages(arithmetic, config, below(inputs, f"layers.{number}.") | lengths)
    stages += _norm_stage(arithmetic, config, below(inputs, "final_norm."))
    stages.append(lambda state, rows: _beside(state, arithmetic.matmul(state, unembedding)))
    error = propagate_stages(stages, x).error
    C = x.value.shape[2]
    return {"output": error[..., :C], "logits": error[..., C:]}


def block_stages(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors) -> Iterator[Stage]:
    """From x to x: for each part its norm and itself, in the order of the block."""
    for number, part in enumerate(parts(inputs), start=1):
        weights = below(inputs, f"norm_{number}.")
        first = config.get("norm_first") is not False

        def norm(x: Bounded, rows: np.ndarray, weights: Tensors = weights) -> Bounded:
            return _norm(arithmetic, config, weights, x)

        def branch(x: Bounded, rows: np.ndarray, norm: Stage = norm, first: bool = first) -> Bounded:
            return _beside(x, norm(x, rows) if first else x)

        yield branch
        if part == "ff":
            yield from _feed_forward(arithmetic, config, below(inputs, "ff."))
        else:
            yield _attention(arithmetic, config, inputs, part)
        if not first:
            yield norm


def _attention(arithmetic: Arithmetic, config: dict[str, Any], inputs: Tensors, part: str) -> Stage:
    """From [x, y] to x + attention(y)."""
    options, tensors = attention_call(config, inputs, part)

    def attention(state: Bounded, rows: np.ndarray) -> Bounded:
        x, y = _halves(state)
        context = arithmetic.exact(inputs["context"][rows]) if part == "cross" else y
        by_row = {name: tensors[name][rows] for name in ("kv_lengths",) if name in tensors}
        return arithmetic.add(x, propagate_mha(arithmetic, options, tensors | by_row, y, context)["output"])

    return attention


def _feed_forward(arithmetic: Arithmetic, config: dict[str, Any], weights: Tensors) -> Iterator[Stage]:
    """From [x, y] to [x, hidden], and on to x + W_2 act(hidden) + b_2."""
    activation = config.get("activation") or "gelu"
    C, F = weights["w_2"].shape

    def hidden(state: Bounded, rows: np.ndarray) -> Bounded:
        x, y = _halves(state)
        layers = ("1", "3") if activation == "swiglu" else ("1",)
        return _beside(x, *(linear(arithmetic, y, weights, layer) for layer in layers))

    def contract(state: Bounded, rows: np.ndarray) -> Bounded:
        x, z = _columns(state, 0, C), _columns(state, C, C + F)
        if activation == "swiglu":
            z = propagate_swiglu(arithmetic, z, _columns(state, C + F, C + 2 * F))
        elif activation == "relu":
            z = propagate_relu(z)
        else:
            z = propagate_gelu(arithmetic, z, "tanh" if activation == "gelu_tanh" else "none")
        return arithmetic.add(x, linear(arithmetic, z, weights, "2"))

    yield hidden
    yield contract


def _norm_stage(arithmetic: Arithmetic, config: dict[str, Any], weights: Tensors) -> Iterator[Stage]:
    """The norm around a stack, where it has one."""
    if weights:
        yield lambda x, rows: _norm(arithmetic, config, weights, x)


def _norm(arithmetic: Arithmetic, config: dict[str, Any], weights: Tensors, x: Bounded) -> Bounded:
    """The block's kind of norm."""
    eps = 1e-5 if config.get("eps") is None else float(config["eps"])
    if config.get("norm") == "rms":
        return propagate_rms_norm(arithmetic, x, weights.get("weight"), eps)
    return propagate_layer_norm(arithmetic, x, weights.get("weight"), weights.get("bias"), eps).output


def _beside(*states: Bounded) -> Bounded:
    return Bounded(*(np.concatenate(part, axis=-1) for part in zip(*states, strict=True)))


def _columns(state: Bounded, first: int, last: int) -> Bounded:
    return Bounded(*(part[..., first:last] for part in state))


def _halves(state: Bounded) -> tuple[Bounded, Bounded]:
    width = state.value.shape[-1] // 2
    return _columns(state, 0, width), _columns(state, width, 2 * width)
