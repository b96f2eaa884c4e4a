/**
 * Sinusoidal positions, added to the embeddings.
 *
 *     table(p, 2i) = sin(p · base^(-2i/C)),   table(p, 2i + 1) = cos(p · base^(-2i/C)),   output = x + table
 *
 * Letters: B batch, T length, C model width.
 *
 * Source: Vaswani et al., "Attention Is All You Need", 2017, section 3.5.
 */

import { inFloat32 } from "./cast.ts";
import { checkSinusoidal } from "./checks_positions.ts";
import { positionsOf } from "./rope.ts";
import { frequenciesOf } from "./rope_scaling.ts";
import { type FloatArray, type IntTensor, sizes3, type Tensor, zerosLike } from "./tensor.ts";

export interface SinusoidalOptions {
  /** (B, T): the position of each token. */
  readonly positions?: IntTensor | null;
  /** The position of token 0, where no positions are given. Absent: 0. */
  readonly offset?: number | null;
  /** Absent: 10000. */
  readonly base?: number | null;
  /** All sines, then all cosines, not in turns. Absent: false. */
  readonly halves?: boolean | null;
}

export interface SinusoidalSteps<A extends FloatArray = FloatArray> {
  /** (B, T, C) */
  readonly output: Tensor<A>;
  /** (B, T, C) */
  readonly table: Tensor<A>;
}

/**
 * `x` (B, T, C) with the table of its positions added; C is even.
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function sinusoidal<A extends FloatArray>(x: Tensor<A>, options: SinusoidalOptions = {}): Tensor<A> {
  return sinusoidalSteps(x, options).output;
}

/** {@link sinusoidal} with its table; same arguments and errors. */
export function sinusoidalSteps<A extends FloatArray>(
  x: Tensor<A>,
  options: SinusoidalOptions = {},
): SinusoidalSteps<A> {
  checkSinusoidal("sinusoidal", x, options);
  return inFloat32(sinusoidalCore<A>, x, options);
}

function sinusoidalCore<A extends FloatArray>(x: Tensor<A>, options: SinusoidalOptions): SinusoidalSteps<A> {
  const [B, T, C] = sizes3(x);
  const table = zerosLike(x, [B, T, C]);
  const output = zerosLike(x, [B, T, C]);
  const frequencies = frequenciesOf(options.base ?? 10000, C); // (C/2,)
  for (let b = 0; b < B; b++) {
    // 1. angles: position times frequency, in doubles
    const positions = positionsOf(b, T, options.positions, options.offset); // (T,)
    const angles = positions.map((p) => frequencies.map((f) => p * f)); // (T, C/2)

    // 2. table: a sine and a cosine of each
    for (let t = 0; t < T; t++) {
      for (let i = 0; i < C / 2; i++) {
        const [sine, cosine] = options.halves ? [i, i + C / 2] : [2 * i, 2 * i + 1];
        table.data[(b * T + t) * C + sine] = Math.sin(angles[t]![i]!); // (T, C)
        table.data[(b * T + t) * C + cosine] = Math.cos(angles[t]![i]!); // (T, C)
      }
    }
  }

  // 3. add: to what stands there
  for (let n = 0; n < x.data.length; n++) output.data[n] = x.data[n]! + table.data[n]!; // (B, T, C)
  return { output, table };
}
