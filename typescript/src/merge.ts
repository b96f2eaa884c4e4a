/**
 * Two partial results over disjoint keys become the result over all of them.
 *
 *     output = (a · e^lse_a + b · e^lse_b) / (e^lse_a + e^lse_b),   lse = ln(e^lse_a + e^lse_b)
 *
 * A state of lse -inf has seen no key: it is not read, and changes no bit of the other. NaN or +inf in an lse
 * makes output and lse NaN.
 *
 * Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, section 3.1 (the
 * operation is associative); Dao et al., "Flash-Decoding for long-context inference", 2023.
 */

import { inFloat32 } from "./cast.ts";
import { checkMerge } from "./checks_attention.ts";
import { type FloatArray, type Tensor, type WideArray, zerosLike, zerosWide } from "./tensor.ts";

const NONE = -0; // adds nothing to any number, a zero's sign included

/** An output with the log-sum-exp of its scores: all that a later merge must know. */
export interface Attended<A extends FloatArray = FloatArray> {
  /** (..., Dv) */
  readonly output: Tensor<A>;
  /** (...), natural logarithm; float32 where the outputs are half */
  readonly lse: Tensor<WideArray>;
}

/**
 * The states (`aOutput` (..., Dv), `aLse` (...)) and (`bOutput`, `bLse`) in one.
 *
 * @throws ShapeMismatch, DtypeMismatch.
 */
export function merge<A extends FloatArray>(
  aOutput: Tensor<A>,
  aLse: Tensor<WideArray>,
  bOutput: Tensor<A>,
  bLse: Tensor<WideArray>,
): Attended<A> {
  checkMerge("merge", aOutput, aLse, bOutput, bLse);
  return inFloat32(mergeCore<A>, aOutput, aLse, bOutput, bLse);
}

/** What {@link merge} does behind the edge. */
export function mergeCore<A extends FloatArray>(
  aOutput: Tensor<A>,
  aLse: Tensor<WideArray>,
  bOutput: Tensor<A>,
  bLse: Tensor<WideArray>,
): Attended<A> {
  const Dv = aOutput.shape.at(-1)!;
  const output = zerosLike(aOutput, aOutput.shape); // (..., Dv)
  const lse = zerosWide(aOutput, aLse.shape); // (...)
  for (let row = 0; row < lse.data.length; row++) {
    const [a, b] = [aLse.data[row]!, bLse.data[row]!];

    // 1. maximum: two empty states are shifted by 0, since -inf - -inf is NaN
    const top = Math.max(a, b);
    const shift = top === -Infinity ? 0 : top;

    // 2. weights: at most 1; NaN where an lse is +inf
    const [weightA, weightB] = [Math.exp(a - shift), Math.exp(b - shift)];
    const total = weightA + weightB;

    // 3. output: by selection, so that nothing of an empty state is read; two of them give 0
    for (let c = row * Dv; c < (row + 1) * Dv; c++) {
      const sum =
        (a === -Infinity ? NONE : weightA * aOutput.data[c]!) +
        (b === -Infinity ? NONE : weightB * bOutput.data[c]!);
      output.data[c] = top === -Infinity ? 0 : sum / total; // (Dv,)
    }

    // 4. log-sum-exp: -inf for two empty states
    lse.data[row] = top + Math.log(total);
  }
  return { output, lse };
}
