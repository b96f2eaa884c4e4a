/** What caches of every kind have in common, so that a layer, a script or a file takes any of them. */

import type { Held } from "./held.ts";
import type { Rope } from "./rope.ts";
import type { AttentionOptions, SdpaSteps } from "./sdpa.ts";
import type {
  FloatArray,
  FloatArrays,
  FloatDtype,
  IntTensor,
  Lengths,
  Tensor,
  TensorArray,
} from "./tensor.ts";

/** How an append reads what it is given. null and undefined both mean absent. */
export interface AppendOptions {
  /** On which side of the T positions those stand that do not count. Absent: "right". */
  readonly padding?: "right" | "left" | null;
  /** (B, T): what the positions are of, so that rows with the same beginning share pages. Paged only. */
  readonly tokens?: IntTensor | null;
}

/** What a cache weighs. */
export interface CacheStats {
  /** (B,): slots held. */
  readonly positions: number[];
  /** Of the keys, values, codes, scales and zeros of the slots held; for paged, of all pages in use. */
  readonly bytes: number;
  /** Of the whole pool; only for paged. */
  readonly pages?: { readonly used: number; readonly shared: number; readonly free: number };
}

/** All that a cache holds, as a file has it. */
export interface CacheState {
  /** (B,) lists: the position of each slot of a row, ascending. */
  readonly positions: readonly (readonly number[])[];
  /** (B,): the position of the next token. */
  readonly next: readonly number[];
  /** (B, ..., L, n) each, zero beyond a row's slots. */
  readonly tensors: Readonly<Record<string, Tensor<TensorArray>>>;
}

/** What a file must agree with: kind and sizes, by the names of the file; null is absent. */
export type Description = Readonly<Record<string, string | number | boolean | null>>;

/**
 * A cache of any kind. A call that throws leaves it as it was.
 *
 * Most hold keys and values, (B, Hkv, T, D) and (B, Hkv, T, Dv); a latent one holds latents and rotary keys,
 * (B, T, R) and (B, T, Dr).
 */
export interface Cache<T extends FloatDtype = FloatDtype> {
  readonly batch: number;
  readonly dtype: T;
  /** The axes that the rows of slots stand along: [B, Hkv] where every KV head has its own. Absent: [B]. */
  readonly rowAxes?: readonly number[];
  /** A copy, (B,), one after the other along all axes of rows: how many positions each has. */
  readonly lengths: number[];
  /** A copy, (B,): the position of the next token of each row. */
  readonly next: number[];
  readonly description: Description;
  /** How queries and keys are turned, where they are. */
  readonly rope?: Rope | null;
  /** @param lengths (B,), how many of the T count in each row; absent = all. */
  append(
    k: Tensor<FloatArrays[T]>,
    v: Tensor<FloatArrays[T]>,
    lengths?: Lengths | null,
    options?: AppendOptions,
  ): void;
  attend(q: Tensor<FloatArrays[T]>, options?: AttentionOptions<FloatArrays[T]>): Tensor<FloatArrays[T]>;
  attendSteps(
    q: Tensor<FloatArrays[T]>,
    options?: AttentionOptions<FloatArrays[T]>,
  ): SdpaSteps<FloatArrays[T]>;
  /** The same between the parts of a layer: queries as wide as attention is computed in, and nothing rounded. */
  attendWide(q: Tensor<FloatArray>, options?: AttentionOptions): SdpaSteps;
  /** Row b keeps its first lengths[b] positions. */
  truncate(lengths: readonly number[]): void;
  reset(): void;
  /** Copies of what is held, zero beyond a row's length. */
  read(): { readonly lengths: number[]; readonly positions: number[][] };
  /** Row i becomes a copy of what row index[i] was. */
  reorder(index: readonly number[]): void;
  /** A second cache with the same content; neither sees what becomes of the other. */
  fork(): Cache<T>;
  stats(): CacheStats;
  /** What attention sees, in float32 or float64. */
  held(): Held;
  state(): CacheState;
  /** Holds that instead. Its names, types and sizes have been checked. */
  restore(state: CacheState): void;
  /** How many entries of that tensor of a {@link state} a row of so many slots has. Absent, or null: one a slot. */
  entries?(name: string): ((slots: number) => number) | null;
  /** Gives the way back from an append. */
  checkpoint(): () => void;
}

/** An append and what follows on it, together or not at all. */
export function allOrNothing<R>(cache: Cache, appendAndMore: () => R): R {
  const undo = cache.checkpoint();
  try {
    return appendAndMore();
  } catch (error) {
    undo();
    throw error;
  }
}
