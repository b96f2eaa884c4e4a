/** Caches of every kind over the same keys and values, for properties that all must have. */

import assert from "node:assert/strict";
import {
  type Cache,
  CrossCache,
  type FloatArrays,
  type FloatDtype,
  KiviCache,
  KVCache,
  type KVCacheOptions,
  LatentCache,
  PagedCache,
  PagePool,
  PerHeadCache,
  type QuantFormat,
  QuantisedCache,
  type Rope,
  RotatingCache,
  saveCache,
  type Tensor,
} from "../src/index.ts";
import { f32, type Random } from "./helpers.ts";

/** Sizes of keys (B, 2, T, 4) and values (B, 2, T, 3). */
export const SIZES = { numKvHeads: 2, headDim: 4, valueDim: 3 };

export const FORMATS: readonly QuantFormat[] = ["f16", "bf16", "int8", "int4", "fp8_e4m3"];

export type Make = <T extends FloatDtype>(batch: number, dtype: T) => Cache<T>;

/** Every kind that is appended to more than once. */
export const KINDS: Readonly<Record<string, Make>> = {
  contiguous: (batch, dtype) => new KVCache({ ...SIZES, batch, dtype }),
  bounded: (batch, dtype) => new KVCache({ ...SIZES, batch, dtype, capacity: 40 }),
  turned: (batch, dtype) => new KVCache({ ...SIZES, batch, dtype, rope: { base: 100 } }),
  "turned late": (batch, dtype) =>
    new KVCache({ ...SIZES, batch, dtype, rope: { base: 100 }, ropeAt: "attend", track: true }),
  rotating: (batch, dtype) => new RotatingCache({ ...SIZES, batch, dtype, window: 4, keep: 1 }),
  paged: (batch, dtype) => paged(batch, dtype),
  ...Object.fromEntries(
    FORMATS.map((format): [string, Make] => [
      format,
      (batch, dtype) => new QuantisedCache({ ...SIZES, batch, dtype, format, group: 3 }),
    ]),
  ),
  "zero point": (batch, dtype) =>
    new QuantisedCache({ ...SIZES, batch, dtype, format: "int4", zeroPoint: true, rope: {} }),
};

/** The same whose answers may hang on the chunks: some keys wait before they are quantised. */
export const ALL_KINDS: Readonly<Record<string, Make>> = {
  ...KINDS,
  ...Object.fromEntries(
    (["int8", "int4"] as const).map((format): [string, Make] => [
      `${format} by channel`,
      (batch, dtype) =>
        new KiviCache({
          ...SIZES,
          batch,
          dtype,
          format,
          keyGroups: 2,
          zeroPoint: format === "int4",
          track: true,
        }),
    ]),
  ),
};

export function perHead<T extends FloatDtype>(
  batch: number,
  dtype: T,
  more: Partial<KVCacheOptions<T>> = {},
): PerHeadCache<T> {
  return new PerHeadCache({ ...SIZES, batch, dtype, ...more });
}

export function paged<T extends FloatDtype>(
  batch: number,
  dtype: T,
  numPages = 60,
  rope: Rope | null = null,
): PagedCache<T> {
  return new PagedCache({ pool: new PagePool({ ...SIZES, dtype, numPages, pageSize: 3 }), batch, rope });
}

export function latent<T extends FloatDtype>(batch: number, dtype: T): LatentCache<T> {
  return new LatentCache({ batch, latentDim: 3, ropeDim: 2, dtype });
}

export function cross<T extends FloatDtype>(batch: number, dtype: T): CrossCache<T> {
  return new CrossCache({ ...SIZES, batch, dtype });
}

/** Keys (B, 2, T, 4), values (B, 2, T, 3) and queries (B, 4, T, 4). */
export function draw<T extends FloatDtype>(random: Random, dtype: T, B: number, T: number): Drawn<T> {
  return {
    k: random.tensor(dtype, [B, 2, T, 4]),
    v: random.tensor(dtype, [B, 2, T, 3]),
    q: random.tensor(dtype, [B, 4, T, 4]),
  };
}

export interface Drawn<T extends FloatDtype> {
  k: Tensor<FloatArrays[T]>;
  v: Tensor<FloatArrays[T]>;
  q: Tensor<FloatArrays[T]>;
}

/** All that can be seen of a cache, bit for bit. */
export function assertUnchanged(cache: Cache, call: () => unknown): void {
  const [file, stats, length] = [saveCache(cache), cache.stats(), cache.lengths];
  call();
  assert.deepEqual(saveCache(cache), file);
  assert.deepEqual([cache.stats(), cache.lengths], [stats, length]);
}

/** One row, one head, D = 1, keys and values given: with q = 0 an attend gives means of values. */
export const ONE = { batch: 1, numKvHeads: 1, headDim: 1 };

export function values(...x: number[]): Tensor<Float32Array> {
  return f32([1, 1, x.length, 1], x);
}

export function push(cache: Cache<"float32">, ...x: number[]): void {
  cache.append(values(...x), values(...x));
}

/** The mean that a query of 0 sees at the end. */
export function mean(cache: Cache<"float32">): number {
  return cache.attend(values(0), { mask: { causal: true } }).data[0]!;
}
