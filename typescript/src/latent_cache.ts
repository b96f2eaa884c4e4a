/**
 * The latent cache of multi-head latent attention: one latent and one rotary key a token, for all heads.
 *
 *     score = scale · (q[..R] · latent + q[R..] · rope_key),   output = Σ weight · latent
 *
 * The queries have absorbed the up-projection of the keys; that of the values is still to come.
 *
 * Letters: B batch, H query heads, T new positions, Tq queries, L longest row, R size of the latent, Dr size
 * of the rotary key.
 *
 * Source: DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1 and appendix C.
 */

import type { AppendOptions, Cache, Description } from "./cache.ts";
import { widen } from "./cast.ts";
import { requireInteger } from "./checks.ts";
import {
  checkBatch,
  checkCapacity,
  checkLatentAppend,
  checkNoTokens,
  checkRoom,
  checkTruncate,
} from "./checks_cache.ts";
import { besideHeads } from "./heads.ts";
import { attendOver, type Held } from "./held.ts";
import type { AttentionOptions, SdpaSteps } from "./sdpa.ts";
import { countsOf, SlotCache } from "./slot_cache.ts";
import { counted, Slots } from "./slots.ts";
import { type FloatArrays, type FloatDtype, type Lengths, sizes3, type Tensor, zeros } from "./tensor.ts";

export interface LatentCacheOptions<T extends FloatDtype = "float32"> {
  readonly batch: number;
  /** R >= 1 */
  readonly latentDim: number;
  /** Dr >= 0 */
  readonly ropeDim: number;
  /** The most positions a row may hold. Absent: it grows by doubling. */
  readonly capacity?: number | null;
  /** Element type of what it holds. Absent: "float32". */
  readonly dtype?: T;
}

/** What {@link LatentCache.read} gives. */
export interface LatentContents<T extends FloatDtype = "float32"> {
  /** (B, L, R), zero beyond a row's length */
  readonly latent: Tensor<FloatArrays[T]>;
  /** (B, L, Dr), zero beyond a row's length */
  readonly ropeKey: Tensor<FloatArrays[T]>;
  /** (B,) */
  readonly lengths: number[];
  /** (B,) lists: where they stand */
  readonly positions: number[][];
}

/** Latents and rotary keys. A call that throws leaves the cache as it was. */
export class LatentCache<T extends FloatDtype = "float32"> extends SlotCache<T> implements Cache<T> {
  readonly latentDim: number;
  readonly ropeDim: number;
  readonly #options: LatentCacheOptions<T>;

  /** @throws InvalidConfig, DtypeMismatch. */
  constructor(options: LatentCacheOptions<T>) {
    super(options.batch, options.dtype ?? ("float32" as T));
    this.latentDim = options.latentDim;
    this.ropeDim = options.ropeDim;
    this.#options = options;
    checkBatch("latent_cache", this.batch, this.dtype);
    requireInteger("latent_cache", "latentDim", this.latentDim, 1);
    requireInteger("latent_cache", "ropeDim", this.ropeDim, 0);
    checkCapacity("latent_cache", this.capacity, this.batch, Math.max(this.latentDim, this.ropeDim));
    const latent = zeros(this.dtype, [this.batch, 0, this.latentDim]);
    const ropeKey = zeros(this.dtype, [this.batch, 0, this.ropeDim]);
    this.slots = Slots.empty({ latent, rope_key: ropeKey }, this.batch);
  }

  override get capacity(): number | null {
    return this.#options.capacity ?? null;
  }

  get description(): Description {
    const { batch, dtype, latentDim, ropeDim } = this;
    return { kind: "latent", dtype, batch, latent_dim: latentDim, rope_dim: ropeDim };
  }

  protected empty(): this {
    return new LatentCache(this.#options) as this;
  }

  /**
   * Adds `latent` (B, T, R) and `ropeKey` (B, T, Dr), T >= 0, after the last position of each row.
   *
   * @param lengths (B,), how many of the T count in each row; absent = all.
   * @throws ShapeMismatch, DtypeMismatch, InvalidConfig, CapacityExceeded.
   */
  append(
    latent: Tensor<FloatArrays[T]>,
    ropeKey: Tensor<FloatArrays[T]>,
    lengths?: Lengths | null,
    options: AppendOptions = {},
  ): void {
    // 1. check: everything, before anything is changed
    checkLatentAppend("append", latent, ropeKey, lengths, options, this);
    checkNoTokens("append", options);
    const { counts, starts } = countsOf(lengths, options, this.batch, sizes3(latent)[1]); // (B,)
    const needed = this.slots.lengthAfter(counts);
    checkRoom("append", needed, this.capacity);

    // 2. write: each row at its own end
    const slots = this.slots.grown(needed);
    for (const [b, count] of counts.entries()) {
      const newLatent = counted(latent, b, starts[b]!, count); // (1, count, R)
      slots.write(b, { latent: newLatent, rope_key: counted(ropeKey, b, starts[b]!, count) });
    }
    this.slots = slots.advanced(counts);
  }

  /**
   * {@link attend} gives the attention of `q` (B, H, Tq, R + Dr) over what is held, (B, H, Tq, R), with 1/sqrt(R +
   * Dr) as the scale where none is given; this gives all its intermediates too. Otherwise as
   * {@link KVCache.attendSteps}.
   */
  attendSteps(
    q: Tensor<FloatArrays[T]>,
    options: AttentionOptions<FloatArrays[T]> = {},
  ): SdpaSteps<FloatArrays[T]> {
    // 3. attend: all heads share one key, the latent with the rotary key beside it, and one value, the latent
    return attendOver(this, q, options);
  }

  held(): Held {
    const { latent, ropeKey, positions } = this.read();
    const v = oneHead(latent); // (B, 1, L, R)
    return { k: widen(besideHeads(v, oneHead(ropeKey))), v: widen(v), positions }; // k (B, 1, L, R + Dr)
  }

  /** As {@link KVCache.truncate}. */
  truncate(lengths: readonly number[]): void {
    checkTruncate("truncate", lengths, this.lengths);
    this.slots = this.slots.cut(lengths);
  }

  /** Copies of the latents, the rotary keys, the lengths and the positions. */
  read(): LatentContents<T> {
    // 4. read: by selection, since junk may be NaN
    const { latent, rope_key: ropeKey } = this.slots.trimmed();
    return { latent, ropeKey, lengths: this.lengths, positions: this.slots.places } as LatentContents<T>;
  }
}

/** (B, L, n) to (B, 1, L, n). */
function oneHead<A extends FloatArrays[FloatDtype]>({ data, shape }: Tensor<A>): Tensor<A> {
  return { data, shape: shape.toSpliced(1, 0, 1) };
}
