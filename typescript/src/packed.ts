/** Projections of queries, keys and values that are stored as one matrix. */

import type { MhaSettings, MhaWeights } from "./mha.ts";
import { type FloatArray, type Tensor, zerosLike } from "./tensor.ts";

/**
 * How the rows are ordered: "blocks" has all of the queries, then the keys, then the values; "heads" has for
 * each KV head its G query heads, its key and its value.
 */
export type Packing = "blocks" | "heads";

/** A layer of self-attention with Dv = D. */
export interface PackedWeights<A extends FloatArray = FloatArray> extends MhaSettings<A> {
  /** ((Hq + 2·Hkv)·D, C) */
  readonly wQkv: Tensor<A>;
  /** ((Hq + 2·Hkv)·D,) */
  readonly bQkv?: Tensor<A> | null;
  /** Absent: "blocks". */
  readonly packing?: Packing | null;
}

/** The same layer with a matrix each. Checks nothing. */
export function unpacked<A extends FloatArray>(weights: PackedWeights<A>): MhaWeights<A> {
  const { wQkv, bQkv, packing, ...settings } = weights;
  const Hq = weights.numHeads;
  const Hkv = weights.numKvHeads ?? Hq;
  const G = Hq / Hkv;
  const heads = (count: number, placeOf: (n: number) => number) =>
    Array.from({ length: count }, (_, n) => placeOf(n));
  const places =
    packing === "heads"
      ? {
          q: heads(Hq, (h) => Math.floor(h / G) * (G + 2) + (h % G)), // (Hq,)
          k: heads(Hkv, (h) => h * (G + 2) + G), // (Hkv,)
          v: heads(Hkv, (h) => h * (G + 2) + G + 1), // (Hkv,)
        }
      : { q: heads(Hq, (h) => h), k: heads(Hkv, (h) => Hq + h), v: heads(Hkv, (h) => Hq + Hkv + h) };
  const D = wQkv.shape[0]! / (Hq + 2 * Hkv);
  return {
    ...settings,
    wQ: blocksAt(wQkv, places.q, D), // (Hq·D, C)
    wK: blocksAt(wQkv, places.k, D), // (Hkv·D, C)
    wV: blocksAt(wQkv, places.v, D), // (Hkv·D, C)
    bQ: bQkv == null ? null : blocksAt(bQkv, places.q, D), // (Hq·D,)
    bK: bQkv == null ? null : blocksAt(bQkv, places.k, D), // (Hkv·D,)
    bV: bQkv == null ? null : blocksAt(bQkv, places.v, D), // (Hkv·D,)
  };
}

/** The blocks of `D` rows at these places of `x` (rows, ...), one after the other. */
function blocksAt<A extends FloatArray>(x: Tensor<A>, places: number[], D: number): Tensor<A> {
  const [rows, ...rest] = x.shape as [number, ...number[]];
  const size = (x.data.length / rows) * D;
  const blocks = zerosLike(x, [places.length * D, ...rest]);
  places.forEach((place, n) => {
    blocks.data.set(x.data.subarray(place * size, (place + 1) * size), n * size); // (D, ...)
  });
  return blocks;
}
