/**
 * The cache of cross-attention: keys and values of the encoder, written once and read by every step of the
 * decoder.
 *
 * It has no order in time: attention is neither causal nor windowed. Beams that change places take their rows
 * with them.
 *
 * Letters: B batch, Hkv key/value heads, Hq query heads, T positions, Tq queries, D and Dv head sizes.
 *
 * Source: Vaswani et al., "Attention Is All You Need", 2017, section 3.2.3 (encoder-decoder attention).
 */

import type { AppendOptions, Cache, CacheState, Description } from "./cache.ts";
import { checkCross, checkUnwritten } from "./checks_cache.ts";
import { InvalidConfig } from "./errors.ts";
import { attendOver, type Held } from "./held.ts";
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
import type { FloatArrays, FloatDtype, Lengths, Tensor } from "./tensor.ts";

/** Keys and values of an encoder. A call that throws leaves the cache as it was. */
export class CrossCache<T extends FloatDtype = "float32"> extends PairCache<T> implements Cache<T> {
  readonly #options: KVCacheSizes<T>;
  #written = false;

  /** @throws InvalidConfig, DtypeMismatch. */
  constructor(options: KVCacheSizes<T>) {
    super("cross_cache", options);
    this.#options = options;
    this.slots = Slots.empty(blankPairs(this, 0), this.batch);
  }

  get description(): Description {
    return { kind: "cross", ...describePairs(this) };
  }

  protected empty(): this {
    return new CrossCache(this.#options) as this;
  }

  /**
   * Writes `k` (B, Hkv, T, D) and `v` (B, Hkv, T, Dv).
   *
   * @param lengths (B,), how many of the T count in each row; absent = all.
   * @throws ShapeMismatch, DtypeMismatch, InvalidConfig, also where something is held already.
   */
  append(
    k: Tensor<FloatArrays[T]>,
    v: Tensor<FloatArrays[T]>,
    lengths?: Lengths | null,
    options: AppendOptions = {},
  ): void {
    // 1. write once: into a cache that holds nothing
    checkUnwritten("append", this.#written);
    const { counts, starts } = this.checkedCounts(k, v, lengths, options); // (B,)
    const slots = this.slots.grown(this.slots.lengthAfter(counts));
    writePairs(slots, k, v, counts, starts, null); // (Hkv, count, D), (Hkv, count, Dv)
    this.slots = slots.advanced(counts);
    this.#written = true;
  }

  /**
   * {@link attend} gives the attention of `q` (B, Hq, Tq, D) over what is held, (B, Hq, Tq, Dv); this gives
   * all its intermediates too.
   *
   * @throws ShapeMismatch, DtypeMismatch, InvalidConfig, also where it is causal or windowed.
   */
  attendSteps(
    q: Tensor<FloatArrays[T]>,
    options: AttentionOptions<FloatArrays[T]> = {},
  ): SdpaSteps<FloatArrays[T]> {
    // 2. attend: every query sees all of its row
    checkCross("attend", options.mask ?? {});
    return attendOver(this, q, options);
  }

  held(): Held {
    return heldPairs(this.slots);
  }

  /** Row i becomes a copy of what row index[i] was. @throws ShapeMismatch, InvalidConfig. */
  override reorder(index: readonly number[]): void {
    // 3. reorder: a beam reads what its ancestor read
    super.reorder(index);
  }

  /** @throws InvalidConfig: what is written once is kept or forgotten as a whole. */
  truncate(_lengths: readonly number[]): void {
    throw new InvalidConfig("truncate: lengths: expected nothing, for a cache written once, got a value");
  }

  /** Forgets everything, and can be written again. */
  override reset(): void {
    super.reset();
    this.#written = false;
  }

  override fork(): this {
    const copy = super.fork();
    copy.#written = this.#written;
    return copy;
  }

  override restore(state: CacheState): void {
    super.restore(state);
    this.#written = this.length > 0;
  }

  override checkpoint(): () => void {
    const [undo, before] = [super.checkpoint(), this.#written];
    return () => {
      undo();
      this.#written = before;
    };
  }

  /** Copies of the keys, the values, the lengths and the positions. */
  read(): KVCacheContents<T> {
    return readPairs(this.slots);
  }
}
