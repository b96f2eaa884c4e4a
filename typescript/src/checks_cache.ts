/** What the calls of a cache must satisfy. */

import type { AppendOptions } from "./cache.ts";
import type { CacheRope } from "./cache_rope.ts";
import {
  type AnyTensor,
  ensure,
  isSize,
  requireBoolean,
  requireDtype,
  requireFloats,
  requireInteger,
  requireLengths,
  requireOneOf,
  requireRank,
  requireShape,
  requireSize,
  show,
} from "./checks.ts";
import { checkAttention, checkGroups } from "./checks_attention.ts";
import { checkRotation } from "./checks_positions.ts";
import { CapacityExceeded, DtypeMismatch, InvalidConfig, ShapeMismatch } from "./errors.ts";
import type { Mask } from "./masks.ts";
import type { CacheSizes } from "./pairs.ts";
import type { AttentionOptions } from "./sdpa.ts";
import type { Slots } from "./slots.ts";
import type { FloatDtype, Lengths } from "./tensor.ts";
import { FLOATS, sizes3, sizes4, toNumbers } from "./tensor.ts";

export function checkCache(fn: string, { batch, numKvHeads, headDim, valueDim, dtype }: CacheSizes): void {
  checkBatch(fn, batch, dtype);
  requireInteger(fn, "numKvHeads", numKvHeads, 1);
  requireInteger(fn, "headDim", headDim, 1);
  requireInteger(fn, "valueDim", valueDim, 0);
  requireNumbers(fn, "batch", batch, numKvHeads, Math.max(headDim, valueDim));
}

/** Not more numbers than a double can count; a size of 0 counts as 1. */
export function requireNumbers(fn: string, argument: string, ...sizes: number[]): void {
  const count = sizes.reduce((product, n) => product * Math.max(n, 1), 1);
  ensure(count <= 2 ** 53, InvalidConfig, fn, argument, "a cache of at most 2^53 numbers", count);
}

export function checkBatch(fn: string, batch: number, dtype: FloatDtype): void {
  requireInteger(fn, "batch", batch, 0);
  ensure(batch < 2 ** 32, InvalidConfig, fn, "batch", "at most 2^32 - 1 rows, the longest list", batch);
  ensure(FLOATS.includes(dtype), DtypeMismatch, fn, "dtype", FLOATS.join(" or "), dtype);
}

/** The most slots of a row, which may be absent, in a cache of these sizes. */
export function checkCapacity(fn: string, capacity: number | null, ...sizes: number[]): void {
  const bounded = capacity == null || isSize(capacity, 0);
  ensure(bounded, InvalidConfig, fn, "capacity", "null or an integer >= 0", capacity);
  requireNumbers(fn, "capacity", capacity ?? 0, ...sizes);
}

/**
 * Keys that are stored turned cannot follow frequencies that change as their row grows, so scalings by the
 * length of the row are not for caches.
 */
export function checkCacheRope(fn: string, { rope, ropeAt }: CacheRope, headDim: number): void {
  if (ropeAt != null) {
    requireOneOf(fn, "ropeAt", ropeAt, ["append", "attend"]);
    ensure(rope != null, InvalidConfig, fn, "ropeAt", "nothing without a rope", ropeAt);
  }
  if (rope == null) return;
  checkRotation(fn, rope, "headDim", headDim);
  const { offset, scaling } = rope;
  ensure((offset ?? 0) === 0, InvalidConfig, fn, "offset", "0: the cache has its own positions", offset);
  if (scaling?.type !== "dynamic" && scaling?.type !== "longrope") return;
  ensure(
    scaling.length != null,
    InvalidConfig,
    fn,
    "length",
    `a length for the scaling ${scaling.type}`,
    null,
  );
}

/** k (B, Hkv, T, D) and v (B, Hkv, T, Dv) against the sizes of the cache. */
export function checkAppend(
  fn: string,
  k: AnyTensor,
  v: AnyTensor,
  lengths: Lengths | null | undefined,
  options: AppendOptions,
  cache: CacheSizes,
): void {
  const { batch, numKvHeads, headDim, valueDim, dtype } = cache;
  requireDtype(fn, "k", k, dtype);
  requireDtype(fn, "v", v, dtype);
  requireRank(fn, "k", k, 4, "(B, Hkv, T, D)");
  const T = sizes4(k)[2];
  requireShape(fn, "k", k, [batch, numKvHeads, T, headDim]);
  requireShape(fn, "v", v, [batch, numKvHeads, T, valueDim]);
  checkCounts(fn, lengths, options, batch, T);
}

/** How many of the T positions count, and on which side; tokens are looked at where they are taken. */
function checkCounts(
  fn: string,
  lengths: Lengths | null | undefined,
  { padding }: AppendOptions,
  batch: number,
  T: number,
): void {
  if (lengths != null) requireLengths(fn, "lengths", lengths, batch, 0, T);
  if (padding != null) requireOneOf(fn, "padding", padding, ["right", "left"]);
}

