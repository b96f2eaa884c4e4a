/**
 * The contiguous KV cache: keys and values of the past, one block of memory, per-row lengths.
 *
 * Prefill appends many positions, decode one at a time; `attend` gives the same answer either way. Rows of a
 * batch have lengths of their own: what lies beyond a row's length is junk and never visible. Half types are
 * held as they came, and attended to in float32.
 *
 * Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, Tq queries, L longest row, D and Dv
 * head sizes.
 *
 * Source: Pope et al., "Efficiently Scaling Transformer Inference", 2022, section 3 (the cache and its
 * phases).
 */

import type { AppendOptions, Cache, Description } from "./cache.ts";
import { type CacheRope, heldRope, turnedFurther } from "./cache_rope.ts";
import { checkAttend, checkCapacity, checkRoom, checkTruncate } from "./checks_cache.ts";
import { EvictingCache, turnedFrom } from "./evicting_cache.ts";
import { attendHeld, firstQueries, type Held } from "./held.ts";
import {
  blankPairs,
  describePairs,
  heldPairs,
  type KVCacheContents,
  type KVCacheSizes,
  readPairs,
  writePairs,
} from "./pairs.ts";
import type { AttentionOptions, SdpaSteps } from "./sdpa.ts";
import { type FloatArrays, type FloatDtype, type Lengths, sizes4, type Tensor } from "./tensor.ts";

export interface KVCacheOptions<T extends FloatDtype = "float32"> extends KVCacheSizes<T>, CacheRope {
  /** The most positions a row may hold. Absent: it grows by doubling. */
  readonly capacity?: number | null;
  /** Whether the weights that each slot is given are added up. Absent: false. */
  readonly track?: boolean | null;
}

/**
 * Keys (B, Hkv, length, D) and values (B, Hkv, length, Dv). A call that throws leaves the cache as it was.
 */
export class KVCache<T extends FloatDtype = "float32"> extends EvictingCache<T> implements Cache<T> {
  readonly #options: KVCacheOptions<T>;

  /** @throws InvalidConfig, ShapeMismatch, DtypeMismatch. */
  constructor(options: KVCacheOptions<T>) {
    super("kv_cache", options);
    this.#options = options;
    const width = Math.max(this.headDim, this.valueDim);
    checkCapacity("kv_cache", this.capacity, this.batch, this.numKvHeads, width);
    this.slots = this.blank(blankPairs(this, this.capacity ?? 0));
  }

  override get capacity(): number | null {
    return this.#options.capacity ?? null;
  }

  get description(): Description {
    const rope = heldRope(this) !== null;
    return { kind: "contiguous", ...describePairs(this), rope, track: this.track || null };
  }

  protected empty(): this {
    return new KVCache(this.#options) as this;
  }

  /**
   * Adds `k` (B, Hkv, T, D) and `v` (B, Hkv, T, Dv), T >= 0, after the last position of each row.
   *
   * @param lengths (B,), how many of the T count in each row; absent = all.
   * @throws ShapeMismatch, DtypeMismatch, InvalidConfig, CapacityExceeded.
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

    // 2. grow: at least double, so that n appends copy O(n) positions
    const slots = this.slots.grown(needed); // k (B, Hkv, room, D), v (B, Hkv, room, Dv)

    // 3. write: each row at its own end, keys turned as their positions say, or left to an attend
    writePairs(slots, k, v, counts, starts, heldRope(this)); // (Hkv, count, D), (Hkv, count, Dv)

    // 4. advance: only now do the new positions exist
    this.slots = slots.advanced(counts);
  }

  /**
   * {@link attend} gives the attention of `q` (B, Hq, Tq, D) over the positions held, (B, Hq, Tq, Dv); this
   * gives all its intermediates too.
   *
   * `mask` and `bias` are over the L slots held. Without `mask.qOffset` the last query stands on the last
   * position of its row; `mask.kvLengths` is the cache's own and must be absent.
   *
   * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
   */
  attendSteps(
    q: Tensor<FloatArrays[T]>,
    options: AttentionOptions<FloatArrays[T]> = {},
  ): SdpaSteps<FloatArrays[T]> {
    checkAttend("attend", q, options, this.dtype, [this.batch, this.numKvHeads, this.length, this.headDim]);

    // 5. align: the last query stands on the last position of its row
    const first = firstQueries(this.slots.next, sizes4(q)[2], options.mask); // (B,)

    // 6. attend: over what is held
    return attendHeld(q, first, this.held(), options);
  }

  held(): Held {
    return { ...heldPairs(this.slots, this), track: this.tracker };
  }

  /**
   * Forgets from the end: row b keeps its first lengths[b] positions. @throws ShapeMismatch, InvalidConfig.
   */
  truncate(lengths: readonly number[]): void {
    // 7. truncate: the memory stays, the positions beyond are junk from now on
    checkTruncate("truncate", lengths, this.lengths);
    this.slots = this.slots.cut(lengths);
  }

  /** Forgets everything; the memory is kept. */
  override reset(): void {
    // 8. reset: a cache of length 0
    super.reset();
  }

  /** A copy (B, Hkv, L, D), zero beyond a row's length. */
  keys(): Tensor<FloatArrays[T]> {
    return this.read().k;
  }

  /** A copy (B, Hkv, L, Dv), zero beyond a row's length. */
  values(): Tensor<FloatArrays[T]> {
    return this.read().v;
  }

  /** Copies of the keys, the values, the lengths and the positions, and of the weights that are tracked. */
  read(): KVCacheContents<T> {
    // 9. read: by selection, since junk may be NaN
    return { ...readPairs<T>(this.slots), ...this.readTrack() };
  }

  protected turnKeys(by: number, from: number): void {
    this.slots = turnedFrom(this.slots, from, (row) => {
      return { ...row, k: turnedFurther(row.k as Tensor<FloatArrays[T]>, this.rope, by) };
    });
  }
}
