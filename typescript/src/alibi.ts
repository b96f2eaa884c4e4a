/**
 * ALiBi: every head dislikes distance by a slope of its own.
 *
 *     output = scores + bias,   bias_h,i,j = -slope_h · |i + qOffset - j|
 *
 * Letters: B batch, H heads, Tq and Tk query and key lengths.
 *
 * Source: Press et al., "Train Short, Test Long", 2021; the slopes of other head counts than powers of two
 * are those of its reference code.
 */

import { inFloat32 } from "./cast.ts";
import { checkAlibi } from "./checks_positions.ts";
import { type FloatArray, sizes4, type Tensor, zerosLike } from "./tensor.ts";

export interface AlibiSteps<A extends FloatArray = FloatArray> {
  /** (B, H, Tq, Tk) */
  readonly output: Tensor<A>;
  /** (H,) */
  readonly slopes: Tensor<A>;
  /** (H, Tq, Tk) */
  readonly bias: Tensor<A>;
}

/**
 * `scores` (B, H, Tq, Tk) with the bias added; query i stands at i + qOffset.
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function alibi<A extends FloatArray>(scores: Tensor<A>, qOffset: number = 0): Tensor<A> {
  return alibiSteps(scores, qOffset).output;
}

/** {@link alibi} with its slopes and bias; same arguments and errors. */
export function alibiSteps<A extends FloatArray>(scores: Tensor<A>, qOffset: number = 0): AlibiSteps<A> {
  checkAlibi("alibi", scores, qOffset);
  return inFloat32(alibiCore<A>, scores, qOffset);
}

function alibiCore<A extends FloatArray>(scores: Tensor<A>, qOffset: number): AlibiSteps<A> {
  const [B, H, Tq, Tk] = sizes4(scores);

  // 1. slopes: one a head
  const slopes = zerosLike(scores, [H]);
  slopes.data.set(alibiSlopes(H)); // (H,)

  // 2. distances: on both sides of the query
  const bias = zerosLike(scores, [H, Tq, Tk]);
  for (let at = 0; at < bias.data.length; at++) {
    const [h, i, j] = [Math.floor(at / (Tq * Tk)), Math.floor(at / Tk) % Tq, at % Tk];
    bias.data[at] = -slopes.data[h]! * Math.abs(i + qOffset - j); // (H, Tq, Tk)
  }

  // 3. add: the same in every row of the batch
  const output = zerosLike(scores, [B, H, Tq, Tk]);
  for (let at = 0; at < output.data.length; at++) {
    output.data[at] = scores.data[at]! + bias.data[at % bias.data.length]!; // (B, H, Tq, Tk)
  }
  return { output, slopes, bias };
}

/**
 * (H,): 2^(-8(h+1)/H) for H a power of two; else the slopes of m heads, the next smaller power, and then
 * every other one of 2m heads.
 */
export function alibiSlopes(H: number): number[] {
  const geometric = (n: number) => Array.from({ length: n }, (_, h) => 2 ** ((-8 * (h + 1)) / n)); // (n,)
  if (H === 0) return [];
  const m = 2 ** Math.floor(Math.log2(H));
  const between = geometric(2 * m).filter((_, h) => h % 2 === 0); // (m,)
  return [...geometric(m), ...between.slice(0, H - m)]; // (H,)
}
