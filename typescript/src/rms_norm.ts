/**
 * RMS norm: a row is divided by its root mean square.
 *
 *     output = x / sqrt(mean(x²) + eps) · weight
 *
 * Letters: n the size of a row.
 *
 * Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, section 4.
 */

import { inFloat32 } from "./cast.ts";
import { checkNorm } from "./checks_blocks.ts";
import { type FloatArray, type Tensor, zerosLike } from "./tensor.ts";
import { dot } from "./vectors.ts";

/**
 * `x` (..., n) with each row normalised, times `weight` (n,).
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function rmsNorm<A extends FloatArray>(
  x: Tensor<A>,
  weight: Tensor<A> | null = null,
  eps: number = 1e-5,
): Tensor<A> {
  checkNorm("rms_norm", x, weight, null, eps);
  return inFloat32(rmsNormCore<A>, x, weight, eps);
}

/** What {@link rmsNorm} does behind the edge. */
export function rmsNormCore<A extends FloatArray>(
  x: Tensor<A>,
  weight: Tensor<A> | null,
  eps: number,
): Tensor<A> {
  const n = x.shape.at(-1)!;
  const output = zerosLike(x, x.shape); // (..., n)
  for (let at = 0; at < x.data.length; at += n) {
    // 1. mean square: of the row
    const meanSquare = dot(x.data, at, x.data, at, n) / n;

    // 2. normalise: eps keeps a row of zeros from 0 / 0
    const scale = 1 / Math.sqrt(meanSquare + eps);
    const normal = Float64Array.from(x.data.subarray(at, at + n), (value) => value * scale); // (n,)

    // 3. scale: channel by channel
    for (let c = 0; c < n; c++) output.data[at + c] = normal[c]! * (weight?.data[c] ?? 1); // (n,)
  }
  return output;
}
