/**
 * The quantised KV cache: keys and values in fewer bits, restored where they are read.
 *
 * Attention on it is attention on the restored numbers; what it costs in memory is the codes, and for the
 * integer formats the scales. Keys that are held turned are turned before they are quantised.
 *
 * Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, Tq queries, L slots of the longest
 * row, D and Dv head sizes, groups = ceil(D / group).
 *
 * Source: Hooper et al., "KVQuant", 2024, section 2 (what quantising a cache saves, and what it costs).
 */

import type { AppendOptions, Cache, Description } from "./cache.ts";
import { attendedKeys, heldRope, turned, turnedFurther } from "./cache_rope.ts";
import { narrow, widen } from "./cast.ts";
import { checkCapacity, checkRoom, checkTruncate } from "./checks_cache.ts";
import { checkFormat } from "./checks_quantise.ts";
import { EvictingCache, turnedFrom } from "./evicting_cache.ts";
import { attendOver, type Held, range } from "./held.ts";
import type { KiviCache } from "./kivi_cache.ts";
import type { KVCacheOptions } from "./kv_cache.ts";
import { blankPairs, describePairs, type KVCacheContents } from "./pairs.ts";
import { type Codes, type QuantFormat, type QuantiseOptions, quantise, restore } from "./quantise.ts";
import type { AttentionOptions, SdpaSteps } from "./sdpa.ts";
import { counted, type SlotArrays } from "./slots.ts";
import type {
  FloatArray,
  FloatArrays,
  FloatDtype,
  Lengths,
  Tensor,
  TensorArray,
  WideArray,
} from "./tensor.ts";
import { newTrack } from "./track.ts";

export interface QuantisedCacheOptions<T extends FloatDtype = "float32">
  extends KVCacheOptions<T>,
    QuantiseOptions {}

/** What {@link QuantisedCache.read} gives: the restored numbers in the cache's type, and the codes. */
export interface QuantisedContents<T extends FloatDtype = "float32"> extends KVCacheContents<T> {
  /** (B, Hkv, L, D or, packed, ceil(D / 2)) */
  readonly kCodes: Tensor<TensorArray>;
  /** (B, Hkv, L, Dv or, packed, ceil(Dv / 2)) */
  readonly vCodes: Tensor<TensorArray>;
  /** (B, Hkv, L, groups); only of the integer formats */
  readonly kScale?: Tensor<Float32Array>;
  readonly vScale?: Tensor<Float32Array>;
  /** (B, Hkv, L, groups); only with a zero point */
  readonly kZero?: Tensor<Float32Array>;
  readonly vZero?: Tensor<Float32Array>;
}

/** Codes of keys and values. A call that throws leaves the cache as it was. */
export class QuantisedCache<T extends FloatDtype = "float32"> extends EvictingCache<T> implements Cache<T> {
  readonly format: QuantFormat;
  /** null: all channels of a token and head. */
  readonly group: number | null;
  readonly zeroPoint: boolean;
  readonly #options: QuantisedCacheOptions<T>;

