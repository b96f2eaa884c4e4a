/**
 * {@link linearAttention} by chunks: similarities inside a chunk, the state for all that lies before it.
 *
 *     output_i = (Σ_j in the chunk, j <= i (f(q_i) · f(k_j)) v_j + f(q_i)ᵀ S) / (the same with 1 and z)
 *
 * As much table as the chunk is wide and as few steps as there are chunks: between the parallel and the
 * recurrent form, and equal to both. Without causality all keys are carried into the state first.
 *
 * Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv, Tq and Tk lengths, D and Dv head
 * sizes.
 *
 * Source: Hua et al., "Transformer Quality in Linear Time", 2022, section 3.2 (mixed chunk attention); Yang
 * et al., "Gated Linear Attention Transformers with Hardware-Efficient Training", 2023, section 2.
 */

import { inFloat32 } from "./cast.ts";
import { requireInteger } from "./checks.ts";
import { checkLinearAttention } from "./checks_linear.ts";
import type { LinearAttentionOptions, LinearAttentionSteps } from "./linear_attention.ts";
import { divided, featureMap, RunningState } from "./linear_state.ts";
import { type FloatArray, sizes4, type Tensor, zerosLike } from "./tensor.ts";
import { addScaled, dot } from "./vectors.ts";

export interface LinearChunkedOptions<A extends FloatArray = FloatArray> extends LinearAttentionOptions<A> {
  /** Positions in a chunk. Absent: 64. */
  readonly chunk?: number | null;
}

/** Arguments, result and errors of {@link linearAttention}. */
export function linearChunked<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  options: LinearChunkedOptions<A> = {},
): LinearAttentionSteps<A> {
  checkLinearAttention("linear_chunked", q, k, v, options);
  if (options.chunk != null) requireInteger("linear_chunked", "chunk", options.chunk, 1);
  return inFloat32(linearChunkedCore<A>, q, k, v, options);
}

function linearChunkedCore<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  { causal, past, chunk }: LinearChunkedOptions<A>,
): LinearAttentionSteps<A> {
  const [B, Hq, Tq, D] = sizes4(q);
  const [, Hkv, Tk, Dv] = sizes4(v);
  const G = Hq / Hkv;
  const width = chunk ?? 64;
  const output = zerosLike(q, [B, Hq, Tq, Dv]);
  const state = zerosLike(q, [B, Hkv, D, Dv]);
  const norm = zerosLike(q, [B, Hkv, D]);

  // 1. feature map: of each row on its own
  const [Q, K] = [featureMap(q), featureMap(k)]; // (B, Hq, Tq, D), (B, Hkv, Tk, D)

  for (let head = 0; head < B * Hkv; head++) {
    const running = new RunningState(past, head, D, Dv);
    if (!causal) carry(running, K, v, head * Tk, (head + 1) * Tk);
    for (let first = 0; first < Tq; first += width) {
      // 2. chunk: positions first to last of the queries of the group, and of the keys
      const last = Math.min(first + width, Tq);
      for (let at = 0; at < G * (last - first); at++) {
        const [g, i] = [at % G, first + Math.floor(at / G)];
        const row = (head * G + g) * Tq + i;
        const sums = new Float64Array(Dv); // (Dv,)
        let total = 0;

        // 3. inside: the keys of the chunk up to the query, by their similarities
        for (let j = first; causal && j <= i; j++) {
          const similar = dot(Q.data, row * D, K.data, (head * Tk + j) * D, D);
          total += similar;
          addScaled(sums, similar, v.data, (head * Tk + j) * Dv); // (Dv,)
        }

        // 4. before: everything earlier, by the state
        total += running.read(Q.data, row, sums);

        // 5. normalise: by selection; where nothing was seen it is 0
        output.data.set(divided(sums, total), row * Dv); // (Dv,)
      }
      if (causal) carry(running, K, v, head * Tk + first, head * Tk + last);
    }
    state.data.set(running.S, head * D * Dv);
    norm.data.set(running.z, head * D);
  }
  return { output, state, norm };
}

/** Rows `from` to `to` of K (B·Hkv·Tk, D) and V (B·Hkv·Tk, Dv). */
function carry(running: RunningState, K: Tensor, V: Tensor, from: number, to: number): void {
  // 6. carry: the chunk goes into the state, and is done with
  for (let j = from; j < to; j++) running.write(K.data, V.data, j); // (D, Dv)
}
