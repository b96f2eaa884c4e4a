/**
 * Layer norm: a row gets mean 0 and variance 1.
 *
 *     output = (x - mean) / sqrt(var + eps) · weight + bias,   var = mean((x - mean)²)
 *
 * Letters: n the size of a row.
 *
 * Source: Ba et al., "Layer Normalization", 2016, section 3.
 */

import { inFloat32 } from "./cast.ts";
import { checkNorm } from "./checks_blocks.ts";
import { type FloatArray, type Tensor, zerosLike } from "./tensor.ts";
import { dot } from "./vectors.ts";

export interface LayerNormSteps<A extends FloatArray = FloatArray> {
  /** (..., n) */
  readonly output: Tensor<A>;
  /** (...) */
  readonly mean: Tensor<A>;
  /** (...): 1 / sqrt(var + eps) */
  readonly invStd: Tensor<A>;
}

/**
 * `x` (..., n) with each row normalised, times `weight` (n,), plus `bias` (n,).
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function layerNorm<A extends FloatArray>(
  x: Tensor<A>,
  weight: Tensor<A> | null = null,
  bias: Tensor<A> | null = null,
  eps: number = 1e-5,
): Tensor<A> {
  return layerNormSteps(x, weight, bias, eps).output;
}

/** {@link layerNorm} with its statistics; same arguments and errors. */
export function layerNormSteps<A extends FloatArray>(
  x: Tensor<A>,
  weight: Tensor<A> | null = null,
  bias: Tensor<A> | null = null,
  eps: number = 1e-5,
): LayerNormSteps<A> {
  checkNorm("layer_norm", x, weight, bias, eps);
  return inFloat32(layerNormCore<A>, x, weight, bias, eps);
}

/** What {@link layerNormSteps} does behind the edge. */
export function layerNormCore<A extends FloatArray>(
  x: Tensor<A>,
  weight: Tensor<A> | null,
  bias: Tensor<A> | null,
  eps: number,
): LayerNormSteps<A> {
  const n = x.shape.at(-1)!;
  const output = zerosLike(x, x.shape); // (..., n)
  const mean = zerosLike(x, x.shape.slice(0, -1)); // (...)
  const invStd = zerosLike(x, x.shape.slice(0, -1)); // (...)
  for (let row = 0; row < mean.data.length; row++) {
    const at = row * n;

    // 1. mean: of the row
    let average = 0;
    for (let c = 0; c < n; c++) average += x.data[at + c]! / n;
    mean.data[row] = average;

    // 2. variance: of what is left without the mean, which a difference of squares would cancel away
    const centred = Float64Array.from(x.data.subarray(at, at + n), (value) => value - average); // (n,)
    const variance = dot(centred, 0, centred, 0, n) / n;

    // 3. normalise: eps keeps a constant row from 0 / 0
    const scale = 1 / Math.sqrt(variance + eps);
    invStd.data[row] = scale;
    const normal = centred.map((value) => value * scale); // (n,)

    // 4. scale and shift: channel by channel
    for (let c = 0; c < n; c++) {
      output.data[at + c] = normal[c]! * (weight?.data[c] ?? 1) + (bias?.data[c] ?? 0); // (n,)
    }
  }
  return { output, mean, invStd };
}
