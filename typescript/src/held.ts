/**
 * Attention over what a cache holds, the same for every kind.
 *
 * Every slot has a position, and causal, window and the queries' own places speak of positions; mask and bias
 * run over the slots, in their order.
 *
 * Letters: B batch, Hq query heads, Hkv key/value heads, Tq queries, L slots of the longest row, D and Dv
 * head sizes.
 */

import type { Cache } from "./cache.ts";
import { inFloat32 } from "./cast.ts";
import { checkAttend } from "./checks_cache.ts";
import { type Mask, visibleCore } from "./masks.ts";
import { type Rope, ropeCore } from "./rope.ts";
import { type AttentionOptions, type SdpaSteps, sdpaCore } from "./sdpa.ts";
import {
  type FloatArray,
  type FloatArrays,
  type FloatDtype,
  type IntTensor,
  type Lengths,
  longest,
  sizes4,
  type Tensor,
  toNumbers,
  type WideArray,
} from "./tensor.ts";

export interface Held {
  /** (B, Hkv, L, D) */
  readonly k: Tensor<WideArray>;
  /** (B, Hkv, L, Dv) */
  readonly v: Tensor<WideArray>;
  /** (B,) lists: where the keys of each row stand. */
  readonly positions: readonly (readonly number[])[];
  /** Turns the queries as the keys were turned. Absent: nothing is turned. */
  readonly rope?: Rope | null;
  /** Which key, at `j`, a query at `p` sees beside what the call says. Absent: all. */
  readonly sees?: (p: number, j: number) => boolean;
}

/** The position of query 0 of each row, (B,): without an offset, the last query stands on the last position. */
export function firstQueries(next: readonly number[], Tq: number, mask?: Mask | null): number[] {
  const qOffset: number | Lengths | null | undefined = mask?.qOffset;
  if (typeof qOffset === "number") return next.map(() => qOffset);
  return qOffset == null ? next.map((n) => n - Tq) : toNumbers(qOffset);
}

/** What `attendSteps` does in most kinds of caches; same arguments and errors. */
export function attendOver<T extends FloatDtype>(
  cache: Pick<Cache<T>, "dtype" | "next" | "held">,
  q: Tensor<FloatArrays[T]>,
  options: AttentionOptions<FloatArrays[T]>,
): SdpaSteps<FloatArrays[T]> {
  const held = cache.held();
  checkAttend("attend", q, options, cache.dtype, sizes4(held.k));
  const first = firstQueries(cache.next, sizes4(q)[2], options.mask); // (B,)
  return attendHeld(q, first, held, options);
}

/**
 * Attention of `q` (B, Hq, Tq, D), whose first queries stand at `first` (B,), over what is held.
 *
 * Half types are widened, and results rounded once, as everywhere. Checks nothing.
 */
export function attendHeld<A extends FloatArray>(
  q: Tensor<A>,
  first: readonly number[],
  { k, v, positions, rope, sees }: Held,
  { mask, ...options }: AttentionOptions<A>,
): SdpaSteps<A> {
  const [B, Hq, Tq] = sizes4(q);
  const L = sizes4(k)[2];
  const conditions = { ...mask, kvLengths: positions.map((row) => row.length), qOffset: first };
  const keep = visibleCore(conditions, B, Hq, Tq, L, (b, j) => positions[b]![j]!); // (B, Hq, Tq, L)
  for (let at = 0; sees !== undefined && at < keep.data.length; at++) {
    const [b, i, j] = [Math.floor(at / (Hq * Tq * L)), Math.floor(at / L) % Tq, at % L];
    if (keep.data[at] !== 0 && !sees(first[b]! + i, positions[b]![j]!)) keep.data[at] = 0;
  }
  const turn = rope == null ? null : { ...rope, offset: null, positions: positionsFrom(first, Tq) };
  const core = (queries: Tensor<FloatArray>, wide: AttentionOptions): SdpaSteps => {
    const Q = turn === null ? queries : ropeCore(queries, turn).output; // (B, Hq, Tq, D)
    return sdpaCore<FloatArray>(Q, k, v, { ...wide, mask: { keep } });
  };
  return inFloat32(core, q, options) as SdpaSteps<A>;
}

/** Row b at first[b], first[b] + 1, ...: (B, T). */
function positionsFrom(first: readonly number[], T: number): IntTensor {
  const all = first.flatMap((start) => Array.from({ length: T }, (_, t) => BigInt(start + t)));
  return { data: BigInt64Array.from(all), shape: [first.length, T] };
}

/** `x` (1, H, T, D) turned as the tokens at these positions are, in its own type. */
export function turned<A extends FloatArray>(
  x: Tensor<A>,
  rope: Rope | null,
  positions: readonly number[],
): Tensor<A> {
  if (rope === null) return x;
  const places = { data: BigInt64Array.from(positions, BigInt), shape: [1, positions.length] };
  return inFloat32(ropeCore<A>, x, { ...rope, positions: places }).output;
}

/** The turn by which keys that have been turned move on: an attention factor is in them already. */
export function further(rope: Rope | null): Rope | null {
  if (rope?.scaling == null) return rope;
  return { ...rope, scaling: { ...rope.scaling, attentionFactor: 1 } as typeof rope.scaling };
}

/** `n`, n + 1, ... of `count`. */
export function range(n: number, count: number): number[] {
  return Array.from({ length: count }, (_, t) => n + t);
}

/** Lists of positions as a table (B, L), -1 beyond a row. */
export function positionTable(rows: readonly (readonly number[])[]): IntTensor {
  const L = longest(rows.map((row) => row.length));
  const data = new BigInt64Array(rows.length * L).fill(-1n);
  for (const [b, row] of rows.entries()) data.set(BigInt64Array.from(row, BigInt), b * L);
  return { data, shape: [rows.length, L] };
}
