"""Multi-head latent attention."""

from ..ask import Ask, Op, Plan
from ..config import rope_object
from ..read import boolean, due, integer, number, pick

STEPS = ("output", "weights", "lse", "latent", "rope_key")
WEIGHTS = ("w_q", "w_dkv", "w_kr", "w_uk", "w_uv", "w_o")


def mla(ask: Ask) -> Plan:
    """Keys and values expanded, or absorbed."""
    (x,) = ask.due("x")
    rope = rope_object(ask.library, ask.config)
    layer = ask.api.MultiHeadLatentAttention(
        **dict(zip(WEIGHTS, ask.due(*WEIGHTS), strict=True)),
        **ask.some("w_dq", "q_norm", "kv_norm"),
        **due(ask.config, num_heads=integer),
        **pick(ask.config, eps=number),
        **({} if rope is None else {"rope": rope}),
    )
    options = pick(ask.config, causal=boolean, scale=number) | ask.some("kv_lengths")
    if ask.variant == "absorbed":
        return Plan(STEPS, lambda: layer.absorbed(x, **options))
    return Plan(STEPS, lambda: layer.steps(x, **options), lambda: layer(x, **options))


OPS = {"mla": Op(STEPS, mla)}
