/**
 * The paged KV cache: each row is a list of pages from a pool, filled one after the other.
 *
 * Memory is taken as it is needed and shared where rows begin alike: a fork or a beam holds the pages of its
 * origin until it writes, and rows that say what their tokens are find pages that others have filled.
 *
 * Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, Tq queries, L longest row, P
 * positions of a page, D and Dv head sizes.
 *
 * Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
 * 2023, section 4.
 */

import {
  type AppendOptions,
  allOrNothing,
  type Cache,
  type CacheState,
  type CacheStats,
  type Description,
} from "./cache.ts";
import { type CacheRope, heldRope, type RopeAt, turned } from "./cache_rope.ts";
import { checkAppend, checkBatch, checkCacheRope, checkReorder, checkTruncate } from "./checks_cache.ts";
import { checkPages, checkTokens } from "./checks_paged.ts";
import { attendOver, attendWide, type Held, range } from "./held.ts";
import type { Page, PagedRow, PagePool } from "./page_pool.ts";
import { blankPairs, describePairs, heldPairs, type KVCacheContents, readPairs } from "./pairs.ts";
import type { Rope } from "./rope.ts";
import type { AttentionOptions, SdpaSteps } from "./sdpa.ts";
import { countsOf } from "./slot_cache.ts";
import { copySlots, counted, Slots } from "./slots.ts";
import type { FloatArray, FloatArrays, FloatDtype, Lengths, Tensor } from "./tensor.ts";
import { longest, sizes4 } from "./tensor.ts";

/** null and undefined both mean absent. */
export interface PagedCacheOptions<T extends FloatDtype = "float32"> extends CacheRope {
  readonly pool: PagePool<T>;
  readonly batch: number;
}

/** Keys and values in pages. A call that throws leaves the cache, and its pool, as they were. */
export class PagedCache<T extends FloatDtype = "float32"> implements Cache<T> {
  readonly pool: PagePool<T>;
  readonly batch: number;
  readonly rope: Rope | null;
  readonly ropeAt: RopeAt;
  readonly #turns: CacheRope;

  /** @throws InvalidConfig, ShapeMismatch. */
  constructor({ pool, batch, rope, ropeAt }: PagedCacheOptions<T>) {
    this.pool = pool;
    this.batch = batch;
    this.rope = rope ?? null;
    this.ropeAt = ropeAt ?? "append";
    this.#turns = { rope, ropeAt };
    checkBatch("paged_cache", batch, pool.dtype);
    checkCacheRope("paged_cache", this.#turns, pool.headDim);
    this.#rows = Array.from({ length: batch }, () => ({ pages: [], length: 0, tokens: [] }));
  }

  /** (B,); the pool knows them too, and whoever looks for pages to share. */
  get #rows(): readonly PagedRow<T>[] {
    return this.pool.rows.get(this)!;
  }

