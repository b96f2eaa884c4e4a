/**
 * One call as plain data, which a worker can be sent.
 *
 * Letters: B batch, Hq and Hkv heads, G = Hq / Hkv, Tq and Tk lengths, D and Dv head sizes. The query heads of a
 * group follow each other, so that for each KV head its rows, R = G · Tq of them, are one matrix (R, D).
 */

import { Unsupported } from "../errors.ts";
import { type Positions, positionsOf } from "../intervals.ts";
import type { SdpaOptions } from "../sdpa.ts";
import { allocated, dtypeOf, SHORT_NAMES, sizes4, type Tensor } from "../tensor.ts";

/** Values that broadcast to (B, Hq, Tq, Tk). */
export interface Spread<A> {
  readonly data: A;
  readonly shape: readonly number[];
}

export interface Problem {
  readonly q: Float32Array; // (B, Hq, Tq, D)
  readonly k: Float32Array; // (B, Hkv, Tk, D)
  readonly v: Float32Array; // (B, Hkv, Tk, Dv)
  readonly output: Float32Array; // (B, Hq, Tq, Dv)
  readonly lse: Float32Array; // (B, Hq, Tq)
  readonly sizes: {
    readonly B: number;
    readonly Hq: number;
    readonly Hkv: number;
    readonly Tq: number;
    readonly Tk: number;
    readonly D: number;
    readonly Dv: number;
  };
  readonly scale: number;
  /** 0 = none. */
  readonly softcap: number;
  readonly positions: Positions;
  readonly keep: Spread<Uint8Array> | null;
  readonly bias: Spread<Float32Array> | null;
  readonly sinks: Float32Array | null; // (Hq,)
}

/** Of arguments that have been checked. @throws Unsupported for dropout, and for types but float32. */
export function problemOf(
  q: Tensor<Float32Array>,
  k: Tensor<Float32Array>,
  v: Tensor<Float32Array>,
  options: SdpaOptions<Float32Array>,
): Problem {
  const dtype = dtypeOf(q);
  if (dtype !== "float32") {
    throw new Unsupported(`dtype.${Object.keys(SHORT_NAMES).find((name) => SHORT_NAMES[name] === dtype)}`);
  }
  if (options.dropout != null) throw new Unsupported("dropout");
  const [B, Hq, Tq, D] = sizes4(q);
  const [, Hkv, Tk, Dv] = sizes4(v);
  const keep = options.mask?.keep;
  const { bias, sinks } = options;
  return {
    q: q.data,
    k: k.data,
    v: v.data,
    output: allocated(Float32Array, B * Hq * Tq * Dv),
    lse: allocated(Float32Array, B * Hq * Tq),
    sizes: { B, Hq, Hkv, Tq, Tk, D, Dv },
    scale: options.scale ?? 1 / Math.sqrt(D),
    softcap: options.softcap ?? 0,
    positions: positionsOf(options.mask ?? {}, B, Tk),
    keep: keep == null ? null : { data: keep.data, shape: keep.shape },
    bias: bias == null ? null : { data: bias.data, shape: bias.shape },
    sinks: sinks?.data ?? null,
  };
}

/** Rows of each KV head: R. */
export function rowsOf({ sizes }: Problem): number {
  return sizes.Hkv === 0 ? 0 : (sizes.Hq / sizes.Hkv) * sizes.Tq;
}
