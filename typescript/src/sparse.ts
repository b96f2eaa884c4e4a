/**
 * Attention along a sparse pattern: only the pairs that see each other are ever scored.
 *
 *     output_i = Σ_j in keys(i) softmax_j(scale · q_i · k_j) v_j
 *
 * The result is that of sdpa with the pattern as its mask; the work is that of the visible pairs. A row
 * without visible keys is 0, with lse -inf.
 *
 * Letters: B batch, Hq query heads, Hkv key/value heads, Tq and Tk lengths, D and Dv head sizes.
 *
 * Source: Child et al., "Generating Long Sequences with Sparse Transformers", 2019, section 4.
 */

import { inFloat32 } from "./cast.ts";
import { checkSparse, checkSparseMask } from "./checks_sparse.ts";
import { kvHeadOf } from "./heads.ts";
import { softmaxRow } from "./softmax.ts";
import { type SparsePattern, visibilityOf } from "./sparse_patterns.ts";
import {
  allocated,
  type BoolTensor,
  type FloatArray,
  type IntTensor,
  sizes4,
  type Tensor,
  type WideArray,
  zerosLike,
  zerosWide,
} from "./tensor.ts";
import { addScaled, dot } from "./vectors.ts";

export interface SparseOptions {
  /** Absent: 1/sqrt(D). */
  readonly scale?: number | null;
  /** Key j is visible to query i only if j <= i, beside what the pattern says. Absent: false. */
  readonly causal?: boolean | null;
}

export interface SparseSteps<A extends FloatArray = FloatArray> {
  /** (B, Hq, Tq, Dv) */
  readonly output: Tensor<A>;
  /** (B, Hq, Tq); float32 where the inputs are half */
  readonly lse: Tensor<WideArray>;
  /** (Tq,): for how many keys a score was computed, for each query and head */
  readonly visited: IntTensor;
}

/** The pattern as a table (Tq, Tk), 1 = attend. @throws ShapeMismatch, DtypeMismatch, InvalidConfig. */
export function sparseMask(
  pattern: SparsePattern,
  Tq: number,
  Tk: number,
  causal: boolean = false,
): BoolTensor {
  checkSparseMask("sparse_mask", pattern, Tq, Tk, causal);
  const { sees } = visibilityOf(pattern, Tq, Tk);
  const table = allocated(Uint8Array, Tq * Tk); // (Tq, Tk)
  for (let i = 0; i < Tq; i++) {
    for (let j = 0; j < Tk; j++) table[i * Tk + j] = sees(i, j) && (!causal || j <= i) ? 1 : 0;
  }
  return { data: table, shape: [Tq, Tk] };
}

/**
 * Attention of `q` (B, Hq, Tq, D) over `k` (B, Hkv, Tk, D) and `v` (B, Hkv, Tk, Dv): (B, Hq, Tq, Dv).
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function sparse<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  pattern: SparsePattern,
  options: SparseOptions = {},
): Tensor<A> {
  return sparseSteps(q, k, v, pattern, options).output;
}

/** {@link sparse} with its log-sum-exp and the count of scores; same arguments and errors. */
export function sparseSteps<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  pattern: SparsePattern,
  options: SparseOptions = {},
): SparseSteps<A> {
  checkSparse("sparse", q, k, v, pattern, options);
  return inFloat32(sparseCore<A>, q, k, v, pattern, options);
}

function sparseCore<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  pattern: SparsePattern,
  options: SparseOptions,
): SparseSteps<A> {
  const [B, Hq, Tq, D] = sizes4(q);
  const [, Hkv, Tk, Dv] = sizes4(v);
  const scale = options.scale ?? 1 / Math.sqrt(D);
  const { keys } = visibilityOf(pattern, Tq, Tk);
  const output = zerosLike(q, [B, Hq, Tq, Dv]);
  const lse = zerosWide(q, [B, Hq, Tq]);
  const visited = new BigInt64Array(Tq); // (Tq,)
  for (let i = 0; i < Tq; i++) {
    // 1. keys: those of this query, the same for all heads; n of them
    const seen = options.causal ? keys(i).filter((j) => j <= i) : keys(i); // (n,)
    visited[i] = BigInt(seen.length); // (Tq,)
    for (let head = 0; head < B * Hq; head++) {
      const row = head * Tq + i;
      const kvRow = kvHeadOf(head, Hq, Hkv) * Tk; // where its keys begin in (B, Hkv, Tk)

      // 2. scores: for these keys and no others
      const query = Float64Array.from(q.data.subarray(row * D, (row + 1) * D), (x) => scale * x); // (D,)
      const scores = zerosLike(q, [seen.length]).data; // (n,)
      seen.forEach((j, n) => {
        scores[n] = dot(query, 0, k.data, (kvRow + j) * D, D);
      });

      // 3. softmax: the others weigh nothing
      const weights = zerosLike(q, [seen.length]).data; // (n,)
      lse.data[row] = softmaxRow(scores, weights);

      // 4. weighted sum: of their values
      const sums = new Float64Array(Dv); // (Dv,)
      seen.forEach((j, n) => {
        if (scores[n] !== -Infinity) addScaled(sums, weights[n]!, v.data, (kvRow + j) * Dv); // (Dv,)
      });
      output.data.set(sums, row * Dv);
    }
  }
  return { output, lse, visited: { data: visited, shape: [Tq] } };
}
