/**
 * A pool of pages for paged caches: memory for a fixed number of positions each, handed out one by one.
 *
 * A page that several rows or forks hold is shared until one of them writes to it. A page without a holder is
 * free.
 *
 * Letters: Hkv key/value heads, P positions of a page, D and Dv head sizes.
 *
 * Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
 * 2023, sections 4.1 to 4.4.
 */

import { checkPool } from "./checks_paged.ts";
import type { FloatArrays, FloatDtype, Tensor, TensorArray } from "./tensor.ts";
import { zeros } from "./tensor.ts";

/** null and undefined both mean absent. */
export interface PagePoolOptions<T extends FloatDtype = "float32"> {
  readonly numPages: number;
  readonly pageSize: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  /** Absent: headDim. */
  readonly valueDim?: number | null;
  /** Element type of what the pages hold. Absent: "float32". */
  readonly dtype?: T;
}

export interface Page<T extends FloatDtype = FloatDtype> {
  /** (1, Hkv, P, D) */
  readonly k: Tensor<FloatArrays[T]>;
  /** (1, Hkv, P, Dv) */
  readonly v: Tensor<FloatArrays[T]>;
  /** Since when rows with the same tokens can find it: the smaller, the older. null: they cannot. */
  since: number | null;
  /** How many rows have it. */
  holders: number;
}

/** One row of a cache: which pages it has, and how many of their positions. */
export interface PagedRow<T extends FloatDtype = FloatDtype> {
  readonly pages: readonly Page<T>[];
  readonly length: number;
  /** (length,): what each position is of; null where nobody said. */
  readonly tokens: readonly (bigint | null)[];
}

export class PagePool<T extends FloatDtype = "float32"> {
  readonly numPages: number;
  readonly pageSize: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;
  readonly dtype: T;
  /** The rows of all caches on this pool, by cache. */
  readonly rows: Map<object, readonly PagedRow<T>[]> = new Map();
  #used: Set<Page<T>> = new Set();
  #known = 0;

  /** @throws InvalidConfig, DtypeMismatch. */
  constructor(options: PagePoolOptions<T>) {
    this.numPages = options.numPages;
    this.pageSize = options.pageSize;
    this.numKvHeads = options.numKvHeads;
    this.headDim = options.headDim;
    this.valueDim = options.valueDim ?? options.headDim;
    this.dtype = options.dtype ?? ("float32" as T);
    checkPool("page_pool", this);
  }

  /** How many pages are in use, shared by more than one row, and free. */
  get counts(): { used: number; shared: number; free: number } {
    const used = this.#used.size;
    const shared = [...this.#used].filter(({ holders }) => holders > 1).length;
    return { used, shared, free: this.numPages - used };
  }

  /** A page of zeros with one holder. There must be a free one. */
  take(): Page<T> {
    // 1. take: nothing of an earlier holder is in it
    const { dtype, numKvHeads, pageSize, headDim, valueDim } = this;
    const k = zeros(dtype, [1, numKvHeads, pageSize, headDim]); // (1, Hkv, P, D)
    const v = zeros(dtype, [1, numKvHeads, pageSize, valueDim]); // (1, Hkv, P, Dv)
    const page = { k, v, since: null, holders: 1 };
    this.#used.add(page);
    return page;
  }

  /** The same page for one more holder. */
  share(page: Page<T>): Page<T> {
    // 2. share: by counting
    page.holders++;
    return page;
  }

  /** The page to write to for one of its holders: a copy where there are others, which needs a free page. */
  owned(page: Page<T>): Page<T> {
    // 3. copy on write: the others keep what they had
    if (page.holders === 1) {
      page.since = null; // its content is about to change
      return page;
    }
    const copy = this.take();
    copy.k.data.set(page.k.data);
    copy.v.data.set(page.v.data);
    this.release(page);
    return copy;
  }

  /** One holder less. */
  release(page: Page<T>): void {
    // 4. free: without a holder
    page.holders--;
    if (page.holders === 0) this.#used.delete(page);
  }

  /**
   * The page that page `n` of this row can become: of those in use that hold the same bits for the same tokens
   * after the same tokens, the one that has been known for longest. From now on it is one of them, where it is
   * full, and somebody has said what its tokens are, and those before them.
   */
  known(row: PagedRow<T>, n: number): Page<T> {
    const [page, end] = [row.pages[n]!, (n + 1) * this.pageSize];
    if (row.length < end || row.tokens.slice(0, end).includes(null)) return page;
    let oldest = page;
    for (const other of [...this.rows.values()].flat()) {
      const candidate = other.pages[n];
      if (other.length < end || candidate === undefined || candidate.since === null) continue;
      if (oldest.since !== null && candidate.since >= oldest.since) continue;
      const alike = row.tokens.slice(0, end).every((token, j) => token === other.tokens[j]);
      if (alike && sameBits(candidate.k, page.k) && sameBits(candidate.v, page.v)) oldest = candidate;
    }
    oldest.since ??= this.#known++;
    return oldest;
  }

  /** Gives the way back from an append. */
  checkpoint(): () => void {
    const before = [...this.#used].map((page) => [page, page.holders] as const);
    return () => {
      this.#used = new Set(before.map(([page]) => page));
      for (const [page, holders] of before) page.holders = holders;
    };
  }
}

/** Also of NaN, and of zeros with a sign. */
function sameBits(x: Tensor<TensorArray>, y: Tensor<TensorArray>): boolean {
  const [a, b] = [x, y].map(({ data }) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  return a!.every((byte, n) => byte === b![n]);
}
