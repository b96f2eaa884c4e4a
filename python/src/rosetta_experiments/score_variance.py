"""Why scores are divided by sqrt(D): without it they grow with the head size, and the softmax picks one key.

The dot product of two vectors of D independent components with mean 0 and variance 1 has variance D. Divided by
sqrt(D) it has variance 1 whatever D is. The experiment draws queries and keys, and prints the variance of the
scores beside the entropy of the weights (in nats; ln n when all keys weigh the same, 0 when one has it all) and
the mean of the largest weight.

Source: Vaswani et al., "Attention Is All You Need", 2017, section 3.2.1, footnote 4.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rosetta_attention import sdpa_steps

from .table import bar, draw, sizes


@dataclass(frozen=True)
class Spread:
    """variance: of the scores. entropy: of a row of weights, on average. largest: weight of a row, on average."""

    variance: float
    entropy: float
    largest: float


def spread(head_dim: int, keys: int, queries: int, *, scaled: bool, seed: int = 0) -> Spread:
    """Of random queries and keys of this size."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((1, 1, queries, head_dim))
    k = rng.standard_normal((1, 1, keys, head_dim))
    steps = sdpa_steps(q, k, k, scale=None if scaled else 1.0)
    weights = steps.weights
    logarithms = np.log(np.where(weights > 0, weights, 1))  # 0 ln 0 is 0
    return Spread(
        variance=float(np.var(steps.scores)),
        entropy=float(np.mean(-np.sum(weights * logarithms, axis=-1))),
        largest=float(np.mean(np.max(weights, axis=-1))),
    )


def spread_table(head_dims: Sequence[int], keys: int, queries: int, seed: int) -> str:
    """Plain and scaled scores side by side; the bars are the largest weights."""
    rows = []
    for head_dim in head_dims:
        for scaled in (False, True):
            found = spread(head_dim, keys, queries, scaled=scaled, seed=seed)
            rows.append(
                (
                    "q·k / sqrt(D)" if scaled else "q·k",
                    head_dim,
                    f"{found.variance:.2f}",
                    f"{found.entropy:.3f}",
                    f"{found.largest:.3f}",
                    bar(found.largest, 30).ljust(30),
                )
            )
    return draw(("score", "D", "variance", "entropy", "largest weight", ""), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m rosetta_experiments.score_variance",
        description="Shows what dividing scores by sqrt(D) does to their variance and to the softmax.",
    )
    parser.add_argument(
        "--head-dims", type=sizes, default=sizes("1,4,16,64,256,1024"), help="D (default: 1,4,16,...,1024)"
    )
    parser.add_argument("--keys", type=int, default=64, help="keys a query sees (default: %(default)s)")
    parser.add_argument(
        "--queries", type=int, default=256, help="queries to average over (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    if min(chosen.keys, chosen.queries) < 1 or chosen.seed < 0:
        parser.error("expected keys >= 1, queries >= 1 and seed >= 0")
    print(
        f"{chosen.queries} queries over {chosen.keys} keys; all keys alike: entropy {math.log(chosen.keys):.3f}\n"
    )
    print(spread_table(chosen.head_dims, chosen.keys, chosen.queries, chosen.seed))


if __name__ == "__main__":
    main()
