/**
 * Attention in tiles, with an online softmax: the same result as {@link sdpa} and no (Tq, Tk) table.
 *
 * Each row keeps the largest score m that it has met, the sum l of e^(s - m), and the sum of e^(s - m) · v. A
 * tile that raises m shrinks both sums by e^(m_old - m_new); at the end the one is divided by the other.
 *
 * Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv, Tq and Tk lengths, D and Dv head
 * sizes.
 *
 * Sources: Rabe and Staats, "Self-attention Does Not Need O(n²) Memory", 2021; Dao et al., "FlashAttention",
 * 2022, algorithm 1 (the loop over queries outside, as in FlashAttention-2, 2023).
 */

import { inFloat32 } from "./cast.ts";
import { requireInteger } from "./checks.ts";
import { checkSdpa } from "./checks_attention.ts";
import { dropRow } from "./dropout.ts";
import { kvHeadOf } from "./heads.ts";
import { visibility } from "./masks.ts";
import type { Attended } from "./merge.ts";
import type { SdpaOptions } from "./sdpa.ts";
import {
  broadcastIndex,
  dtypeOf,
  type FloatArray,
  sizes4,
  type Tensor,
  zerosLike,
  zerosWide,
} from "./tensor.ts";
import { dot } from "./vectors.ts";

export interface FlashOptions<A extends FloatArray = FloatArray> extends SdpaOptions<A> {
  /** Queries in a tile. Absent: 64. */
  readonly blockQ?: number | null;
  /** Keys in a tile. Absent: 64. */
  readonly blockK?: number | null;
}

/**
 * {@link sdpa} of `q` (B, Hq, Tq, D), `k` (B, Hkv, Tk, D) and `v` (B, Hkv, Tk, Dv), with its log-sum-exp.
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function flash<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  options: FlashOptions<A> = {},
): Attended<A> {
  checkSdpa("flash", q, k, v, options);
  if (options.blockQ != null) requireInteger("flash", "blockQ", options.blockQ, 1);
  if (options.blockK != null) requireInteger("flash", "blockK", options.blockK, 1);
  return inFloat32(flashCore<A>, q, k, v, options);
}

/**
 * What {@link flash} does behind the edge.
 *
 * @param keys [from, to]: only these are attended to. Absent: all.
 */
export function flashCore<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  options: FlashOptions<A>,
  keys?: readonly [number, number],
): Attended<A> {
  const { mask, bias, softcap, sinks, dropout } = options;
  const [B, Hq, Tq, D] = sizes4(q);
  const [, Hkv, Tk, Dv] = sizes4(v);
  const [begin, end] = keys ?? [0, Tk];
  const [blockQ, blockK] = [options.blockQ ?? 64, options.blockK ?? 64];
  const scale = options.scale ?? 1 / Math.sqrt(D);
  const double = dtypeOf(q) === "float64";
  const sees = visibility(mask ?? {});
  const biasAt = broadcastIndex(bias?.shape ?? []);
  const output = zerosLike(q, [B, Hq, Tq, Dv]);
  const lse = zerosWide(q, [B, Hq, Tq]);

  for (let head = 0; head < B * Hq; head++) {
    const [b, h] = [Math.floor(head / Hq), head % Hq];
    const kvHead = kvHeadOf(head, Hq, Hkv);
    for (let firstQ = 0; firstQ < Tq; firstQ += blockQ) {
      // 1. query tile: scaled once; every row begins with its sink or with nothing
      const rows = Math.min(blockQ, Tq - firstQ);
      const from = (head * Tq + firstQ) * D;
      const Q = Float64Array.from(q.data.subarray(from, from + rows * D), (x) => scale * x); // (rows, D)
      const m = new Float64Array(rows).fill(sinks?.data[h] ?? -Infinity); // (rows,)
      const l = m.map((sink) => (sink === -Infinity ? 0 : Math.exp(sink - sink))); // (rows,)
      const seen = new Uint8Array(rows); // (rows,), whether a key was
      const sums = new Float64Array(rows * Dv); // (rows, Dv)

      for (let firstK = begin; firstK < end; firstK += blockK) {
        // 2. key tile: with its values, read once for all rows of the query tile
        const columns = Math.min(blockK, end - firstK);
        const at = kvHead * Tk + firstK;
        const K = k.data.subarray(at * D, (at + columns) * D); // (columns, D)
        const V = v.data.subarray(at * Dv, (at + columns) * Dv); // (columns, Dv)

        for (let r = 0; r < rows; r++) {
          const i = firstQ + r;

          // 3. scores: capped, biased and masked as in sdpa; -inf is hidden
          const scores = new Float64Array(columns).fill(-Infinity); // (columns,)
          for (let n = 0; n < columns; n++) {
            const added = bias == null ? 0 : bias.data[biasAt(b, h, i, firstK + n)]!;
            if (!sees(b, h, i, firstK + n) || added === -Infinity) continue;
            const score = dot(Q, r * D, K, n * D, D);
            scores[n] = (softcap == null ? score : softcap * Math.tanh(score / softcap)) + added;
          }

          // 4. maximum: of all that the row has met so far; with nothing met, the shift is 0
          const before = m[r]!;
          m[r] = scores.reduce((most, score) => Math.max(most, score), before);
          const shift = m[r] === -Infinity ? 0 : m[r]!;

          // 5. rescale: both sums were relative to the old maximum
          const shrink = Math.exp(before - shift);
          l[r]! *= shrink;
          for (let c = r * Dv; c < (r + 1) * Dv; c++) sums[c]! *= shrink; // (Dv,)

          // 6. accumulate: the sum of all weights, and the values of those that dropout keeps
          const weights = scores.map((score) => Math.exp(score - shift)); // (columns,)
          for (let n = 0; n < columns; n++) l[r]! += weights[n]!;
          if (dropout != null) dropRow(weights, weights, dropout, (head * Tq + i) * Tk + firstK, double);
          for (let n = 0; n < columns; n++) {
            if (scores[n] === -Infinity) continue; // 0 · NaN would be NaN
            seen[r] = 1;
            for (let c = 0; c < Dv; c++) sums[r * Dv + c]! += weights[n]! * V[n * Dv + c]!; // (Dv,)
          }
        }
      }

      // 7. finish: one division; a row without a visible key stays 0
      for (let r = 0; r < rows; r++) {
        const place = head * Tq + firstQ + r;
        const total = l[r]!;
        const row = sums.subarray(r * Dv, (r + 1) * Dv).map((sum) => (seen[r] ? sum / total : 0)); // (Dv,)
        output.data.set(row, place * Dv);
        lse.data[place] = m[r]! + Math.log(total);
      }
    }
  }
  return { output, lse };
}
