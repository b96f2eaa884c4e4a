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
import { checkAttend, checkCapacity, checkRoom, checkTruncate } from "./checks_cache.ts";
import { attendHeld, firstQueries, further, type Held, turned } from "./held.ts";
import { PairCache } from "./pair_cache.ts";
import {
  blankPairs,
  describePairs,
  type KVCacheContents,
  type KVCacheSizes,
  readPairs,
  widePairs,
  writePairs,
} from "./pairs.ts";
import type { Rope } from "./rope.ts";
import type { AttentionOptions, SdpaSteps } from "./sdpa.ts";
import { evicted, shifted } from "./slot_cache.ts";
import { Slots } from "./slots.ts";
import { type FloatArrays, type FloatDtype, type Lengths, sizes4, type Tensor } from "./tensor.ts";

export interface KVCacheOptions<T extends FloatDtype = "float32"> extends KVCacheSizes<T> {
  /** The most positions a row may hold. Absent: it grows by doubling. */
  readonly capacity?: number | null;
  /** How queries and keys are turned, each at its position; keys are held turned. Absent: they are not. */
  readonly rope?: Rope | null;
}

/**
 * Keys (B, Hkv, length, D) and values (B, Hkv, length, Dv). A call that throws leaves the cache as it was.
 */
export class KVCache<T extends FloatDtype = "float32"> extends PairCache<T> implements Cache<T> {
  readonly #options: KVCacheOptions<T>;

  /** @throws InvalidConfig, ShapeMismatch, DtypeMismatch. */
  constructor(options: KVCacheOptions<T>) {
    super("kv_cache", options, options.rope);
    this.#options = options;
    const width = Math.max(this.headDim, this.valueDim);
    checkCapacity("kv_cache", this.capacity, this.batch, this.numKvHeads, width);
    this.slots = Slots.empty(blankPairs(this, this.capacity ?? 0), this.batch);
  }

  override get capacity(): number | null {
    return this.#options.capacity ?? null;
  }

  get description(): Description {
    return { kind: "contiguous", ...describePairs(this), rope: this.rope !== null };
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

    // 3. write: each row at its own end, keys turned as their positions say
    writePairs(slots, k, v, counts, starts, this.rope); // (Hkv, count, D), (Hkv, count, Dv)

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
    return { ...widePairs(this.slots), positions: this.slots.positions, rope: this.rope };
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

  /** Copies of the keys, the values, the lengths and the positions. */
  read(): KVCacheContents<T> {
    // 9. read: by selection, since junk may be NaN
    return readPairs(this.slots);
  }

  /**
   * Every row forgets these positions where it holds them. The others keep theirs, and the next token comes
   * after the last position that the row ever held. @throws InvalidConfig.
   */
  evict(positions: readonly number[]): void {
    this.slots = evicted(this.slots, positions);
  }

  /**
   * Moves what stands at `from` or behind it by `by` positions, and turns its keys as far.
   *
   * @throws InvalidConfig where one would fall below 0, or onto or past one that stays.
   */
  shift(by: number, from: number): void {
    this.slots = shifted(this.slots, by, from, (row, count) => ({
      ...row,
      k: turned(row.k as Tensor<FloatArrays[T]>, further(this.rope), new Array(count).fill(by)),
    }));
  }
}
