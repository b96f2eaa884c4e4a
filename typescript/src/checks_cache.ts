/** What the calls of a cache must satisfy. */

import {
  type AnyTensor,
  ensure,
  isSize,
  requireBoolean,
  requireDtype,
  requireFloat,
  requireFloats,
  requireInteger,
  requireLengths,
  requireRank,
  requireShape,
  show,
} from "./checks.ts";
import { CapacityExceeded, DtypeMismatch, InvalidConfig, ShapeMismatch } from "./errors.ts";
import type { KVCache } from "./kv_cache.ts";
import type { Mask } from "./masks.ts";
import type { FloatDtype, Lengths } from "./tensor.ts";
import { FLOATS, sizes4, toNumbers } from "./tensor.ts";

/** The sizes of a cache; a capacity may be absent. All in all not more numbers than a double can count. */
export function checkCache(fn: string, cache: KVCache<FloatDtype>): void {
  const { batch, numKvHeads, headDim, valueDim, capacity, dtype } = cache;
  requireInteger(fn, "batch", batch, 0);
  requireInteger(fn, "numKvHeads", numKvHeads, 1);
  requireInteger(fn, "headDim", headDim, 1);
  requireInteger(fn, "valueDim", valueDim, 0);
  const bounded = capacity == null || isSize(capacity, 0);
  ensure(bounded, InvalidConfig, fn, "capacity", "null or an integer >= 0", capacity);
  const count = [batch, numKvHeads, capacity ?? 0].reduce(
    (product, n) => product * Math.max(n, 1),
    Math.max(headDim, valueDim),
  );
  ensure(count <= 2 ** 53, InvalidConfig, fn, "capacity", "a cache of at most 2^53 numbers", count);
  ensure(FLOATS.includes(dtype), DtypeMismatch, fn, "dtype", FLOATS.join(" or "), dtype);
}

export function checkAppend(
  fn: string,
  k: AnyTensor,
  v: AnyTensor,
  lengths: Lengths | null | undefined,
  cache: KVCache<FloatDtype>,
): void {
  const { batch, numKvHeads, headDim, valueDim, dtype } = cache;
  requireDtype(fn, "k", k, dtype);
  requireDtype(fn, "v", v, dtype);
  requireRank(fn, "k", k, 4, "(B, Hkv, T, D)");
  const T = sizes4(k)[2];
  requireShape(fn, "k", k, [batch, numKvHeads, T, headDim]);
  requireShape(fn, "v", v, [batch, numKvHeads, T, valueDim]);
  if (lengths != null) requireLengths(fn, "lengths", lengths, batch, 0, T);
}

/** What the cache needs before it can align the queries; sdpa checks the rest. */
export function checkAttend(fn: string, q: AnyTensor, mask: Mask): void {
  requireFloat(fn, "q", q);
  requireRank(fn, "q", q, 4, "(B, Hq, Tq, D)");
  ensure(mask.kvLengths == null, InvalidConfig, fn, "kvLengths", "nothing: the cache has its own", "a value");
}

export function checkRoom(fn: string, needed: number, capacity: number | null): void {
  const fits = capacity === null || needed <= capacity;
  ensure(fits, CapacityExceeded, fn, "k", `at most ${capacity} positions`, needed);
}

/** One integer a row, from 0 to what the row holds. */
export function checkTruncate(fn: string, lengths: readonly number[], held: readonly number[]): void {
  const list = Array.isArray(lengths) && lengths.every(Number.isInteger);
  ensure(list, InvalidConfig, fn, "lengths", "a list of integers", lengths);
  ensure(
    lengths.length === held.length,
    ShapeMismatch,
    fn,
    "lengths",
    `${held.length} values`,
    lengths.length,
  );
  const good = lengths.every((n, b) => n >= 0 && n <= held[b]!);
  ensure(good, InvalidConfig, fn, "lengths", `integers from 0 to the lengths held, ${show(held)}`, lengths);
}

/** cache (B, ..., L, n) and update (B, ..., T, n), written at one index a row. */
export function checkCacheWrite(
  fn: string,
  cache: AnyTensor,
  update: AnyTensor,
  writeIndices: Lengths | null,
  circular: boolean,
): void {
  requireFloats(fn, { cache, update });
  const rank = cache.shape.length;
  ensure(rank >= 3, ShapeMismatch, fn, "cache", "rank 3 (B, ..., L, n) or more", cache.shape);
  requireRank(fn, "update", update, rank, "(B, ..., T, n)");
  const [L, T] = [cache.shape.at(-2)!, update.shape.at(-2)!];
  requireShape(fn, "update", update, cache.shape.with(-2, T));
  requireBoolean(fn, "circular", circular);
  if (writeIndices !== null) requireLengths(fn, "writeIndices", writeIndices, cache.shape[0]!, 0, Infinity);
  const last =
    circular || writeIndices === null ? 0 : toNumbers(writeIndices).reduce((most, n) => Math.max(most, n), 0);
  const fits = last + T <= L;
  ensure(fits, CapacityExceeded, fn, "update", `at most ${L} positions`, `${T} from ${last} on`);
}