/** latent (B, T, R) and ropeKey (B, T, Dr) against the sizes of the cache. */
export function checkLatentAppend(
  fn: string,
  latent: AnyTensor,
  ropeKey: AnyTensor,
  lengths: Lengths | null | undefined,
  options: AppendOptions,
  cache: { batch: number; latentDim: number; ropeDim: number; dtype: FloatDtype },
): void {
  const { batch, latentDim, ropeDim, dtype } = cache;
  requireDtype(fn, "latent", latent, dtype);
  requireDtype(fn, "ropeKey", ropeKey, dtype);
  requireRank(fn, "latent", latent, 3, "(B, T, R)");
  const T = sizes3(latent)[1];
  requireShape(fn, "latent", latent, [batch, T, latentDim]);
  requireShape(fn, "ropeKey", ropeKey, [batch, T, ropeDim]);
  checkCounts(fn, lengths, options, batch, T);
}

export function checkUnwritten(fn: string, written: boolean): void {
  ensure(!written, InvalidConfig, fn, "k", "a cache without an append", "a second one");
}

/** What the encoder has read has no order in time for the decoder. */
export function checkCross(fn: string, { causal, window }: Mask): void {
  ensure(causal !== true, InvalidConfig, fn, "causal", "false over a cross cache", causal);
  ensure(window == null, InvalidConfig, fn, "window", "nothing over a cross cache", window);
}

export function checkNoTokens(fn: string, { tokens }: AppendOptions): void {
  ensure(tokens == null, InvalidConfig, fn, "tokens", "nothing: this cache has no pages", "a value");
}

/** q (B, Hq, Tq, D) against keys (B, Hkv, L, D) of the cache, and what else the call says. */
export function checkAttend(
  fn: string,
  q: AnyTensor,
  options: AttentionOptions,
  dtype: FloatDtype,
  keys: readonly [number, number, number, number],
): void {
  requireDtype(fn, "q", q, dtype);
  requireRank(fn, "q", q, 4, "(B, Hq, Tq, D)");
  checkQueries(fn, sizes4(q), options, dtype, keys);
}

/** The same of queries that are not there yet. */
export function checkQueries(
  fn: string,
  [B, Hq, Tq, qD]: readonly [number, number, number, number],
  options: AttentionOptions,
  dtype: string,
  [batch, Hkv, L, D]: readonly [number, number, number, number],
): void {
  requireSize(fn, "q", "batch", B, batch, "the cache");
  requireSize(fn, "q", "head size", qD, D, "the cache");
  checkGroups(fn, Hq, Hkv);
  const kvLengths = options.mask?.kvLengths;
  ensure(kvLengths == null, InvalidConfig, fn, "kvLengths", "nothing: the cache has its own", "a value");
  checkAttention(fn, options, [B, Hq, Tq, L], dtype);
}

export function checkRoom(fn: string, needed: number, capacity: number | null): void {
  const fits = capacity === null || needed <= capacity;
  ensure(fits, CapacityExceeded, fn, "k", `at most ${capacity} positions`, needed);
}

/** One integer a row, from 0 to what the row holds. */
export function checkTruncate(fn: string, lengths: readonly number[], held: readonly number[]): void {
  requireIntegers(fn, "lengths", lengths, held.length);
  const good = lengths.every((n, b) => n >= 0 && n <= held[b]!);
  ensure(good, InvalidConfig, fn, "lengths", `integers from 0 to the lengths held, ${show(held)}`, lengths);
}

/** Every position before lengths[b] that the query there sees is still held. */
export function checkRollback(
  fn: string,
  lengths: readonly number[],
  positions: Slots["positions"],
  sees: (p: number, j: number) => boolean,
): void {
  for (const [b, row] of positions.entries()) {
    const n = lengths[b]!;
    const held = new Set(row);
    for (let j = n - 1; j >= 0 && sees(n, j); j--) {
      ensure(held.has(j), InvalidConfig, fn, "lengths", `a row ${b} whose position ${j} is still held`, n);
    }
  }
}

/** One row that exists for each row there will be. */
export function checkReorder(fn: string, index: readonly number[], batch: number): void {
  requireIntegers(fn, "index", index, batch);
  const good = index.every((b) => b >= 0 && b < batch);
  ensure(good, InvalidConfig, fn, "index", `rows from 0 to ${batch - 1}`, index);
}

export function checkEvict(fn: string, positions: readonly number[]): void {
  requireIntegers(fn, "positions", positions, null);
}

/**
 * Slots from `from` on move by `by`: none below 0, and none onto or past one that stays. The next token stays
 * behind them all.
 */
export function checkShift(fn: string, by: number, from: number, { positions, next }: Slots): void {
  requireInteger(fn, "by", by);
  requireInteger(fn, "from", from);
  for (const [b, row] of positions.entries()) {
    const stays = row.findLast((j) => j < from) ?? -1;
    const moves = [...row.filter((j) => j >= from), ...(next[b]! > from ? [next[b]!] : [])];
    const good = moves.every((j) => j + by > stays && Number.isSafeInteger(j + by));
    ensure(good, InvalidConfig, fn, "by", `positions of row ${b} beyond ${stays}`, moves[0]! + by);
  }
}

/** A list of integers, one a row where a number of rows is given. */
function requireIntegers(fn: string, argument: string, list: unknown, rows: number | null): void {
  const good = Array.isArray(list) && list.every(Number.isInteger);
  ensure(good, InvalidConfig, fn, argument, "a list of integers", list);
  const { length } = list as number[];
  ensure(rows === null || length === rows, ShapeMismatch, fn, argument, `${rows} values`, length);
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
