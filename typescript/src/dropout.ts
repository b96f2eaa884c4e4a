/**
 * Dropout: elements are dropped at random, and the others make up for them.
 *
 *     y_n = 0 if w_n < p · 2^32 else x_n / (1 - p),   w_n the n-th word of Philox
 *
 * Which elements fall depends on the seed and on their places only, so every language drops the same ones.
 *
 * Source: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", 2014;
 * scaled where it drops, so that nothing is left to do where it does not.
 */

import { inFloat32 } from "./cast.ts";
import { checkDropout } from "./checks_attention.ts";
import { philoxWords } from "./philox.ts";
import { type BoolTensor, dtypeOf, type FloatArray, type Tensor, zerosLike } from "./tensor.ts";

/** How much falls, and the stream that decides. */
export interface Dropout {
  /** The chance of an element to be dropped, 0 to 1. */
  readonly p: number;
  /** An integer, 0 .. 2^53 - 1. */
  readonly seed: number;
}

export interface DropoutSteps<A extends FloatArray = FloatArray> {
  /** The shape of x */
  readonly output: Tensor<A>;
  /** The shape of x; 1 = kept */
  readonly keep: BoolTensor;
}

/**
 * `x` (any shape) with elements dropped; a dropped one is 0 whatever it was.
 *
 * @param offset the place of the first element.
 * @throws DtypeMismatch, InvalidConfig.
 */
export function dropout<A extends FloatArray>(x: Tensor<A>, options: Dropout, offset: number = 0): Tensor<A> {
  return dropoutSteps(x, options, offset).output;
}

/** {@link dropout} with the elements that it keeps; same arguments and errors. */
export function dropoutSteps<A extends FloatArray>(
  x: Tensor<A>,
  options: Dropout,
  offset: number = 0,
): DropoutSteps<A> {
  checkDropout("dropout", x, options, offset);
  return inFloat32(dropoutCore<A>, x, options, offset);
}

function dropoutCore<A extends FloatArray>(x: Tensor<A>, options: Dropout, offset: number): DropoutSteps<A> {
  const output = zerosLike(x, x.shape);
  const keep = dropRow(x.data, output.data, options, offset, dtypeOf(x) === "float64");
  return { output, keep: { data: keep, shape: x.shape } };
}

/**
 * Elements `first` and on: what is kept of `x` (n,), scaled, to `y` (n,), which may be `x` itself; gives
 * which were kept, (n,). Checks nothing.
 *
 * @param double whether the factor stays a double; else it is rounded to float32.
 */
export function dropRow(
  x: FloatArray,
  y: FloatArray,
  { p, seed }: Dropout,
  first: number,
  double: boolean,
): Uint8Array {
  // 1. random words: one for each element
  const words = philoxWords(seed, first, x.length); // (n,)

  // 2. keep: the words from p · 2^32 on; an integer is below that iff it is below the next integer
  const keep = Uint8Array.from(words, (word) => (word < p * 2 ** 32 ? 0 : 1)); // (n,)

  // 3. scale: by selection, since 0 · NaN would be NaN
  const factor = double ? 1 / (1 - p) : Math.fround(1 / (1 - p));
  for (let n = 0; n < x.length; n++) y[n] = keep[n] ? x[n]! * factor : 0; // (n,)
  return keep;
}
