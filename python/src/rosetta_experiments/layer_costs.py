"""What a layer costs that connects every position of a sequence with the others: three kinds, counted and timed.

The counts are those of Vaswani et al., "Attention Is All You Need", 2017, table 1, for n positions of width d and
a kernel of k:

    layer            operations   sequential steps   longest path between two positions
    recurrent        n d²         n                  n
    convolutional    k n d²       1                  log_k(n), over dilated layers
    self-attention   n² d         1                  1

The times are of the three layers in NumPy, at growing n. When n doubles, the first two take about twice as long, and
self-attention comes to take four times as long, once n is beyond d and the quadratic term rules.
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rosetta_attention import sdpa
from rosetta_attention.arrays import Array

from . import one_thread
from .table import draw, sizes

LAYERS = ("recurrent", "convolutional", "self-attention")


@dataclass(frozen=True)
class Cost:
    """operations: multiply-adds, up to a constant. steps: that must wait for each other. path: layers or steps."""

    operations: int
    steps: int
    path: int


def costs(n: int, d: int, k: int) -> dict[str, Cost]:
    """The counts of each layer, k >= 2."""
    layers = 0
    while k**layers < n:  # ceil(log_k n), without the rounding of a logarithm
        layers += 1
    return {
        "recurrent": Cost(n * d * d, n, n),
        "convolutional": Cost(k * n * d * d, 1, max(layers, 1)),
        "self-attention": Cost(n * n * d, 1, 1),
    }


def recurrent(x: Array, w: Array) -> Array:
    """h_t = tanh(W h_(t-1) + x_t): (n, d) with w (d, d)."""
    h = np.zeros_like(x)  # (n, d)
    state = np.zeros_like(x[0])  # (d,)
    for t, row in enumerate(x):
        state = np.tanh(w @ state + row)
        h[t] = state
    return h


def convolutional(x: Array, w: Array) -> Array:
    """y_t = Σ_s W_s x_(t-s), causal: (n, d) with w (k, d, d)."""
    n = x.shape[0]
    y = np.zeros_like(x)  # (n, d)
    for s, kernel in enumerate(w[:n]):
        y[s:] += x[: n - s] @ kernel.T
    return y


def self_attention(x: Array) -> Array:
    """One head of attention of x (n, d) over itself, without projections."""
    heads = x[None, None]  # (1, 1, n, d)
    output: Array = sdpa(heads, heads, heads)[0, 0]
    return output


def measure(ns: Sequence[int], d: int, k: int, repeats: int, seed: int = 0) -> dict[str, list[float]]:
    """Seconds of each layer at each n, the least of `repeats`."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((k, d, d)).astype(np.float32) / math.sqrt(d)
    seconds: dict[str, list[float]] = {layer: [] for layer in LAYERS}
    for n in ns:
        x = rng.standard_normal((n, d)).astype(np.float32)
        calls: dict[str, Callable[[], Array]] = {
            "recurrent": lambda x=x: recurrent(x, w[0]),  # type: ignore[misc]
            "convolutional": lambda x=x: convolutional(x, w),  # type: ignore[misc]
            "self-attention": lambda x=x: self_attention(x),  # type: ignore[misc]
        }
        for layer, call in calls.items():
            seconds[layer].append(one_thread.least(call, repeats))
    return seconds


def count_table(n: int, d: int, k: int) -> str:
    """The counts at one n."""
    rows = [
        (layer, f"{cost.operations:,}", f"{cost.steps:,}", f"{cost.path:,}")
        for layer, cost in costs(n, d, k).items()
    ]
    return draw((f"n = {n}, d = {d}, k = {k}", "operations", "sequential steps", "longest path"), rows)


def time_table(ns: Sequence[int], seconds: dict[str, list[float]]) -> str:
    """Milliseconds, and after each how many times those of the n before."""
    rows = []
    for number, n in enumerate(ns):
        row = [str(n)]
        for layer in LAYERS:
            now = seconds[layer][number]
            row.append(f"{now * 1e3:.3f}")
            row.append("" if number == 0 else f"x {now / seconds[layer][number - 1]:.2f}")
        rows.append(row)
    header = ["n", *(cell for layer in LAYERS for cell in (f"{layer}, ms", ""))]
    return draw(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m rosetta_experiments.layer_costs",
        description="Counts and times recurrent, convolutional and self-attention layers at growing lengths.",
    )
    parser.add_argument("--d", type=int, default=64, help="width of a position (default: %(default)s)")
    parser.add_argument("--k", type=int, default=3, help="kernel size, at least 2 (default: %(default)s)")
    parser.add_argument(
        "--n", type=sizes, default=sizes("128,256,512,1024,2048"), help="lengths (default: 128,256,...,2048)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="runs of which the fastest counts")
    chosen = parser.parse_args(arguments)
    if chosen.d < 1 or chosen.k < 2 or chosen.repeats < 1:
        parser.error("expected d >= 1, k >= 2 and repeats >= 1")
    print("Counted (Vaswani et al. 2017, table 1):\n")
    print("\n\n".join(count_table(n, chosen.d, chosen.k) for n in (chosen.n[0], chosen.n[-1])))
    print("\nMeasured in NumPy, float32, one thread, with the factor from each n to the next:\n")
    print(time_table(chosen.n, measure(chosen.n, chosen.d, chosen.k, chosen.repeats)))


if __name__ == "__main__":
    one_thread.start_anew("rosetta_experiments.layer_costs", sys.argv[1:])
    main()
