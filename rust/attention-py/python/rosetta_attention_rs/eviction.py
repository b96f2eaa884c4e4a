"""Which slots of a row stay when it may hold no more than a budget."""

from collections.abc import Sequence
from dataclasses import dataclass

from .arrays import Array
from .errors import DtypeMismatch, InvalidConfig


@dataclass(frozen=True)
class Window:
    """sinks, then the last budget - sinks.

    budget: how many slots of a row stay; where every KV head has slots of its own, also one number for each.
    """

    budget: int | Sequence[int]
    sinks: int = 0


@dataclass(frozen=True)
class HeavyHitters:
    """The weights that a slot was given since it was appended, in a cache that tracks them."""

    budget: int | Sequence[int]
    sinks: int = 0
    recent: int = 0


@dataclass(frozen=True, eq=False)
class SnapKV:
    """The weights that these queries give a slot, then the largest among its neighbours.

    q: (B, Hq, W, D), W >= 1; the last one stands on the last position of its row, and no query sees what comes after
        it. scale: as for sdpa. pool: odd, how many slots a neighbourhood has.
    """

    budget: int | Sequence[int]
    q: Array
    sinks: int = 0
    recent: int = 0
    scale: float | None = None
    pool: int = 1


@dataclass(frozen=True)
class KeyNorm:
    """Minus the sum of the squares of a key."""

    budget: int | Sequence[int]
    sinks: int = 0
    recent: int = 0


Policy = Window | HeavyHitters | SnapKV | KeyNorm

Parts = tuple[str, int | Sequence[int], int, int, Array | None, float | None, int]


def policy_parts(policy: Policy) -> Parts:
    """The policy as the extension module takes it. Raises InvalidConfig for what is none, DtypeMismatch for SnapKV
    without queries.
    """
    match policy:
        case Window():
            return "Window", policy.budget, policy.sinks, 0, None, None, 1
        case HeavyHitters() | KeyNorm():
            return type(policy).__name__, policy.budget, policy.sinks, policy.recent, None, None, 1
        case SnapKV(q=None):
            raise DtypeMismatch("evict_by: q: expected an array, got None")
        case SnapKV():
            return "SnapKV", policy.budget, policy.sinks, policy.recent, policy.q, policy.scale, policy.pool
    got = type(policy).__name__
    raise InvalidConfig(f"evict_by: policy: expected one of the module eviction, got {got}")
