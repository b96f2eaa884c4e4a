/**
 * Softmax over the last axis, with its log-sum-exp.
 *
 *     weights_j = exp(x_j - lse),   lse = log sum_j exp(x_j)
 *
 * A slot of -inf is *hidden*: its weight is exactly 0. A row with nothing but hidden slots has weights 0 and
 * lse -inf, never NaN: an empty sum is 0, and only then does a later merge of partial results ignore the row.
 * NaN and +inf make their row NaN.
 *
 * Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, section 2 ("safe
 * softmax").
 */

import { inFloat32 } from "./cast.ts";
import { checkSoftmax } from "./checks_attention.ts";
import { type FloatArray, type Tensor, type WideArray, zerosLike, zerosWide } from "./tensor.ts";

/** What {@link softmaxLse} gives. */
export interface SoftmaxLse<A extends FloatArray = FloatArray> {
  /** (..., n) */
  readonly weights: Tensor<A>;
  /** (...), natural logarithm; float32 where `x` is half */
  readonly lse: Tensor<WideArray>;
}

/**
 * Softmax over the last axis of `x` (..., n), n >= 0; same shape and element type.
 *
 * @throws ShapeMismatch for rank 0, DtypeMismatch.
 */
export function softmax<A extends FloatArray>(x: Tensor<A>): Tensor<A> {
  return softmaxLse(x).weights;
}

/**
 * Softmax and log-sum-exp of the last axis of `x` (..., n), n >= 0.
 *
 * @throws ShapeMismatch for rank 0, DtypeMismatch.
 */
export function softmaxLse<A extends FloatArray>(x: Tensor<A>): SoftmaxLse<A> {
  checkSoftmax("softmax", x);
  return inFloat32(softmaxCore<A>, x);
}

function softmaxCore<A extends FloatArray>(x: Tensor<A>): SoftmaxLse<A> {
  const n = x.shape.at(-1)!;
  const weights = zerosLike(x, x.shape); // (..., n)
  const lse = zerosWide(x, x.shape.slice(0, -1)); // (...)
  for (let row = 0; row < lse.data.length; row++) {
    const here = weights.data.subarray(row * n, (row + 1) * n) as A; // (n,)
    lse.data[row] = softmaxRow(x.data.subarray(row * n, (row + 1) * n) as A, here);
  }
  return { weights, lse };
}

/**
 * One row: writes the weights of `x` (n,) to `weights` (n,) and gives the log-sum-exp. Checks nothing.
 *
 * @param sink a logit that joins the sum and has no slot of its own; -inf is none.
 */
export function softmaxRow<A extends FloatArray>(x: A, weights: A, sink: number = -Infinity): number {
  // 1. maximum: the sink takes part; a row with nothing in it is shifted by 0, since -inf - -inf is NaN
  let top = sink;
  for (let j = 0; j < x.length; j++) top = Math.max(top, x[j]!);
  const shift = top === -Infinity ? 0 : top;

  // 2. exponentials: at most 1, so they cannot overflow
  for (let j = 0; j < x.length; j++) weights[j] = Math.exp(x[j]! - shift); // (n,)

  // 3. sum: at least 1, except in a row with nothing in it, where it is 0
  let total = Math.exp(sink - shift);
  for (let j = 0; j < x.length; j++) total += weights[j]!;

  // 4. normalise: by selection, so that a hidden slot is 0 even in a row of NaN
  for (let j = 0; j < x.length; j++) weights[j] = x[j] === -Infinity ? 0 : weights[j]! / total; // (n,)

  // 5. log-sum-exp: -inf for a row with nothing in it
  return top + Math.log(total);
}
