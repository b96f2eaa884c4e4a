/** What the caches that are made of slots share: how they are copied, reordered, measured and restored. */

import type { AppendOptions, CacheState, CacheStats, Description } from "./cache.ts";
import { checkReorder, checkRoom } from "./checks_cache.ts";
import { attendWide, type Held } from "./held.ts";
import type { AttentionOptions, SdpaSteps } from "./sdpa.ts";
import { Slots } from "./slots.ts";
import type { FloatArray, FloatArrays, FloatDtype, Lengths, Tensor } from "./tensor.ts";
import { toNumbers } from "./tensor.ts";

export abstract class SlotCache<T extends FloatDtype> {
  readonly batch: number;
  readonly dtype: T;
  protected slots: Slots;

  constructor(batch: number, dtype: T) {
    this.batch = batch;
    this.dtype = dtype;
    this.slots = Slots.empty({}, 0);
  }

  abstract readonly description: Description;
  abstract held(): Held;
  abstract attendSteps(
    q: Tensor<FloatArrays[T]>,
    options?: AttentionOptions<FloatArrays[T]>,
  ): SdpaSteps<FloatArrays[T]>;
  /** A new cache with the same options. */
  protected abstract empty(): this;

  /** The most slots of a row; null = no limit. */
  get capacity(): number | null {
    return null;
  }

  /** How many positions each row holds: a copy, (B,). */
  get lengths(): number[] {
    return this.slots.counts;
  }

  /** L, how many slots the longest row holds. */
  get length(): number {
    return this.slots.length;
  }

  get next(): number[] {
    return [...this.slots.next];
  }

  attend(q: Tensor<FloatArrays[T]>, options: AttentionOptions<FloatArrays[T]> = {}): Tensor<FloatArrays[T]> {
    return this.attendSteps(q, options).output;
  }

  attendWide(q: Tensor<FloatArray>, options: AttentionOptions = {}): SdpaSteps {
    return attendWide(this, q, options);
  }

  /** Row i becomes a copy of what row index[i] was. @throws ShapeMismatch, InvalidConfig. */
  reorder(index: readonly number[]): void {
    checkReorder("reorder", index, this.batch);
    this.slots = this.slots.gathered(index);
  }

  /** Forgets everything; the memory is kept. */
  reset(): void {
    this.slots = this.slots.cut(this.slots.counts.map(() => 0));
  }

  /** A second cache with the same content; neither sees what becomes of the other. */
  fork(): this {
    const copy = this.empty();
    copy.slots = this.slots.copy();
    return copy;
  }

  stats(): CacheStats {
    return { positions: this.slots.counts, bytes: this.slots.bytes };
  }

  state(): CacheState {
    const { positions, next } = this.slots;
    return { positions, next, tensors: this.slots.trimmed() };
  }

  restore({ positions, next, tensors }: CacheState): void {
    const held = new Slots(tensors, positions, next);
    checkRoom("load", held.length, this.capacity);
    this.slots = held;
  }

  checkpoint(): () => void {
    const before = this.slots;
    return () => {
      this.slots = before;
    };
  }
}

/** How many of the T positions of an append count in each row, and where they begin, (B,) each. */
export function countsOf(
  lengths: Lengths | null | undefined,
  { padding }: AppendOptions,
  batch: number,
  T: number,
): { counts: number[]; starts: number[] } {
  const counts = lengths == null ? new Array<number>(batch).fill(T) : toNumbers(lengths);
  return { counts, starts: counts.map((n) => (padding === "left" ? T - n : 0)) };
}
