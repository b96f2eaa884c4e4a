"""Linear attention in its three forms, and its gated kin."""

from typing import Any

from ..ask import Ask, Op, Plan, flat
from ..errors import InvalidRequest
from ..read import boolean, integer, number, pick, text

FORMS = {"naive": "linear_attention", "recurrent": "linear_recurrent", "chunked": "linear_chunked"}


def linear_attention(ask: Ask) -> Plan:
    """Parallel, recurrent or chunked."""
    arrays = ask.due("q", "k", "v")
    options = pick(ask.config, causal=boolean) | _state(ask)
    if ask.variant == "chunked":
        options |= pick(ask.config, chunk=integer)
    call = getattr(ask.api, FORMS[ask.variant])
    return Plan(("output", "state", "norm"), lambda: flat(call(*arrays, **options)))


def _state(ask: Ask) -> dict[str, Any]:
    """The state and its norm, both or neither."""
    parts = ask.some("state", "norm")
    if len(parts) == 1:
        raise InvalidRequest(f"inputs: expected state and norm or neither, got {sorted(parts)}")
    return {"state": ask.api.LinearState(**parts)} if parts else {}


def gated_linear(ask: Ask) -> Plan:
    """A state that forgets or corrects itself."""
    arrays = ask.due("q", "k", "v")
    options = ask.some("state", "decay", "beta") | pick(ask.config, rule=text, scale=number)
    return Plan(("output", "state"), lambda: ask.api.gated_linear(*arrays, **options))


OPS = {
    "linear_attention": Op(("output", "state", "norm"), linear_attention),
    "gated_linear": Op(("output", "state"), gated_linear),
}
