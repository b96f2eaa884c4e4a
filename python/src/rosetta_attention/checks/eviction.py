"""Policies of eviction, and what a cache needs to be forgotten by them."""

from collections.abc import Sequence
from typing import Any

from .call import Call


def check_tracking(name: str, track: Any) -> None:
    """Whether weights are added up."""
    Call(name).boolean("track", track)


def check_tracked(name: str, track: bool) -> None:
    """That there are weights to speak of."""
    Call(name).config(track, "track", "True, for the weights that slots were given", track)


def check_policy(name: str, policy: Any, heads: int | None) -> None:
    """The numbers of a policy. heads: how many budgets a list of them has; None = there is one for all heads."""
    call = Call(name)
    budget, sinks, recent = policy.budget, policy.sinks, policy.recent
    call.integer("sinks", sinks, 0)
    call.integer("recent", recent, 0)
    several = isinstance(budget, Sequence) and not isinstance(budget, str)
    if several:
        call.config(heads is not None, "budget", "one integer for all heads of a row", budget)
        call.shape(len(budget) == heads, "budget", f"{heads} integers, one for each head", len(budget))
    for slots in budget if several else [budget]:
        call.integer("budget", slots, 0)
        protected = sinks + recent
        call.config(
            slots == 0 or protected <= slots, "budget", f"0, or sinks + recent = {protected} or more", slots
        )
    pool = policy.pool
    call.integer("pool", pool, 1)
    call.config(pool % 2 == 1, "pool", "an odd integer", pool)
