/**
 * Relative bias of T5: a learned number for each head and each bucket of distances.
 *
 *     output = scores + table[bucket(j - i - qOffset), h]
 *
 * Small distances have a bucket each, larger ones share buckets that grow geometrically.
 *
 * Letters: B batch, H heads, Tq and Tk query and key lengths.
 *
 * Source: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
 * 2019, section 2.1.
 */

import { inFloat32 } from "./cast.ts";
import { checkRelativeBias } from "./checks_positions.ts";
import { type FloatArray, type IntTensor, sizes4, type Tensor, zerosLike } from "./tensor.ts";

export interface RelativeBiasOptions {
  /** The position of query 0. Absent: 0. */
  readonly qOffset?: number | null;
  /** Half of the buckets for keys after the query; else all are for those before it. Absent: true. */
  readonly bidirectional?: boolean | null;
  /** From there on all distances share the last bucket. Absent: 128. */
  readonly maxDistance?: number | null;
}

export interface RelativeBiasSteps<A extends FloatArray = FloatArray> {
  /** (B, H, Tq, Tk) */
  readonly output: Tensor<A>;
  /** (Tq, Tk) */
  readonly buckets: IntTensor;
}

/**
 * `scores` (B, H, Tq, Tk) with the bias of `table` (buckets, H) added.
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function relativeBias<A extends FloatArray>(
  scores: Tensor<A>,
  table: Tensor<A>,
  options: RelativeBiasOptions = {},
): Tensor<A> {
  return relativeBiasSteps(scores, table, options).output;
}

/** {@link relativeBias} with its buckets; same arguments and errors. */
export function relativeBiasSteps<A extends FloatArray>(
  scores: Tensor<A>,
  table: Tensor<A>,
  options: RelativeBiasOptions = {},
): RelativeBiasSteps<A> {
  checkRelativeBias("relative_bias", scores, table, options);
  return inFloat32(relativeBiasCore<A>, scores, table, options);
}

function relativeBiasCore<A extends FloatArray>(
  scores: Tensor<A>,
  table: Tensor<A>,
  options: RelativeBiasOptions,
): RelativeBiasSteps<A> {
  const [B, H, Tq, Tk] = sizes4(scores);
  const rows = table.shape[0]!;
  const { qOffset, bidirectional, maxDistance } = options;
  const buckets = new BigInt64Array(Tq * Tk); // (Tq, Tk)
  for (let at = 0; at < Tq * Tk; at++) {
    // 1. distances: from the query to the key
    const r = (at % Tk) - Math.floor(at / Tk) - (qOffset ?? 0);

    // 2. buckets: keys after the query have the second half, or lie at distance 0
    const n = (bidirectional ?? true) ? rows / 2 : rows;
    const d = (bidirectional ?? true) ? Math.abs(r) : Math.max(-r, 0);
    const after = (bidirectional ?? true) && r > 0 ? n : 0;
    buckets[at] = BigInt(after + bucketOf(d, n, maxDistance ?? 128)); // (Tq, Tk)
  }

  // 3. add: the row of the table that the bucket names
  const output = zerosLike(scores, [B, H, Tq, Tk]);
  for (let at = 0; at < output.data.length; at++) {
    const [h, slot] = [Math.floor(at / (Tq * Tk)) % H, at % (Tq * Tk)];
    output.data[at] = scores.data[at]! + table.data[Number(buckets[slot]) * H + h]!; // (B, H, Tq, Tk)
  }
  return { output, buckets: { data: buckets, shape: [Tq, Tk] } };
}

/** Of n buckets: the first half one a distance, the others on a logarithmic scale. */
function bucketOf(d: number, n: number, maxDistance: number): number {
  const e = Math.floor(n / 2);
  if (d < e) return d;
  const fraction = Math.log(d / e) / Math.log(maxDistance / e);
  // A quotient that is whole must come out whole, whatever the logarithm's last bit.
  return Math.min(n - 1, e + Math.floor(fraction * (n - e) + 1e-9));
}
