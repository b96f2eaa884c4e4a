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
import { checkAttend, checkQueries } from "./checks_cache.ts";
import { type Mask, visibleCore } from "./masks.ts";
import { type Rope, ropeCore } from "./rope.ts";
import { type AttentionOptions, type SdpaSteps, sdpaCore } from "./sdpa.ts";
import {
  dtypeOf,
  type FloatArray,
  type FloatArrays,
  type FloatDtype,
  type IntTensor,
  type Lengths,
  sizes4,
  type Tensor,
  toNumbers,
  type WideArray,
} from "./tensor.ts";
import { weightsGiven } from "./track.ts";

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
  /** Takes down what an attend gave each slot, (B, Hkv, L). Absent: nobody asks. */
  readonly track?: ((given: Tensor<Float64Array>) => void) | null;
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

/** The same of queries as wide as attention is computed in, between the parts of a layer: nothing is rounded. */
export function attendWide(
  cache: Pick<Cache, "next" | "held">,
  q: Tensor<FloatArray>,
  options: AttentionOptions,
): SdpaSteps {
  const held = cache.held();
  checkQueries("attend", sizes4(q), options, dtypeOf(q), sizes4(held.k));
  return attendHeld(q, firstQueries(cache.next, sizes4(q)[2], options.mask), held, options);
}

/**
 * Attention of `q` (B, Hq, Tq, D), whose first queries stand at `first` (B,), over what is held.
 *
 * Half types are widened, and results rounded once, as everywhere. Checks nothing.
 */
export function attendHeld<A extends FloatArray>(
  q: Tensor<A>,
  first: readonly number[],
  { k, v, positions, rope, sees, track }: Held,
  { mask, ...options }: AttentionOptions<A>,
): SdpaSteps<A> {
  const [B, Hq, Tq] = sizes4(q);
  const [, Hkv, L] = sizes4(k);
  const conditions = { ...mask, kvLengths: positions.map((row) => row.length), qOffset: first };
  const keep = visibleCore(conditions, B, Hq, Tq, L, (b, j) => positions[b]![j]!); // (B, Hq, Tq, L)
  for (let at = 0; sees !== undefined && at < keep.data.length; at++) {
    const [b, i, j] = [Math.floor(at / (Hq * Tq * L)), Math.floor(at / L) % Tq, at % L];
    if (keep.data[at] !== 0 && !sees(first[b]! + i, positions[b]![j]!)) keep.data[at] = 0;
  }
  const turn = rope == null ? null : { ...rope, offset: null, positions: positionsFrom(first, Tq) };
  const core = (queries: Tensor<FloatArray>, wide: AttentionOptions) => {
    const Q = turn === null ? queries : ropeCore(queries, turn).output; // (B, Hq, Tq, D)
    const steps = sdpaCore<FloatArray>(Q, k, v, { ...wide, mask: { keep } });
    return { steps, given: track == null ? null : weightsGiven(steps.weights, Hkv) }; // (B, Hkv, L), not rounded
  };
  const { steps, given } = inFloat32(core, q, options);
  if (given !== null) track!(given); // now that nothing can fail any more
  return steps as SdpaSteps<A>;
}

/** Row b at first[b], first[b] + 1, ...: (B, T). */
function positionsFrom(first: readonly number[], T: number): IntTensor {
  const all = first.flatMap((start) => Array.from({ length: T }, (_, t) => BigInt(start + t)));
  return { data: BigInt64Array.from(all), shape: [first.length, T] };
}

/** `n`, n + 1, ... of `count`. */
export function range(n: number, count: number): number[] {
  return Array.from({ length: count }, (_, t) => n + t);
}
