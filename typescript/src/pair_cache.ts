/** What the caches that hold keys and values of each head in slots share: their sizes, and the checks of an append. */

import type { AppendOptions } from "./cache.ts";
import type { CacheRope, RopeAt } from "./cache_rope.ts";
import { checkAppend, checkCache, checkCacheRope, checkNoTokens } from "./checks_cache.ts";
import type { KVCacheSizes } from "./pairs.ts";
import type { Rope } from "./rope.ts";
import { countsOf, SlotCache } from "./slot_cache.ts";
import { type FloatArrays, type FloatDtype, type Lengths, sizes4, type Tensor } from "./tensor.ts";

export abstract class PairCache<T extends FloatDtype> extends SlotCache<T> {
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;
  /** How queries and keys are turned, each at its position. null: they are not. */
  readonly rope: Rope | null;
  /** When keys are turned. */
  readonly ropeAt: RopeAt;

  /** @throws InvalidConfig, ShapeMismatch, DtypeMismatch, in the name of `fn`. */
  constructor(fn: string, options: KVCacheSizes<T>, turns: CacheRope = {}) {
    super(options.batch, options.dtype ?? ("float32" as T));
    this.numKvHeads = options.numKvHeads;
    this.headDim = options.headDim;
    this.valueDim = options.valueDim ?? options.headDim;
    this.rope = turns.rope ?? null;
    this.ropeAt = turns.ropeAt ?? "append";
    checkCache(fn, this);
    checkCacheRope(fn, turns, this.headDim);
  }

  /**
   * How many of the T positions of `k` (B, Hkv, T, D) and `v` (B, Hkv, T, Dv) count in each row, and where they
   * begin, (B,) each. @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
   */
  protected checkedCounts(
    k: Tensor<FloatArrays[T]>,
    v: Tensor<FloatArrays[T]>,
    lengths: Lengths | null | undefined,
    options: AppendOptions,
  ): { counts: number[]; starts: number[] } {
    checkAppend("append", k, v, lengths, options, this);
    checkNoTokens("append", options);
    return countsOf(lengths, options, this.batch, sizes4(k)[2]);
  }
}
