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

import { checkAppend, checkAttend, checkCache, checkRoom, checkTruncate } from "./checks_cache.ts";
import { type AttentionOptions, type SdpaSteps, sdpaSteps } from "./sdpa.ts";
import {
  type FloatArrays,
  type FloatDtype,
  type Lengths,
  sizes4,
  type Tensor,
  toNumbers,
  zeros,
} from "./tensor.ts";

export interface KVCacheOptions<T extends FloatDtype = "float32"> {
  readonly batch: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  /** Absent: headDim. */
  readonly valueDim?: number | null;
  /** The most positions a row may hold. Absent: it grows by doubling. */
  readonly capacity?: number | null;
  /** Element type of what it holds. Absent: "float32". */
  readonly dtype?: T;
}

/** What {@link KVCache.read} gives. */
export interface KVCacheContents<T extends FloatDtype = "float32"> {
  /** (B, Hkv, L, D), zero beyond a row's length */
  readonly k: Tensor<FloatArrays[T]>;
  /** (B, Hkv, L, Dv), zero beyond a row's length */
  readonly v: Tensor<FloatArrays[T]>;
  /** (B,) */
  readonly lengths: number[];
}

/**
 * Keys (B, Hkv, length, D) and values (B, Hkv, length, Dv). A call that throws leaves the cache as it was.
 */
export class KVCache<T extends FloatDtype = "float32"> {
  readonly batch: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;
  readonly capacity: number | null;
  readonly dtype: T;
  #k: Tensor<FloatArrays[T]>; // (B, Hkv, room, D)
  #v: Tensor<FloatArrays[T]>; // (B, Hkv, room, Dv)
  #lengths: number[]; // (B,)

  /** @throws InvalidConfig. */
  constructor(options: KVCacheOptions<T>) {
    this.batch = options.batch;
    this.numKvHeads = options.numKvHeads;
    this.headDim = options.headDim;
    this.valueDim = options.valueDim ?? options.headDim;
    this.capacity = options.capacity ?? null;
    this.dtype = options.dtype ?? ("float32" as T);
    checkCache("kv_cache", this);
    const room = this.capacity ?? 0;
    this.#k = zeros(this.dtype, [this.batch, this.numKvHeads, room, this.headDim]);
    this.#v = zeros(this.dtype, [this.batch, this.numKvHeads, room, this.valueDim]);
    this.#lengths = new Array(this.batch).fill(0);
  }

