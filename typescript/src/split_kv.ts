/**
 * Attention with the keys in parts, each on its own, merged at the end: what decoding does when there is one
 * query and many keys, since the parts can run at the same time.
 *
 *     output, lse = merge(... merge(part_0, part_1) ..., part_n-1)
 *
 * Source: Dao et al., "Flash-Decoding for long-context inference", 2023.
 */

import { inFloat32 } from "./cast.ts";
import { requireInteger } from "./checks.ts";
import { checkSdpa } from "./checks_attention.ts";
import { flashCore } from "./flash.ts";
import { type Attended, mergeCore } from "./merge.ts";
import type { SdpaOptions } from "./sdpa.ts";
import { type FloatArray, sizes4, type Tensor, zerosLike, zerosWide } from "./tensor.ts";

export interface SplitOptions<A extends FloatArray = FloatArray> extends SdpaOptions<A> {
  /** How many consecutive parts of the keys. Absent: 4. */
  readonly splits?: number | null;
}

/**
 * {@link sdpa} of `q` (B, Hq, Tq, D), `k` (B, Hkv, Tk, D) and `v` (B, Hkv, Tk, Dv), with its log-sum-exp.
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function splitKv<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  options: SplitOptions<A> = {},
): Attended<A> {
  checkSdpa("split_kv", q, k, v, options);
  if (options.splits != null) requireInteger("split_kv", "splits", options.splits, 1);
  return inFloat32(splitKvCore<A>, q, k, v, options);
}

function splitKvCore<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  options: SplitOptions<A>,
): Attended<A> {
  const { sinks, splits, ...rest } = options;
  const [, Hq, Tq] = sizes4(q);
  const [, , Tk, Dv] = sizes4(v);
  const n = Math.min(splits ?? 4, Math.max(Tk, 1)); // more parts than keys are empty ones
  const rows = [...q.shape.slice(0, 3)]; // (B, Hq, Tq)
  let merged: Attended<A> = { output: zerosLike(q, [...rows, Dv]), lse: zerosWide(q, rows) };
  merged.lse.data.fill(-Infinity); // a state that has seen nothing

  for (let part = 0; part < n; part++) {
    // 1. split: consecutive keys; a part may be empty
    const keys = [Math.floor((part * Tk) / n), Math.floor(((part + 1) * Tk) / n)] as const;

    // 2. attend: to these keys alone, without the sink, which would count once in every part
    const attended = flashCore(q, k, v, rest, keys); // output (B, Hq, Tq, Dv)

    // 3. merge: with what came before
    merged = mergeCore(merged.output, merged.lse, attended.output, attended.lse); // output (B, Hq, Tq, Dv)
  }

  // 4. sink: once, as a state with output 0; a row without a visible key stays 0 whatever its sink is
  if (sinks == null) return merged;
  const sink = { output: zerosLike(q, merged.output.shape), lse: zerosWide(q, rows) };
  for (let row = 0; row < sink.lse.data.length; row++) {
    sink.lse.data[row] = sinks.data[Math.floor(row / Tq) % Hq]!; // (B, Hq, Tq)
  }
  const { output, lse } = mergeCore(merged.output, merged.lse, sink.output, sink.lse);
  for (let row = 0; row < lse.data.length; row++) {
    if (merged.lse.data[row] === -Infinity) output.data.fill(0, row * Dv, (row + 1) * Dv); // (Dv,)
  }
  return { output, lse };
}
