/**
 * Which slots of a row stay when it may hold no more than a budget.
 *
 *     window          the first ones and the latest
 *     heavy_hitters   those that were given most weight since they came
 *     snapkv          those that some queries, as a rule the last ones of a prompt, give most weight
 *     key_norm        those whose keys are shortest, which models tend to look at most
 *
 * A policy is a score for every slot. The first `sinks` and the last `recent` slots stay in any case, and of
 * those between them the ones with the highest scores. Of equal scores the lowest position stays; NaN is below
 * every number.
 *
 * Letters: B batch, Hq query heads, Hkv key/value heads, W queries, L slots of the longest row, D head size.
 *
 * Sources: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023, section 3.2 (window);
 * Zhang et al., "H2O", 2023, section 4 (heavy hitters); Li et al., "SnapKV: LLM Knows What You Are Looking for
 * Before Generation", 2024, section 4; Devoto et al., "A Simple and Effective L2 Norm-Based Strategy for KV Cache
 * Compression", 2024, section 3.
 */

import type { FloatArray, FloatArrays, FloatDtype, Tensor, WideArray } from "./tensor.ts";
import { sizes4, zeros } from "./tensor.ts";

/** null and undefined both mean absent. */
interface Budget {
  /** How many slots of a row stay; where every KV head has slots of its own, also one number for each, (Hkv,). */
  readonly budget: number | readonly number[];
  /** How many of the first slots stay in any case. Absent: 0. */
  readonly sinks?: number | null;
}

interface Recent extends Budget {
  /** How many of the last slots stay in any case. Absent: 0. */
  readonly recent?: number | null;
}

/** The latest stay: sinks, then the last budget - sinks. */
export interface Window extends Budget {
  readonly type: "window";
}

/** Those with the most weight since they were appended stay; of a cache that tracks. */
export interface HeavyHitters extends Recent {
  readonly type: "heavy_hitters";
}

/** Those stay that some queries look at most. */
export interface SnapKV<A extends FloatArray = FloatArray> extends Recent {
  readonly type: "snapkv";
  /** (B, Hq, W, D), W >= 1; the last stands on the last position of its row. */
  readonly q: Tensor<A>;
  /** Absent: 1/sqrt(D). */
  readonly scale?: number | null;
  /** Odd: a slot has the largest score of so many around it. Absent: 1. */
  readonly pool?: number | null;
}

/** Those with the shortest keys stay. */
export interface KeyNorm extends Recent {
  readonly type: "key_norm";
}

export type Policy<A extends FloatArray = FloatArray> = Window | HeavyHitters | SnapKV<A> | KeyNorm;

/** What policies go by: the slots that a cache holds, each named when it is needed. */
export interface Evidence<T extends FloatDtype = FloatDtype> {
  /** (B,) lists: where the slots of each row stand. */
  readonly places: readonly (readonly number[])[];
  /** (B, Hkv, L, D), as a read gives them. */
  keys(): Tensor<WideArray>;
  /** (B, Hkv, L): the weights they have been given. */
  tracked(): Tensor<Float64Array>;
  /** (B, Hkv, L): the weights that these queries give them. */
  given(q: Tensor<FloatArrays[T]>, scale: number | null): Tensor<Float64Array>;
}

/** The score of each slot, (B,) lists, added up over the KV heads. Checks nothing. */
export function slotScores<T extends FloatDtype>(
  policy: Policy<FloatArrays[T]>,
  evidence: Evidence<T>,
): number[][] {
  // 1. score: of each head, then added up over the heads
  if (policy.type === "window") return evidence.places.map((row) => [...row]);
  const scores = scoresOfHeads(policy, evidence); // (B, Hkv, L)
  const [, Hkv, L] = scores.shape as [number, number, number];
  return evidence.places.map((row, b) =>
    row.map((_, slot) => {
      let sum = 0;
      for (let h = 0; h < Hkv; h++) sum += scores.data[(b * Hkv + h) * L + slot]!;
      return sum;
    }),
  );
}

/** (B, Hkv, L). */
function scoresOfHeads<T extends FloatDtype>(
  policy: HeavyHitters | SnapKV<FloatArrays[T]> | KeyNorm,
  evidence: Evidence<T>,
): Tensor<Float64Array> {
  switch (policy.type) {
    case "heavy_hitters":
      return evidence.tracked();
    case "snapkv":
      return evidence.given(policy.q, policy.scale ?? null);
    case "key_norm":
      return minusSquares(evidence.keys());
  }
}

/** `k` (B, Hkv, L, D) to minus the squared length of each key, (B, Hkv, L): in doubles, channel after channel. */
function minusSquares(k: Tensor<WideArray>): Tensor<Float64Array> {
  const [B, Hkv, L, D] = sizes4(k);
  const scores = zeros("float64", [B, Hkv, L]);
  for (let at = 0; at < scores.data.length; at++) {
    let sum = 0;
    for (let c = 0; c < D; c++) sum += k.data[at * D + c]! * k.data[at * D + c]!;
    scores.data[at] = -sum;
  }
  return scores;
}

/** How one row chooses. */
export interface Choice {
  readonly budget: number;
  readonly sinks: number;
  readonly recent: number;
  /** Odd; 1: every slot has its own score. */
  readonly pool: number;
}

/**
 * The slots that stay, ascending, of a row with these scores. sinks + recent <= budget, unless that is 0. Checks
 * nothing.
 */
export function slotsThatStay(scores: readonly number[], { budget, sinks, recent, pool }: Choice): number[] {
  const slots = Array.from(scores.keys());
  if (slots.length <= budget) return slots;
  if (budget === 0) return [];

  // 2. pool: the largest score of the neighbours that compete, NaN less than any number
  const competing = scores.slice(sinks, scores.length - recent);
  const reach = (pool - 1) / 2;
  const pooled = competing.map((_, n) => {
    const near = competing.slice(Math.max(n - reach, 0), n + reach + 1);
    return near.reduce((most, score) => (isAbove(score, most) ? score : most));
  });

  // 3. protect: the first and the last do not compete
  const [first, last] = [slots.slice(0, sinks), slots.slice(slots.length - recent)];

  // 4. rank: the highest first, equal ones as they stand, NaN at the end
  const ranked = Array.from(pooled.keys()).sort((m, n) => {
    if (isAbove(pooled[m]!, pooled[n]!)) return -1;
    return isAbove(pooled[n]!, pooled[m]!) ? 1 : m - n;
  });

  // 5. keep: as many as the budget leaves
  const best = ranked.slice(0, budget - sinks - recent).map((n) => sinks + n);
  return [...first, ...best.sort((m, n) => m - n), ...last];
}

/** Whether a score is higher than another; NaN is below every number. */
function isAbove(a: number, b: number): boolean {
  return a > b || (Number.isNaN(b) && !Number.isNaN(a));
}