  /** @throws InvalidConfig, ShapeMismatch, DtypeMismatch. */
  constructor(options: QuantisedCacheOptions<T>) {
    super("quantised_cache", options);
    this.format = options.format;
    this.group = options.group ?? null;
    this.zeroPoint = options.zeroPoint ?? false;
    this.#options = options;
    checkFormat("quantised_cache", options);
    const width = Math.max(this.headDim, this.valueDim);
    checkCapacity("quantised_cache", this.capacity, this.batch, this.numKvHeads, width);
    const { k, v } = blankPairs(this, 0);
    this.slots = this.blank(this.#quantised(k, v));
  }

  override get capacity(): number | null {
    return this.#options.capacity ?? null;
  }

  get description(): Description {
    return describeCodes(this);
  }

  protected empty(): this {
    return new QuantisedCache(this.#options) as this;
  }

  /**
   * Arguments and errors are those of {@link KVCache.append}; a number that is not finite is InvalidConfig in
   * the integer formats.
   */
  append(
    k: Tensor<FloatArrays[T]>,
    v: Tensor<FloatArrays[T]>,
    lengths?: Lengths | null,
    options: AppendOptions = {},
  ): void {
    // 1. check: everything, before anything is changed
    const { counts, starts } = this.checkedCounts(k, v, lengths, options); // (B,)
    const needed = this.slots.lengthAfter(counts);
    checkRoom("append", needed, this.capacity);

    // 2. quantise: what counts in each row, keys turned as their positions say, or left to an attend
    const rows = counts.map((count, b) => {
      const places = range(this.slots.next[b]!, count); // (count,)
      const newK = turned(widen(counted(k, b, starts[b]!, count)), heldRope(this), places); // (1, Hkv, count, D)
      const codes = this.#quantised(newK, counted(v, b, starts[b]!, count)); // (1, Hkv, count, ·)
      return { ...codes, ...newTrack(this.slots, count) };
    });

    // 3. write: each row at its own end
    const slots = this.slots.grown(needed);
    for (const [b, row] of rows.entries()) slots.write(b, row); // (Hkv, count, ·)
    this.slots = slots.advanced(counts);
  }

  held(): Held {
    // 4. restore: to float32, which is not rounded to a half type on its way into attention
    const { k, v } = this.#restored(this.slots.trimmed()); // (B, Hkv, L, D), (B, Hkv, L, Dv)
    const { positions } = this.slots;
    const keys = attendedKeys(k, positions, this); // (B, Hkv, L, D)
    return { k: keys, v, positions, rope: this.rope, track: this.tracker };
  }

  /** Arguments and errors are those of {@link KVCache.attendSteps}. */
  attendSteps(
    q: Tensor<FloatArrays[T]>,
    options: AttentionOptions<FloatArrays[T]> = {},
  ): SdpaSteps<FloatArrays[T]> {
    // 5. attend: over the restored numbers
    return attendOver(this, q, options);
  }

  /** As {@link KVCache.truncate}. */
  truncate(lengths: readonly number[]): void {
    // 6. truncate: the codes beyond are junk from now on
    checkTruncate("truncate", lengths, this.lengths);
    this.slots = this.slots.cut(lengths);
  }

  /** Copies of what is held, in codes and restored. */
  read(): QuantisedContents<T> {
    // 7. read: codes as they are, numbers rounded once to the type of the cache
    const held = this.slots.trimmed();
    const { k, v } = this.#restored(held);
    return {
      ...{ k: narrow(k, this.dtype), v: narrow(v, this.dtype) },
      ...{ lengths: this.lengths, positions: this.slots.places, ...this.readTrack() },
      ...codesOf(held),
    } as QuantisedContents<T>;
  }

  /** They are restored, turned and quantised again. */
  protected turnKeys(by: number, from: number): void {
    this.slots = turnedFrom(this.slots, from, (row) => {
      const k = turnedFurther(this.#restored(row).k, this.rope, by); // (1, Hkv, count, D)
      return { ...row, ...asCodes("k", k, this.#options) };
    });
  }

  /** Keys and values (..., D or Dv) as slots. */
  #quantised(k: Tensor<WideArray | FloatArrays[T]>, v: Tensor<WideArray | FloatArrays[T]>): SlotArrays {
    return { ...asCodes("k", k, this.#options), ...asCodes("v", v, this.#options) };
  }

  /** The way back: float32, or float64 where the cache's type is that. */
  #restored(held: SlotArrays): { k: Tensor<WideArray>; v: Tensor<WideArray> } {
    const k = fromCodes("k", held, this.headDim, this.#options);
    const v = fromCodes("v", held, this.valueDim, this.#options);
    return this.dtype === "float64" ? { k: narrow(k, "float64"), v: narrow(v, "float64") } : { k, v };
  }
}

/** What a file says of a cache of codes, however its keys are grouped. */
export function describeCodes(cache: QuantisedCache<FloatDtype> | KiviCache<FloatDtype>): Description {
  const { headDim, valueDim, group } = cache;
  const codes = {
    quantised_format: cache.format,
    group: group === headDim && group === valueDim ? null : group,
    zero_point: cache.zeroPoint,
  };
  const also = { rope: heldRope(cache) !== null, track: cache.track || null };
  return { kind: "quantised", ...describePairs(cache), ...codes, ...also };
}

/** `x` (..., n) as arrays of slots, by the names of a file: codes, and what they count in. */
export function asCodes(name: "k" | "v", x: Tensor<FloatArray>, options: QuantiseOptions): SlotArrays {
  const { codes, scale, zero } = quantise(x, options);
  const parts: Record<string, Tensor<TensorArray>> = { [`${name}_codes`]: codes };
  if (scale !== null) parts[`${name}_scale`] = scale;
  if (zero !== null) parts[`${name}_zero`] = zero;
  return parts;
}

/** The way back, (..., channels). */
export function fromCodes(
  name: "k" | "v",
  arrays: SlotArrays,
  channels: number,
  options: QuantiseOptions,
): Tensor<Float32Array> {
  const [codes, scale, zero] = ["codes", "scale", "zero"].map((part) => arrays[`${name}_${part}`] ?? null);
  return restore({ ...options, channels, codes, scale, zero } as Codes);
}

/** The names of a file, and of the contents. */
const NAMES: Readonly<Record<string, string>> = {
  ...{ k_codes: "kCodes", k_scale: "kScale", k_zero: "kZero", k_tail: "kTail" },
  ...{ v_codes: "vCodes", v_scale: "vScale", v_zero: "vZero" },
};

/** Of arrays as a file has them, those of codes, as contents have them. */
export function codesOf(arrays: SlotArrays): SlotArrays {
  const named = Object.entries(arrays).filter(([name]) => name in NAMES);
  return Object.fromEntries(named.map(([name, x]) => [NAMES[name]!, x]));
}
