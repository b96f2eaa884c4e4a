/**
 * Structured self-attention: R views of a sentence, each a mean of its positions with weights of its own.
 *
 *     A = softmax(W_2 tanh(W_1 Hᵀ)),   M = A H,   penalty = ‖A Aᵀ - I‖²
 *
 * There is no query but a learned one for each view; the penalty is large where views look at the same place.
 *
 * Letters: B batch, T length, C width, A hidden size, R views.
 *
 * Source: Lin et al., "A Structured Self-Attentive Sentence Embedding", 2017, section 2.
 */

import { inFloat32 } from "./cast.ts";
import { checkStructured } from "./checks_scoring.ts";
import { linear } from "./heads.ts";
import { softmaxRow } from "./softmax.ts";
import { type FloatArray, type Lengths, sizes3, type Tensor, toNumbers, zerosLike } from "./tensor.ts";
import { addScaled, dot } from "./vectors.ts";

export interface StructuredSteps<A extends FloatArray = FloatArray> {
  /** (B, R, C) */
  readonly output: Tensor<A>;
  /** (B, R, T) */
  readonly weights: Tensor<A>;
  /** (B,) */
  readonly penalty: Tensor<A>;
}

/**
 * `h` (B, T, C) seen through `w1` (A, C) and `w2` (R, A): (B, R, C).
 *
 * @param kvLengths (B,): how many positions of each row exist; absent = all.
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function structured<A extends FloatArray>(
  h: Tensor<A>,
  w1: Tensor<A>,
  w2: Tensor<A>,
  kvLengths?: Lengths | null,
): Tensor<A> {
  return structuredSteps(h, w1, w2, kvLengths).output;
}

/** {@link structured} with its weights and penalty; same arguments and errors. */
export function structuredSteps<A extends FloatArray>(
  h: Tensor<A>,
  w1: Tensor<A>,
  w2: Tensor<A>,
  kvLengths?: Lengths | null,
): StructuredSteps<A> {
  checkStructured("structured", h, w1, w2, kvLengths ?? null);
  return inFloat32(structuredCore<A>, h, w1, w2, kvLengths ?? null);
}

function structuredCore<A extends FloatArray>(
  h: Tensor<A>,
  w1: Tensor<A>,
  w2: Tensor<A>,
  kvLengths: Lengths | null,
): StructuredSteps<A> {
  const [B, T, C] = sizes3(h);
  const R = w2.shape[0]!;
  const lengths = kvLengths === null ? null : toNumbers(kvLengths); // (B,)
  const output = zerosLike(h, [B, R, C]);
  const weights = zerosLike(h, [B, R, T]);
  const penalty = zerosLike(h, [B]);

  // 1. hidden: the same layer at every position
  const hidden = linear(h, w1); // (B, T, A)
  for (let n = 0; n < hidden.data.length; n++) hidden.data[n] = Math.tanh(hidden.data[n]!);

  // 2. scores: one a view and position
  const scores = linear(hidden, w2); // (B, T, R)

  for (let b = 0; b < B; b++) {
    const length = lengths?.[b] ?? T;
    for (let r = 0; r < R; r++) {
      const row = b * R + r;

      // 3. softmax: over the positions that exist
      const logits = zerosLike(h, [length]).data; // (length,)
      for (let t = 0; t < length; t++) logits[t] = scores.data[(b * T + t) * R + r]!;
      softmaxRow(logits, weights.data.subarray(row * T, row * T + length) as A); // (length,), 0 beyond it

      // 4. weighted sum: of the positions themselves
      const sums = new Float64Array(C); // (C,)
      for (let t = 0; t < length; t++) {
        if (logits[t] !== -Infinity) addScaled(sums, weights.data[row * T + t]!, h.data, (b * T + t) * C);
      }
      output.data.set(sums, row * C);
    }

    // 5. penalty: how far the views are from orthogonal, and each from a single position
    let sum = 0;
    for (let at = 0; at < R * R; at++) {
      const [r, s] = [Math.floor(at / R), at % R];
      const product = dot(weights.data, (b * R + r) * T, weights.data, (b * R + s) * T, T);
      sum += (product - (r === s ? 1 : 0)) ** 2;
    }
    penalty.data[b] = sum; // (B,)
  }
  return { output, weights, penalty };
}
