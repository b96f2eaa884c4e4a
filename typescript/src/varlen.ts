/**
 * Attention over sequences of different lengths, one after the other in one array: no padding.
 *
 *     rows cu[s] .. cu[s+1] - 1 are sequence s, and each sequence is an sdpa of its own
 *
 * Letters: S sequences, Nq and Nk rows of all of them together, Hq and Hkv heads, D and Dv head sizes.
 *
 * Source: the interface of Dao, "FlashAttention-2", 2023 (cu_seqlens); Krell et al., "Efficient Sequence
 * Packing without Cross-contamination", 2021.
 */

import { inFloat32 } from "./cast.ts";
import { checkVarlen } from "./checks_attention.ts";
import { mergeHeads, splitHeads } from "./heads.ts";
import type { Mask } from "./masks.ts";
import type { Attended } from "./merge.ts";
import { sdpaCore } from "./sdpa.ts";
import { type FloatArray, type Lengths, type Tensor, toNumbers, zerosLike, zerosWide } from "./tensor.ts";

export interface VarlenOptions extends Pick<Mask, "causal" | "window"> {
  /** The position of each sequence's query 0: one for all, or (S,). Absent: 0. */
  readonly qOffset?: number | Lengths | null;
  /** Absent: 1/sqrt(D). */
  readonly scale?: number | null;
  readonly softcap?: number | null;
}

/**
 * Attention of `q` (Nq, Hq, D) over `k` (Nk, Hkv, D) and `v` (Nk, Hkv, Dv), each sequence within itself:
 * output (Nq, Hq, Dv), lse (Nq, Hq).
 *
 * @param cuSeqlensQ (S + 1,): where each sequence of queries begins, and where the last one ends.
 * @param cuSeqlensK (S + 1,): the same of keys and values.
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function varlen<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  cuSeqlensQ: Lengths,
  cuSeqlensK: Lengths,
  options: VarlenOptions = {},
): Attended<A> {
  checkVarlen("varlen", q, k, v, cuSeqlensQ, cuSeqlensK, options);
  return inFloat32(varlenCore<A>, q, k, v, cuSeqlensQ, cuSeqlensK, options);
}

function varlenCore<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  cuSeqlensQ: Lengths,
  cuSeqlensK: Lengths,
  options: VarlenOptions,
): Attended<A> {
  const { causal, window, qOffset, scale, softcap } = options;
  const [startsQ, startsK] = [toNumbers(cuSeqlensQ), toNumbers(cuSeqlensK)]; // (S + 1,)
  const offsets = typeof qOffset === "object" && qOffset !== null ? toNumbers(qOffset) : null; // (S,)
  const [Nq, Hq, Dv] = [q.shape[0]!, q.shape[1]!, v.shape[2]!];
  const output = zerosLike(q, [Nq, Hq, Dv]);
  const lse = zerosWide(q, [Nq, Hq]);
  for (let s = 0; s < startsQ.length - 1; s++) {
    // 1. slice: the rows of this sequence, heads before positions
    const [Q, K, V] = [
      sequence(q, startsQ[s]!, startsQ[s + 1]!), // (1, Hq, Tq, D)
      sequence(k, startsK[s]!, startsK[s + 1]!), // (1, Hkv, Tk, D)
      sequence(v, startsK[s]!, startsK[s + 1]!), // (1, Hkv, Tk, Dv)
    ];

    // 2. attend: positions count from the beginning of the sequence
    const mask = { causal, window, qOffset: offsets === null ? (qOffset as number | null) : offsets[s]! };
    const attended = sdpaCore(Q, K, V, { mask, scale, softcap }); // output (1, Hq, Tq, Dv)

    // 3. place: where the queries came from
    output.data.set(mergeHeads(attended.output).data, startsQ[s]! * Hq * Dv); // (Tq, Hq·Dv)
    const rows = { data: attended.lse.data, shape: [...attended.lse.shape, 1] }; // (1, Hq, Tq, 1)
    lse.data.set(mergeHeads(rows).data, startsQ[s]! * Hq); // (Tq, Hq)
  }
  return { output, lse };
}

/** Rows `from` to `to` of `x` (N, H, n) as (1, H, to - from, n). */
function sequence<A extends FloatArray>(x: Tensor<A>, from: number, to: number): Tensor<A> {
  const [, H, n] = x.shape as [number, number, number];
  const data = x.data.subarray(from * H * n, to * H * n) as A;
  return splitHeads({ data, shape: [1, to - from, H * n] }, H);
}
