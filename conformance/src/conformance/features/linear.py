"""Features and costs of linear attention, the gated rules, sparse and structured attention."""

from collections.abc import Mapping

from .arguments import Config, Tensors
from .attention import attention_flops, head_features


def linear_attention_features(config: Config, inputs: Tensors) -> set[str]:
    """A causal order, a state to go on from, and what the shapes say."""
    return ({"causal"} if config.get("causal") else set()) | _state(inputs) | _heads(inputs)


def gated_linear_features(config: Config, inputs: Tensors) -> set[str]:
    """The rule, unless it is the plain one."""
    found = {"scale"} if config.get("scale") is not None else set()
    found |= {"gated", "delta", "gated_delta"} & {str(config.get("rule"))}
    return found | _state(inputs) | _heads(inputs)


def sparse_features(config: Config, inputs: Tensors) -> set[str]:
    """The pattern, and what attention has beside it."""
    pattern = config.get("pattern")
    kinds = {"window", "dilated", "strided", "fixed", "global", "bigbird", "blocks"}
    found = {str(pattern.get("type"))} & kinds if isinstance(pattern, Mapping) else set()
    found |= {"causal"} if config.get("causal") else set()
    found |= {"scale"} if config.get("scale") is not None else set()
    return found | _heads(inputs)


def structured_features(config: Config, inputs: Tensors) -> set[str]:
    """Lengths."""
    return {"kv_lengths"} & set(inputs)


def linear_attention_flops(config: Config, inputs: Tensors) -> int:
    """Each key is written into the state, and each query reads it: D (Dv + 1) multiply-adds."""
    (B, Hq, Tq, D), (_, Hkv, Tk, Dv) = inputs["q"].shape, inputs["v"].shape
    return int(2 * B * (Hq * Tq + Hkv * Tk) * D * (Dv + 1))


def gated_linear_flops(config: Config, inputs: Tensors) -> int:
    """A write and a read a step, a decay, and for the delta rules a read of what is held."""
    (B, Hq, T, D), (_, Hkv, _, Dv) = inputs["q"].shape, inputs["v"].shape
    rule = str(config.get("rule"))
    a_step = 2 * Hq + 2 * Hkv + ("gated" in rule) * Hkv + 2 * ("delta" in rule) * Hkv
    return int(B * T * D * Dv * a_step)


def sparse_flops(config: Config, inputs: Tensors) -> int:
    """Of all pairs: what the pattern saves is in the measured time."""
    return attention_flops({}, inputs["q"].shape, inputs["k"].shape[2], inputs["v"].shape[3])


def structured_flops(config: Config, inputs: Tensors) -> int:
    """The two layers of the scores, the weighted sums, and the overlaps of the penalty."""
    (B, T, C), (A, _), (R, _) = (inputs[name].shape for name in ("h", "w_1", "w_2"))
    return int(2 * B * T * (A * C + R * A + R * C + R * R))


def _state(inputs: Tensors) -> set[str]:
    return {"state_in"} if "state" in inputs else set()


def _heads(inputs: Tensors) -> set[str]:
    shapes = [inputs[name].shape for name in ("q", "k", "v") if name in inputs and inputs[name].ndim == 4]
    if len(shapes) != 3:
        return set()
    q, k, v = shapes
    return head_features(q[1], k[1], k[3], v[3])
