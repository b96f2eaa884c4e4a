/** What caches of keys and values share: their sizes, and slots of the arrays `k` and `v`. */

import type { Description } from "./cache.ts";
import { attendedKeys, type CacheRope, turned } from "./cache_rope.ts";
import { widen } from "./cast.ts";
import { type Held, range } from "./held.ts";
import type { Rope } from "./rope.ts";
import { counted, type Slots } from "./slots.ts";
import { type FloatArrays, type FloatDtype, type Tensor, zeros } from "./tensor.ts";
import { newTrack } from "./track.ts";

/** The sizes of a cache of keys and values. null and undefined both mean absent. */
export interface KVCacheSizes<T extends FloatDtype = "float32"> {
  readonly batch: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  /** Absent: headDim. */
  readonly valueDim?: number | null;
  /** Element type of what it is given and gives. Absent: "float32". */
  readonly dtype?: T;
}

/** What `read` gives. */
export interface KVCacheContents<T extends FloatDtype = "float32"> {
  /** (B, Hkv, L, D), zero beyond a row's length */
  readonly k: Tensor<FloatArrays[T]>;
  /** (B, Hkv, L, Dv), zero beyond a row's length */
  readonly v: Tensor<FloatArrays[T]>;
  /** (B,) */
  readonly lengths: number[];
  /** (B,) lists: where they stand */
  readonly positions: number[][];
  /** (B, Hkv, L): the weights that they were given; only where they are tracked */
  readonly tracked?: Tensor<Float64Array>;
}

/** The sizes of a cache that has been made. */
export interface CacheSizes<T extends FloatDtype = FloatDtype> {
  readonly batch: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;
  readonly dtype: T;
}

/** Keys (B, Hkv, room, D) and values (B, Hkv, room, Dv) of zeros. */
export function blankPairs<T extends FloatDtype>(
  { dtype, batch, numKvHeads, headDim, valueDim }: CacheSizes<T>,
  room: number,
): { k: Tensor<FloatArrays[T]>; v: Tensor<FloatArrays[T]> } {
  const k = zeros(dtype, [batch, numKvHeads, room, headDim]);
  return { k, v: zeros(dtype, [batch, numKvHeads, room, valueDim]) };
}

/** Copies of the keys and values that are held. */
export function readPairs<T extends FloatDtype>(slots: Slots): KVCacheContents<T> {
  const { k, v } = slots.trimmed() as unknown as Pick<KVCacheContents<T>, "k" | "v">;
  return { k, v, lengths: slots.counts, positions: slots.places };
}

/** The same as attention takes them. */
export function heldPairs(slots: Slots, { rope, ropeAt }: CacheRope = {}): Held {
  const { k, v, positions } = readPairs<FloatDtype>(slots);
  return { k: attendedKeys(widen(k), positions, { rope, ropeAt }), v: widen(v), positions, rope };
}

/** The sizes by the names that a file has for them. */
export function describePairs({ dtype, batch, numKvHeads, headDim, valueDim }: CacheSizes): Description {
  return { dtype, batch, num_kv_heads: numKvHeads, head_dim: headDim, value_dim: valueDim };
}

/**
 * The positions of `k` and `v` that count, beyond the end of each row: keys turned as their places say.
 * Checks nothing.
 */
export function writePairs<T extends FloatDtype>(
  slots: Slots,
  k: Tensor<FloatArrays[T]>,
  v: Tensor<FloatArrays[T]>,
  counts: readonly number[],
  starts: readonly number[],
  rope: Rope | null,
): void {
  for (const [b, count] of counts.entries()) {
    const places = range(slots.next[b]!, count); // (count,)
    const keys = turned(counted(k, b, starts[b]!, count), rope, places); // (1, Hkv, count, D)
    slots.write(b, { k: keys, v: counted(v, b, starts[b]!, count), ...newTrack(slots, count) });
  }
}