  set #rows(rows: readonly PagedRow<T>[]) {
    this.pool.rows.set(this, rows);
  }

  get dtype(): T {
    return this.pool.dtype;
  }

  /** How many positions each row holds: a copy, (B,). */
  get lengths(): number[] {
    return this.#rows.map(({ length }) => length);
  }

  /** L, the length of the longest row. */
  get length(): number {
    return longest(this.lengths);
  }

  get next(): number[] {
    return this.lengths;
  }

  get description(): Description {
    const { batch, pool } = this;
    const sizes = { page_size: pool.pageSize, num_pages: pool.numPages };
    return { kind: "paged", ...describePairs({ ...pool, batch }), ...sizes, rope: heldRope(this) !== null };
  }

  /**
   * Arguments and errors are those of {@link KVCache.append}; CapacityExceeded where the pool has too few free
   * pages.
   */
  append(
    k: Tensor<FloatArrays[T]>,
    v: Tensor<FloatArrays[T]>,
    lengths?: Lengths | null,
    options: AppendOptions = {},
  ): void {
    // 1. check: everything, before anything is changed
    const P = this.pool.pageSize;
    checkAppend("append", k, v, lengths, options, { ...this.pool, batch: this.batch });
    const T = sizes4(k)[2];
    checkTokens("append", options, [this.batch, T]);
    const { counts, starts } = countsOf(lengths, options, this.batch, T); // (B,)
    checkPages("append", this.#pagesFor(counts), this.pool.counts.free);

    // 2. take pages: a row's own, where its last one is shared or full
    const pages = allOrNothing(this, () =>
      this.#rows.map((row, b) => {
        const own = [...row.pages];
        const last = Math.floor(row.length / P);
        if (counts[b]! > 0 && last < own.length) own[last] = this.pool.owned(own[last]!);
        while (own.length * P < row.length + counts[b]!) own.push(this.pool.take());
        return own;
      }),
    );

    // 3. write: each row at its own end, keys turned as their positions say, or left to an attend
    this.#rows = this.#rows.map((row, b) => {
      const [count, start] = [counts[b]!, starts[b]!];
      const newK = turned(counted(k, b, start, count), heldRope(this), range(row.length, count)); // (1, Hkv, count, D)
      this.#place(pages[b]!, row.length, newK, counted(v, b, start, count));
      const given = options.tokens?.data.subarray(b * T + start, b * T + start + count);
      const tokens = [...row.tokens, ...(given ?? new Array<null>(count).fill(null))]; // (length,)
      return { pages: pages[b]!, length: row.length + count, tokens };
    });

    // 4. share prefixes: whole pages of the same tokens after the same tokens become one
    if (options.tokens == null) return;
    for (const [b, row] of this.#rows.entries()) {
      const pages = row.pages.map((page, n) => {
        const older = this.pool.known(row, n);
        if (older === page) return page;
        this.pool.share(older);
        this.pool.release(page);
        return older;
      });
      this.#rows = this.#rows.with(b, { ...row, pages });
    }
  }

  attend(q: Tensor<FloatArrays[T]>, options: AttentionOptions<FloatArrays[T]> = {}): Tensor<FloatArrays[T]> {
    return this.attendSteps(q, options).output;
  }

  /** Arguments and errors are those of {@link KVCache.attendSteps}. */
  attendSteps(
    q: Tensor<FloatArrays[T]>,
    options: AttentionOptions<FloatArrays[T]> = {},
  ): SdpaSteps<FloatArrays[T]> {
    // 5. attend: over the pages of each row, one after the other
    return attendOver(this, q, options);
  }

  attendWide(q: Tensor<FloatArray>, options: AttentionOptions = {}): SdpaSteps {
    return attendWide(this, q, options);
  }

  held(): Held {
    return heldPairs(this.#gathered(), this);
  }

  /** As {@link KVCache.truncate}. */
  truncate(lengths: readonly number[]): void {
    // 6. truncate: pages without a position are given back
    checkTruncate("truncate", lengths, this.lengths);
    this.#rows = this.#rows.map((row, b) => {
      const needed = Math.ceil(lengths[b]! / this.pool.pageSize);
      for (const page of row.pages.slice(needed)) this.pool.release(page);
      return {
        pages: row.pages.slice(0, needed),
        length: lengths[b]!,
        tokens: row.tokens.slice(0, lengths[b]!),
      };
    });
  }

  /** Forgets everything, and gives its pages back. */
  reset(): void {
    this.truncate(this.lengths.map(() => 0));
  }

  /** Copies of the keys, the values, the lengths and the positions. */
  read(): KVCacheContents<T> {
    return readPairs(this.#gathered());
  }

  /** Row i becomes what row index[i] was, and shares its pages. @throws ShapeMismatch, InvalidConfig. */
  reorder(index: readonly number[]): void {
    checkReorder("reorder", index, this.batch);
    const rows = index.map((b) => this.#shared(this.#rows[b]!));
    this.reset();
    this.#rows = rows;
  }

  /** A second cache with the same content, on the same pool; neither sees what becomes of the other. */
  fork(): PagedCache<T> {
    // 7. fork: by sharing all pages
    const copy = new PagedCache<T>({ ...this.#turns, pool: this.pool, batch: this.batch });
    copy.#rows = this.#rows.map((row) => this.#shared(row));
    return copy;
  }

  /** Gives its pages back; nothing can be done with it afterwards. */
  drop(): void {
    this.reset();
    this.pool.rows.delete(this);
  }

  stats(): CacheStats {
    const { pool } = this;
    const pages = pool.counts;
    const perPage = pool.numKvHeads * pool.pageSize * (pool.headDim + pool.valueDim);
    const width = blankPairs({ ...pool, batch: 0 }, 0).k.data.BYTES_PER_ELEMENT;
    return { positions: this.lengths, bytes: pages.used * perPage * width, pages };
  }

  state(): CacheState {
    const slots = this.#gathered();
    return { positions: slots.positions, next: slots.next, tensors: slots.trimmed() };
  }

  /** Pages are taken anew, and what the tokens were is not known. */
  restore({ next, tensors }: CacheState): void {
    const P = this.pool.pageSize;
    const needed = next.reduce((sum, n) => sum + Math.ceil(n / P), 0);
    const pages = this.#rows.flatMap((row) => row.pages);
    const own = [...new Set(pages)].filter((page) => pages.filter((p) => p === page).length === page.holders);
    checkPages("load", needed, this.pool.counts.free + own.length);
    const { k, v } = tensors as unknown as KVCacheContents<T>;
    allOrNothing(this, () => {
      this.reset();
      this.#rows = next.map((length, b) => {
        const taken = Array.from({ length: Math.ceil(length / P) }, () => this.pool.take());
        this.#place(taken, 0, counted(k, b, 0, length), counted(v, b, 0, length));
        return { pages: taken, length, tokens: new Array<null>(length).fill(null) };
      });
    });
  }

  checkpoint(): () => void {
    const rows = this.#rows;
    const undo = this.pool.checkpoint();
    return () => {
      undo();
      this.#rows = rows;
    };
  }

  /** How many free pages an append of so many positions takes, copies of shared ones included. */
  #pagesFor(counts: readonly number[]): number {
    const P = this.pool.pageSize;
    const writers = new Map<Page<T>, number>(); // of the pages that are written to and not full
    let fresh = 0;
    for (const [b, { pages, length }] of this.#rows.entries()) {
      if (counts[b] === 0) continue;
      fresh += Math.ceil((length + counts[b]!) / P) - pages.length;
      const last = pages[Math.floor(length / P)];
      if (last !== undefined) writers.set(last, (writers.get(last) ?? 0) + 1);
    }
    const copies = [...writers].map(([{ holders }, n]) => Math.min(n, holders - 1));
    return copies.reduce((sum, n) => sum + n, fresh);
  }

  /** Keys (1, Hkv, count, D) and values (1, Hkv, count, Dv) to the places from `start` on of these pages. */
  #place(
    pages: readonly Page<T>[],
    start: number,
    k: Tensor<FloatArrays[T]>,
    v: Tensor<FloatArrays[T]>,
  ): void {
    const P = this.pool.pageSize;
    for (let t = 0; t < sizes4(k)[2]; t++) {
      const page = pages[Math.floor((start + t) / P)]!;
      copySlots(k, 0, t, page.k, 0, (start + t) % P, 1); // (Hkv, D)
      copySlots(v, 0, t, page.v, 0, (start + t) % P, 1); // (Hkv, Dv)
    }
  }

  /** What is held, page after page, in one block of memory. */
  #gathered(): Slots {
    const P = this.pool.pageSize;
    const arrays = blankPairs({ ...this.pool, batch: this.batch }, this.length);
    for (const [b, { pages, length }] of this.#rows.entries()) {
      for (const [n, page] of pages.entries()) {
        const count = Math.min(P, length - n * P);
        copySlots(page.k, 0, 0, arrays.k, b, n * P, count); // (Hkv, count, D)
        copySlots(page.v, 0, 0, arrays.v, b, n * P, count); // (Hkv, count, Dv)
      }
    }
    return new Slots(
      arrays,
      this.lengths.map((length) => range(0, length)),
      this.lengths,
    );
  }

  /** The same row for one more holder. */
  #shared(row: PagedRow<T>): PagedRow<T> {
    for (const page of row.pages) this.pool.share(page);
    return row;
  }
}
