/**
 * {@link linearAttention} as a recurrence: a state of fixed size takes one key after the other.
 *
 *     S_i = S_i-1 + f(k_i) v_iᵀ,   z_i = z_i-1 + f(k_i),   output_i = f(q_i)ᵀ S_i / f(q_i)ᵀ z_i
 *
 * The work of a token does not grow with those before it. Without causality all keys are written first.
 *
 * Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv, Tq and Tk lengths, D and Dv head
 * sizes.
 *
 * Source: Katharopoulos et al., "Transformers are RNNs", 2020, section 3.4.
 */

import { inFloat32 } from "./cast.ts";
import { checkLinearAttention } from "./checks_linear.ts";
import type { LinearAttentionOptions, LinearAttentionSteps } from "./linear_attention.ts";
import { divided, featureMap, RunningState } from "./linear_state.ts";
import { type FloatArray, sizes4, type Tensor, zerosLike } from "./tensor.ts";

/** Arguments, result and errors of {@link linearAttention}. */
export function linearRecurrent<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  options: LinearAttentionOptions<A> = {},
): LinearAttentionSteps<A> {
  checkLinearAttention("linear_recurrent", q, k, v, options);
  return inFloat32(linearRecurrentCore<A>, q, k, v, options);
}

function linearRecurrentCore<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  { causal, past }: LinearAttentionOptions<A>,
): LinearAttentionSteps<A> {
  const [B, Hq, Tq, D] = sizes4(q);
  const [, Hkv, Tk, Dv] = sizes4(v);
  const G = Hq / Hkv;
  const output = zerosLike(q, [B, Hq, Tq, Dv]);
  const state = zerosLike(q, [B, Hkv, D, Dv]);
  const norm = zerosLike(q, [B, Hkv, D]);

  // 1. feature map: of each row on its own
  const [Q, K] = [featureMap(q), featureMap(k)]; // (B, Hq, Tq, D), (B, Hkv, Tk, D)

  for (let head = 0; head < B * Hkv; head++) {
    const running = new RunningState(past, head, D, Dv);
    let written = 0;
    const writeUntil = (end: number) => {
      // 2. write: one key and value after the other
      for (; written < end; written++) running.write(K.data, v.data, head * Tk + written); // (D, Dv)
    };
    for (let i = 0; i < Tq; i++) {
      writeUntil(causal ? i + 1 : Tk); // without causality no query may miss a key
      for (let g = 0; g < G; g++) {
        // 3. read: by each query head of the group
        const row = (head * G + g) * Tq + i;
        const sums = new Float64Array(Dv); // (Dv,)
        const total = running.read(Q.data, row, sums);

        // 4. normalise: by selection; where nothing was seen it is 0
        output.data.set(divided(sums, total), row * Dv); // (Dv,)
      }
    }
    writeUntil(Tk); // also those that no query asked for
    state.data.set(running.S, head * D * Dv);
    norm.data.set(running.z, head * D);
  }
  return { output, state, norm };
}
