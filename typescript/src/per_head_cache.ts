/**
 * The KV cache whose KV heads hold slots of their own, so that a policy may keep others, and more, in each.
 *
 * It is a contiguous cache with a row for every KV head of every row, each of one head: attention, eviction and
 * the rest are those of kv_cache. Appended tokens come to all heads, and what a head does not hold any more it
 * does not see.
 *
 * Letters: B batch, Hkv key/value heads, Hq query heads, G = Hq / Hkv, T new positions, Tq queries, L slots of
 * the head that holds most, D and Dv head sizes.
 *
 * Sources: Li et al., "SnapKV: LLM Knows What You Are Looking for Before Generation", 2024, section 4 (a choice
 * for each head); Feng et al., "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM
 * Inference", 2024, section 3 (budgets of heads).
 */

import type { AppendOptions, Cache, CacheState, CacheStats, Description } from "./cache.ts";
import type { RopeAt } from "./cache_rope.ts";
import { requireBoolean } from "./checks.ts";
import {
  checkAppend,
  checkAttend,
  checkCache,
  checkCacheRope,
  checkCapacity,
  checkNoTokens,
  checkQueries,
  checkReorder,
} from "./checks_cache.ts";
import { checkPolicy } from "./checks_eviction.ts";
import { InvalidConfig } from "./errors.ts";
import type { Policy } from "./eviction.ts";
import type { Held } from "./held.ts";
import { KVCache, type KVCacheOptions } from "./kv_cache.ts";
import { describePairs, type KVCacheContents } from "./pairs.ts";
import type { Rope } from "./rope.ts";
import type { AttentionOptions, SdpaSteps } from "./sdpa.ts";
import {
  blankLike,
  broadcastIndex,
  dtypeOf,
  type FloatArray,
  type FloatArrays,
  type FloatDtype,
  type Lengths,
  sizes4,
  type Tensor,
  type TensorArray,
  toNumbers,
} from "./tensor.ts";

/** Keys and values, head by head. A call that throws leaves the cache as it was. */
export class PerHeadCache<T extends FloatDtype = "float32"> implements Cache<T> {
  readonly batch: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;
  readonly dtype: T;
  readonly track: boolean;
  readonly rope: Rope | null;
  readonly ropeAt: RopeAt;
  readonly #options: KVCacheOptions<T>;
  /** (B·Hkv, 1, L, D) */
  #rows: KVCache<T>;

  /** @throws InvalidConfig, ShapeMismatch, DtypeMismatch. */
  constructor(options: KVCacheOptions<T>) {
    this.batch = options.batch;
    this.numKvHeads = options.numKvHeads;
    this.headDim = options.headDim;
    this.valueDim = options.valueDim ?? options.headDim;
    this.dtype = options.dtype ?? ("float32" as T);
    checkCache("per_head_cache", this);
    checkCacheRope("per_head_cache", options, this.headDim);
    const width = Math.max(this.headDim, this.valueDim);
    checkCapacity("per_head_cache", options.capacity ?? null, this.batch, this.numKvHeads, width);
    requireBoolean("per_head_cache", "track", options.track ?? false);
    this.#options = options;
    this.#rows = new KVCache({ ...options, batch: this.batch * this.numKvHeads, numKvHeads: 1 });
    this.track = this.#rows.track;
    this.rope = this.#rows.rope;
    this.ropeAt = this.#rows.ropeAt;
  }

  get capacity(): number | null {
    return this.#rows.capacity;
  }

  /** [B, Hkv]: a row of slots for every KV head. */
  get rowAxes(): readonly [number, number] {
    return [this.batch, this.numKvHeads];
  }

  /** How many positions each head holds: a copy, (B·Hkv,). */
  get lengths(): number[] {
    return this.#rows.lengths;
  }

  /** L */
  get length(): number {
    return this.#rows.length;
  }

  /** (B·Hkv,) */
  get next(): number[] {
    return this.#rows.next;
  }

  get description(): Description {
    const { rope, track } = this.#rows.description;
    return { kind: "per_head", ...describePairs(this), rope: rope!, track: track! };
  }