  /** L, the length of the longest row. */
  get length(): number {
    return longest(this.#lengths);
  }

  /** How many positions each row holds: a copy, (B,). */
  get lengths(): number[] {
    return [...this.#lengths];
  }

  /**
   * Adds `k` (B, Hkv, T, D) and `v` (B, Hkv, T, Dv), T >= 0, after the last position of each row.
   *
   * @param lengths (B,), how many of the T count in each row; absent = all.
   * @throws ShapeMismatch, DtypeMismatch, InvalidConfig, CapacityExceeded.
   */
  append(k: Tensor<FloatArrays[T]>, v: Tensor<FloatArrays[T]>, lengths?: Lengths | null): void {
    // 1. check: everything, before anything is changed
    checkAppend("append", k, v, lengths, this);
    const counts = lengths == null ? this.#lengths.map(() => sizes4(k)[2]) : toNumbers(lengths); // (B,)
    const ends = this.#lengths.map((length, b) => length + counts[b]!); // (B,)
    checkRoom("append", longest(ends), this.capacity);

    // 2. grow: at least double, so that n appends copy O(n) positions
    const room = sizes4(this.#k)[2];
    if (longest(ends) > room) {
      const larger = Math.max(longest(ends), 2 * room);
      this.#k = resized(this.dtype, this.#k, larger); // (B, Hkv, room, D)
      this.#v = resized(this.dtype, this.#v, larger); // (B, Hkv, room, Dv)
    }

    // 3. write: each row at its own end
    for (let b = 0; b < this.batch; b++) {
      copyPositions(k, this.#k, b, this.#lengths[b]!, counts[b]!); // (Hkv, count, D)
      copyPositions(v, this.#v, b, this.#lengths[b]!, counts[b]!); // (Hkv, count, Dv)
    }

    // 4. advance: only now do the new positions exist
    this.#lengths = ends;
  }

  /**
   * Attention of `q` (B, Hq, Tq, D) over the positions held: (B, Hq, Tq, Dv).
   *
   * `mask` and `bias` are over the L positions held. Without `mask.qOffset` the last query stands on the last
   * position of its row; `mask.kvLengths` is the cache's own and must be absent.
   *
   * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
   */
  attend(q: Tensor<FloatArrays[T]>, options: AttentionOptions<FloatArrays[T]> = {}): Tensor<FloatArrays[T]> {
    return this.attendSteps(q, options).output;
  }

  /** {@link attend} with all its intermediates; same arguments and errors. */
  attendSteps(
    q: Tensor<FloatArrays[T]>,
    options: AttentionOptions<FloatArrays[T]> = {},
  ): SdpaSteps<FloatArrays[T]> {
    checkAttend("attend", q, options.mask ?? {});

    // 5. align: the last query stands on the last position of its row
    const qOffset = options.mask?.qOffset ?? this.#lengths.map((length) => length - sizes4(q)[2]); // (B,)
    const mask = { ...options.mask, kvLengths: this.#lengths, qOffset };

    // 6. attend: over what is held
    return sdpaSteps(q, this.keys(), this.values(), { ...options, mask });
  }

  /**
   * Forgets from the end: row b keeps its first lengths[b] positions. @throws ShapeMismatch, InvalidConfig.
   */
  truncate(lengths: readonly number[]): void {
    // 7. truncate: the memory stays, the positions beyond are junk from now on
    checkTruncate("truncate", lengths, this.#lengths);
    this.#lengths = [...lengths]; // (B,)
  }

  /** Forgets everything; the memory is kept. */
  reset(): void {
    // 8. reset: a cache of length 0
    this.#lengths = this.#lengths.map(() => 0); // (B,)
  }

  /** A copy (B, Hkv, L, D); what lies beyond a row's length is junk. */
  keys(): Tensor<FloatArrays[T]> {
    return resized(this.dtype, this.#k, this.length);
  }

  /** A copy (B, Hkv, L, Dv); what lies beyond a row's length is junk. */
  values(): Tensor<FloatArrays[T]> {
    return resized(this.dtype, this.#v, this.length);
  }

  /** Copies of the keys, the values and the lengths, zero beyond a row's length. */
  read(): KVCacheContents<T> {
    // 9. read: by selection, since junk may be NaN
    const k = zeros(this.dtype, [this.batch, this.numKvHeads, this.length, this.headDim]); // (B, Hkv, L, D)
    const v = zeros(this.dtype, [this.batch, this.numKvHeads, this.length, this.valueDim]); // (B, Hkv, L, Dv)
    for (let b = 0; b < this.batch; b++) {
      copyPositions(this.#k, k, b, 0, this.#lengths[b]!);
      copyPositions(this.#v, v, b, 0, this.#lengths[b]!);
    }
    return { k, v, lengths: this.lengths };
  }
}

function longest(lengths: readonly number[]): number {
  return lengths.reduce((most, n) => Math.max(most, n), 0);
}

/**
 * The first `count` positions of row `b` of `from` (B, Hkv, ·, n) go to `to` (B, Hkv, ·, n), beginning at
 * `start`.
 */
function copyPositions<T extends FloatDtype>(
  from: Tensor<FloatArrays[T]>,
  to: Tensor<FloatArrays[T]>,
  b: number,
  start: number,
  count: number,
): void {
  const [, Hkv, held, n] = sizes4(from);
  const room = to.shape[2]!;
  for (let h = b * Hkv; h < (b + 1) * Hkv; h++) {
    const block = from.data.subarray(h * held * n, (h * held + count) * n); // (count, n)
    to.data.set(block, (h * room + start) * n);
  }
}

/** A copy of `x` (B, Hkv, ·, n) with another number of positions, zero beyond those of `x`. */
function resized<T extends FloatDtype>(
  dtype: T,
  x: Tensor<FloatArrays[T]>,
  room: number,
): Tensor<FloatArrays[T]> {
  const [B, Hkv, held, n] = sizes4(x);
  const copy = zeros(dtype, [B, Hkv, room, n]); // (B, Hkv, room, n)
  for (let b = 0; b < B; b++) copyPositions(x, copy, b, 0, Math.min(held, room));
  return copy;
}
