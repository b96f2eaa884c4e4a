/**
 * The rotating KV cache: a window of the newest positions, and perhaps the first few, which stay.
 *
 *     the query at p sees j <= p with p - j < W, or j < keep
 *
 * What no later query can see is forgotten, but only by the next append: a chunk longer than the window
 * attends as it would in a full cache with that mask, and a short rollback finds all it needs.
 *
 * Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, Tq queries, L slots of the longest
 * row, D and Dv head sizes, W window.
 *
 * Sources: Beltagy et al., "Longformer", 2020, section 3.1 (the window); Xiao et al., "Efficient Streaming
 * Language Models with Attention Sinks", 2023, section 3.2 (the first tokens that stay).
 */

import type { AppendOptions, Cache, Description } from "./cache.ts";
import { type CacheRope, heldRope } from "./cache_rope.ts";
import { requireInteger } from "./checks.ts";
import { checkAttend, checkRollback, checkTruncate } from "./checks_cache.ts";
import { attendHeld, firstQueries, type Held } from "./held.ts";
import { PairCache } from "./pair_cache.ts";
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
import { Slots } from "./slots.ts";
import { type FloatArrays, type FloatDtype, type Lengths, sizes4, type Tensor } from "./tensor.ts";

export interface RotatingCacheOptions<T extends FloatDtype = "float32"> extends KVCacheSizes<T>, CacheRope {
  /** W >= 1: how many positions a query sees, its own included. */
  readonly window: number;
  /** How many of the first positions stay. Absent: 0. */
  readonly keep?: number | null;
}

/** Keys and values of a window. A call that throws leaves the cache as it was. */
export class RotatingCache<T extends FloatDtype = "float32"> extends PairCache<T> implements Cache<T> {
  readonly window: number;
  readonly keep: number;
  readonly #options: RotatingCacheOptions<T>;

  /** @throws InvalidConfig, ShapeMismatch, DtypeMismatch. */
  constructor(options: RotatingCacheOptions<T>) {
    super("rotating_cache", options, options);
    this.window = options.window;
    this.keep = options.keep ?? 0;
    this.#options = options;
    requireInteger("rotating_cache", "window", this.window, 1);
    requireInteger("rotating_cache", "keep", this.keep, 0);
    this.slots = Slots.empty(blankPairs(this, 0), this.batch);
  }

  /** How many positions each row was given, those that are forgotten included: a copy, (B,). */
  override get lengths(): number[] {
    return this.next;
  }

  get description(): Description {
    const { window, keep } = this;
    return { kind: "rotating", ...describePairs(this), window, keep, rope: heldRope(this) !== null };
  }

  protected empty(): this {
    return new RotatingCache(this.#options) as this;
  }

  /** Arguments and errors are those of {@link KVCache.append}, but for the capacity. */
  append(
    k: Tensor<FloatArrays[T]>,
    v: Tensor<FloatArrays[T]>,
    lengths?: Lengths | null,
    options: AppendOptions = {},
  ): void {
    // 1. check: everything, before anything is changed
    const { counts, starts } = this.checkedCounts(k, v, lengths, options); // (B,)

    // 2. forget: in the rows that go on, what their next query no longer sees
    const kept = this.slots.filtered((b, j) => counts[b] === 0 || this.#sees(this.slots.next[b]!, j));

    // 3. write: all that is new, also beyond the window, keys turned as their positions say, or left to an attend
    const slots = kept.grown(kept.lengthAfter(counts));
    writePairs(slots, k, v, counts, starts, heldRope(this)); // (Hkv, count, D), (Hkv, count, Dv)

    // 4. advance: only now do the new positions exist
    this.slots = slots.advanced(counts);
  }

  /** Arguments and errors are those of {@link KVCache.attendSteps}; what is forgotten is seen by no query. */
  attendSteps(
    q: Tensor<FloatArrays[T]>,
    options: AttentionOptions<FloatArrays[T]> = {},
  ): SdpaSteps<FloatArrays[T]> {
    checkAttend("attend", q, options, this.dtype, [this.batch, this.numKvHeads, this.length, this.headDim]);

    // 5. align: the last query stands on the last position of its row
    const first = firstQueries(this.slots.next, sizes4(q)[2], options.mask); // (B,)

    // 6. attend: over what is held, each query within its own window
    return attendHeld(q, first, this.held(), options);
  }

  held(): Held {
    const sees = (p: number, j: number) => j <= p && this.#sees(p, j);
    return { ...heldPairs(this.slots, this), sees };
  }

  /**
   * Forgets from the end: row b keeps the first lengths[b] of all its positions.
   *
   * @throws ShapeMismatch, InvalidConfig, also where its next query would miss what is forgotten already.
   */
  truncate(lengths: readonly number[]): void {
    // 7. truncate: only as far back as a whole window is still held
    checkTruncate("truncate", lengths, this.next);
    checkRollback("truncate", lengths, this.slots.positions, (n, j) => this.#sees(n, j));
    this.slots = this.slots.before(lengths);
  }

  /** Forgets everything; the memory is kept. */
  override reset(): void {
    // 8. reset: a cache of length 0
    super.reset();
  }

  /** Copies of what the next query could see. */
  read(): KVCacheContents<T> {
    // 9. read: without what the next append forgets
    return readPairs(this.slots.filtered((b, j) => this.#sees(this.slots.next[b]!, j)));
  }

  /** Whether the query at p sees what stands at `j`, before it. */
  #sees(p: number, j: number): boolean {
    return j < this.keep || p - j < this.window;
  }
}
