/**
 * The keys that a query sees by its position alone, as an interval: causality, windows and lengths, but not a mask
 * of the caller's. What never asks about a key outside it skips whole blocks.
 */

import type { Mask } from "./masks.ts";
import { toNumbers } from "./tensor.ts";

/** [from, to): the keys of row `b` of the batch that query `i` sees; [0, 0) for none. */
export type Interval = (b: number, i: number) => readonly [number, number];

/** The conditions on positions of a mask as plain data, without tensors. */
export interface Positions {
  readonly causal: boolean;
  /** Infinity = open. */
  readonly left: number;
  readonly right: number;
  /** (B,) */
  readonly lengths: readonly number[];
  /** (B,) */
  readonly offsets: readonly number[];
}

/** Of a mask that has been checked, over B rows of Tk keys. */
export function positionsOf(mask: Mask, B: number, Tk: number): Positions {
  const { causal, window, kvLengths, qOffset } = mask;
  const one = typeof qOffset === "number" || qOffset == null;
  return {
    causal: causal ?? false,
    left: window?.[0] ?? Infinity,
    right: window?.[1] ?? Infinity,
    lengths: kvLengths == null ? Array(B).fill(Tk) : toNumbers(kvLengths),
    offsets: one ? Array(B).fill(qOffset ?? 0) : toNumbers(qOffset),
  };
}

/** The interval of each query. */
export function intervals({ causal, left, right, lengths, offsets }: Positions): Interval {
  return (b, i) => {
    const p = i + offsets[b]!;
    const from = Math.max(0, p - left);
    const to = Math.min(lengths[b]!, causal ? p + 1 : Infinity, p + right + 1);
    return from < to ? [from, to] : [0, 0];
  };
}