  /** Arguments and errors are those of {@link KVCache.append}. */
  append(
    k: Tensor<FloatArrays[T]>,
    v: Tensor<FloatArrays[T]>,
    lengths?: Lengths | null,
    options: AppendOptions = {},
  ): void {
    checkAppend("append", k, v, lengths, options, this);
    checkNoTokens("append", options);

    // 1. rows: a row for each KV head of a row; G = 1 for keys and values
    const counts = lengths == null ? null : this.#repeated(toNumbers(lengths)); // (B·Hkv,)
    this.#rows.append(this.#asRows(k), this.#asRows(v), counts, options); // (B·Hkv, 1, T, D), (B·Hkv, 1, T, Dv)
  }

  attend(q: Tensor<FloatArrays[T]>, options: AttentionOptions<FloatArrays[T]> = {}): Tensor<FloatArrays[T]> {
    return this.attendSteps(q, options).output;
  }

  /** Arguments and errors are those of {@link KVCache.attendSteps}; `mask` and `bias` are over L slots of each head. */
  attendSteps(
    q: Tensor<FloatArrays[T]>,
    options: AttentionOptions<FloatArrays[T]> = {},
  ): SdpaSteps<FloatArrays[T]> {
    checkAttend("attend", q, options, this.dtype, this.#keys);

    // 2. attend: in the contiguous cache, the queries of each group to the slots of their own head
    const steps = this.#rows.attendSteps(this.#asRows(q), this.#ofRows(options)); // output (B·Hkv, G, Tq, Dv)

    // 3. join: the heads of a row side by side again
    return this.#joined(steps); // output (B, Hq, Tq, Dv)
  }

  attendWide(q: Tensor<FloatArray>, options: AttentionOptions = {}): SdpaSteps {
    checkQueries("attend", sizes4(q), options, dtypeOf(q), this.#keys);
    return this.#joined(this.#rows.attendWide(this.#asRows(q), this.#ofRows(options)));
  }

  /** Of its rows: k (B·Hkv, 1, L, D), v (B·Hkv, 1, L, Dv). */
  held(): Held {
    return this.#rows.held();
  }

  /** @throws InvalidConfig: the last slots of a row are not the same tokens in every head. */
  truncate(lengths: readonly number[]): void {
    const expected = "no truncation where heads hold other slots";
    throw new InvalidConfig(`truncate: lengths: expected ${expected}, got ${lengths}`);
  }

  /** Forgets everything; the memory is kept. */
  reset(): void {
    this.#rows.reset();
  }

  /** Copies of the keys and values, (B, Hkv, L, D) and (B, Hkv, L, Dv); lengths and positions of B·Hkv heads. */
  read(): KVCacheContents<T> {
    const { k, v, tracked, ...rows } = this.#rows.read();
    const sums = tracked === undefined ? {} : { tracked: this.#apart(tracked) };
    return { k: this.#apart(k), v: this.#apart(v), ...rows, ...sums };
  }

  /** All heads forget these positions where they hold them. @throws InvalidConfig. */
  evict(positions: readonly number[]): void {
    this.#rows.evict(positions);
  }

  /**
   * Every head keeps the slots that the policy chooses by the scores of that head.
   *
   * @throws InvalidConfig, ShapeMismatch, DtypeMismatch.
   */
  evictBy(policy: Policy<FloatArrays[T]>): void {
    checkPolicy("evict_by", policy, this, true);
    const { budget } = policy;
    const one = typeof budget === "number";
    const ofHeads = one ? new Array<number>(this.numKvHeads).fill(budget) : budget; // (Hkv,)
    const budgets = Array.from({ length: this.batch }, () => ofHeads).flat(); // (B·Hkv,)
    const ofRows = policy.type === "snapkv" ? { ...policy, q: this.#asRows(policy.q) } : policy;
    this.#rows.evictRows(ofRows, budgets);
  }

  /** As {@link KVCache.shift}. */
  shift(by: number, from: number): void {
    this.#rows.shift(by, from);
  }

  /** Row i becomes a copy of what row index[i] was, all heads of it. @throws ShapeMismatch, InvalidConfig. */
  reorder(index: readonly number[]): void {
    checkReorder("reorder", index, this.batch);
    const { numKvHeads } = this;
    this.#rows.reorder(
      index.flatMap((b) => Array.from({ length: numKvHeads }, (_, h) => b * numKvHeads + h)),
    );
  }

  /** A second cache with the same content; neither sees what becomes of the other. */
  fork(): PerHeadCache<T> {
    const copy = new PerHeadCache<T>(this.#options);
    copy.#rows = this.#rows.fork();
    return copy;
  }

  /** Positions are those of B·Hkv heads. */
  stats(): CacheStats {
    return this.#rows.stats();
  }

  /** Rows are those of B·Hkv heads; tensors (B, Hkv, L, n). */
  state(): CacheState {
    const { tensors, ...rows } = this.#rows.state();
    const apart = Object.entries(tensors).map(([name, x]) => [name, this.#apart(x)]);
    return { ...rows, tensors: Object.fromEntries(apart) };
  }

  restore({ tensors, ...rows }: CacheState): void {
    const alone = Object.entries(tensors).map(([name, x]) => [name, this.#asRows(x)]);
    this.#rows.restore({ ...rows, tensors: Object.fromEntries(alone) });
  }

  checkpoint(): () => void {
    return this.#rows.checkpoint();
  }

  /** What queries are checked against. */
  get #keys(): [number, number, number, number] {
    return [this.batch, this.numKvHeads, this.length, this.headDim];
  }

  /** (B, heads·Hkv, a, b) to (B·Hkv, heads, a, b). */
  #asRows<A extends TensorArray>({ data, shape }: Tensor<A>): Tensor<A> {
    const [, heads, a, b] = shape as [number, number, number, number];
    return { data, shape: [this.batch * this.numKvHeads, heads / this.numKvHeads, a, b] };
  }

  /** (B·Hkv, 1, ...) to (B, Hkv, ...). */
  #apart<A extends TensorArray>({ data, shape }: Tensor<A>): Tensor<A> {
    return { data, shape: [this.batch, this.numKvHeads, ...shape.slice(2)] };
  }

  /** (B·Hkv, G, ...) each to (B, Hq, ...). */
  #joined<A extends FloatArray>(steps: SdpaSteps<A>): SdpaSteps<A> {
    const joined = Object.entries(steps).map(([name, { data, shape }]) => {
      return [name, { data, shape: [this.batch, this.numKvHeads * shape[1], ...shape.slice(2)] }];
    });
    return Object.fromEntries(joined);
  }

  /** The same options of rows of one head. */
  #ofRows<A extends FloatArray>({ mask, bias, ...options }: AttentionOptions<A>): AttentionOptions<A> {
    const offset = mask?.qOffset;
    const qOffset =
      typeof offset === "object" && offset !== null ? this.#repeated(toNumbers(offset)) : offset;
    const keep = mask?.keep == null ? null : this.#rowsOf(mask.keep);
    return { ...options, mask: { ...mask, keep, qOffset }, bias: bias == null ? null : this.#rowsOf(bias) };
  }

  /** What broadcasts to (B, Hq, Tq, L), so that it broadcasts to (B·Hkv, G, Tq, L). */
  #rowsOf<A extends TensorArray>(x: Tensor<A>): Tensor<A> {
    const { batch, numKvHeads } = this;
    const [, heads, Tq, L] = [1, 1, 1, 1, ...x.shape].slice(-4) as [number, number, number, number];
    const G = heads === 1 ? 1 : heads / numKvHeads;
    const placeOf = broadcastIndex(x.shape);
    const rows = blankLike(x, [batch * numKvHeads, G, Tq, L]);
    for (let at = 0; at < rows.data.length; at++) {
      const [row, g] = [Math.floor(at / (G * Tq * L)), Math.floor(at / (Tq * L)) % G];
      const [b, h] = [Math.floor(row / numKvHeads), (row % numKvHeads) * G + g];
      rows.data[at] = x.data[placeOf(b, heads === 1 ? 0 : h, Math.floor(at / L) % Tq, at % L)]!;
    }
    return rows;
  }

  /** (B,) to (B·Hkv,). */
  #repeated(numbers: readonly number[]): number[] {
    return numbers.flatMap((n) => new Array<number>(this.numKvHeads).fill(n));
  }
}
