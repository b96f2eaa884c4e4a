/**
 * New positions into a cache of fixed length, row by row at an index of its own.
 *
 *     output[b, ..., (index_b + t) mod L, :] = update[b, ..., t, :]
 *
 * The modulo is for a circular cache, where the newest positions take the place of the oldest.
 *
 * Letters: B batch, L positions of the cache, T new positions, n channels.
 *
 * Source: TensorScatter of ONNX, opset 24.
 */

import { checkCacheWrite } from "./checks_cache.ts";
import { type FloatArray, type Lengths, sizeOf, type Tensor } from "./tensor.ts";

/**
 * A copy of `cache` (B, ..., L, n) with `update` (B, ..., T, n) in it.
 *
 * @param writeIndices (B,): where the first new position of each row goes; absent = 0.
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig, CapacityExceeded.
 */
export function cacheWrite<A extends FloatArray>(
  cache: Tensor<A>,
  update: Tensor<A>,
  writeIndices?: Lengths | null,
  circular: boolean = false,
): Tensor<A> {
  checkCacheWrite("cache_write", cache, update, writeIndices ?? null, circular);
  const [L, T, n] = [cache.shape.at(-2)!, update.shape.at(-2)!, cache.shape.at(-1)!];
  const starts = writeIndices == null ? null : startsIn(L, writeIndices); // (B,)
  const perRow = sizeOf(cache.shape.slice(1, -2)); // blocks (L, n) in a row of the batch
  const output = { data: cache.data.slice() as A, shape: cache.shape }; // (B, ..., L, n)
  for (let at = 0; at < cache.shape[0]! * perRow * T; at++) {
    // 1. positions: of this row; those of a circular cache begin again at its end
    const [block, t] = [Math.floor(at / T), at % T];
    const position = ((starts?.[Math.floor(block / perRow)] ?? 0) + t) % L;

    // 2. write: over what was there
    output.data.set(update.data.subarray(at * n, (at + 1) * n), (block * L + position) * n); // (n,)
  }
  return output;
}

/** The indices modulo L, which is taken before anything is rounded to a double. */
function startsIn(L: number, indices: Lengths): number[] {
  const length = Math.max(L, 1); // a cache without positions takes nothing
  if ("data" in indices) return Array.from(indices.data, (n) => Number(n % BigInt(length)));
  return indices.map((n) => n % length);
}
