/**
 * Linear attention with a memory that forgets, corrects itself, or both.
 *
 *     S ← diag(e^decay) S,   u = v or beta (v - Sᵀ k),   S ← S + k uᵀ,   output = (scale · q)ᵀ S
 *
 *     linear       neither        gated        the decay
 *     delta        the u          gated_delta  both, in this order
 *
 * Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv, T length, D and Dv head sizes.
 *
 * Sources: Yang et al., "Gated Linear Attention Transformers with Hardware-Efficient Training", 2023; Schlag
 * et al., "Linear Transformers Are Secretly Fast Weight Programmers", 2021 (delta); Yang et al., "Gated Delta
 * Networks", 2024.
 */

import { inFloat32 } from "./cast.ts";
import { checkGatedLinear } from "./checks_linear.ts";
import { type FloatArray, sizes4, type Tensor, zerosLike } from "./tensor.ts";
import { addScaled } from "./vectors.ts";

export type GatedRule = "linear" | "gated" | "delta" | "gated_delta";

export interface GatedLinearOptions<A extends FloatArray = FloatArray> {
  /** Absent: "linear". */
  readonly rule?: GatedRule | null;
  /** (B, Hkv, D, Dv): of keys before these. Absent: zeros. */
  readonly past?: Tensor<A> | null;
  /** (B, Hkv, T, D) or (B, Hkv, T, 1), logarithms; of the gated rules, and theirs alone. */
  readonly decay?: Tensor<A> | null;
  /** (B, Hkv, T, 1) or (B, 1, T, 1); of the delta rules, and theirs alone. */
  readonly beta?: Tensor<A> | null;
  /** Absent: 1/sqrt(D). */
  readonly scale?: number | null;
}

export interface GatedLinearSteps<A extends FloatArray = FloatArray> {
  /** (B, Hq, T, Dv) */
  readonly output: Tensor<A>;
  /** (B, Hkv, D, Dv), after the last token */
  readonly state: Tensor<A>;
}

/**
 * `q` (B, Hq, T, D) reads what `k` (B, Hkv, T, D) and `v` (B, Hkv, T, Dv) have written up to its own token.
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function gatedLinear<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  options: GatedLinearOptions<A> = {},
): GatedLinearSteps<A> {
  checkGatedLinear("gated_linear", q, k, v, options);
  return inFloat32(gatedLinearCore<A>, q, k, v, options);
}

function gatedLinearCore<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  { past, decay, beta, scale }: GatedLinearOptions<A>,
): GatedLinearSteps<A> {
  const [B, Hq, T, D] = sizes4(q);
  const [, Hkv, , Dv] = sizes4(v);
  const G = Hq / Hkv;
  const factor = scale ?? 1 / Math.sqrt(D);
  const output = zerosLike(q, [B, Hq, T, Dv]);
  const state = zerosLike(q, [B, Hkv, D, Dv]);
  for (let head = 0; head < B * Hkv; head++) {
    const S = new Float64Array(D * Dv); // (D, Dv), of this head
    if (past != null) S.set(past.data.subarray(head * D * Dv, (head + 1) * D * Dv));
    for (let t = 0; t < T; t++) {
      const row = head * T + t;
      const value = Float64Array.from(v.data.subarray(row * Dv, (row + 1) * Dv)); // (Dv,)

      // 1. decay: each channel of the keys forgets at its own rate, or all at one
      for (let at = 0; decay != null && at < D * Dv; at++) {
        const n = decay.shape[3]!;
        S[at]! *= Math.exp(decay.data[row * n + (n === 1 ? 0 : Math.floor(at / Dv))]!); // (D, Dv)
      }

      // 2. correct: only what the state does not say yet, as strongly as beta wants
      if (beta != null) {
        const strength = beta.data[(beta.shape[1] === 1 ? Math.floor(head / Hkv) : head) * T + t]!;
        for (let c = 0; c < D; c++) addScaled(value, -k.data[row * D + c]!, S, c * Dv); // (Dv,)
        for (let n = 0; n < Dv; n++) value[n]! *= strength; // (Dv,)
      }

      // 3. write: the value under its key
      for (let at = 0; at < D * Dv; at++) {
        S[at]! += k.data[row * D + Math.floor(at / Dv)]! * value[at % Dv]!; // (D, Dv)
      }

      // 4. read: by each query head of the group, its own token included
      for (let g = 0; g < G; g++) {
        const query = (head * G + g) * T + t;
        const sums = new Float64Array(Dv); // (Dv,)
        for (let c = 0; c < D; c++) addScaled(sums, factor * q.data[query * D + c]!, S, c * Dv); // (Dv,)
        output.data.set(sums, query * Dv);
      }
    }
    state.data.set(S, head * D * Dv);
  }
  return { output, state };
}
