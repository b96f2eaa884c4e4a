/**
 * Linear attention: a feature map in the place of the softmax, here as the table of all similarities.
 *
 *     output_i = Σ_j (f(q_i) · f(k_j)) v_j / Σ_j f(q_i) · f(k_j),   f(x) = elu(x) + 1
 *
 * Both sums are products with a state, S = Σ f(k_j) v_jᵀ and z = Σ f(k_j), which can also come from earlier
 * keys; {@link linearRecurrent} and {@link linearChunked} say the same by the state.
 *
 * Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv, Tq and Tk lengths, D and Dv head
 * sizes.
 *
 * Source: Katharopoulos et al., "Transformers are RNNs", 2020, sections 3.2 and 3.3.
 */

import { inFloat32 } from "./cast.ts";
import { checkLinearAttention } from "./checks_linear.ts";
import { kvHeadOf } from "./heads.ts";
import { divided, featureMap, RunningState } from "./linear_state.ts";
import { type FloatArray, sizes4, type Tensor, zerosLike } from "./tensor.ts";
import { addScaled, dot } from "./vectors.ts";

/** All that the keys of the past leave behind. */
export interface LinearState<A extends FloatArray = FloatArray> {
  /** (B, Hkv, D, Dv) */
  readonly state: Tensor<A>;
  /** (B, Hkv, D) */
  readonly norm: Tensor<A>;
}

export interface LinearAttentionOptions<A extends FloatArray = FloatArray> {
  /** Query i sees the keys up to i, and Tq = Tk. Absent: false. */
  readonly causal?: boolean | null;
  /** Of keys before these. Absent: none. */
  readonly past?: LinearState<A> | null;
}

export interface LinearAttentionSteps<A extends FloatArray = FloatArray> extends LinearState<A> {
  /** (B, Hq, Tq, Dv) */
  readonly output: Tensor<A>;
}

/**
 * Linear attention of `q` (B, Hq, Tq, D) over `k` (B, Hkv, Tk, D) and `v` (B, Hkv, Tk, Dv), with the state
 * that has all keys in it. A row whose denominator is 0 is 0.
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function linearAttention<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  options: LinearAttentionOptions<A> = {},
): LinearAttentionSteps<A> {
  checkLinearAttention("linear_attention", q, k, v, options);
  return inFloat32(linearAttentionCore<A>, q, k, v, options);
}

function linearAttentionCore<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  { causal, past }: LinearAttentionOptions<A>,
): LinearAttentionSteps<A> {
  const [B, Hq, Tq, D] = sizes4(q);
  const [, Hkv, Tk, Dv] = sizes4(v);
  const output = zerosLike(q, [B, Hq, Tq, Dv]);
  const state = zerosLike(q, [B, Hkv, D, Dv]);
  const norm = zerosLike(q, [B, Hkv, D]);

  // 1. feature map: positive, so that similarities are
  const [Q, K] = [featureMap(q), featureMap(k)]; // (B, Hq, Tq, D), (B, Hkv, Tk, D)

  const similar = new Float64Array(Tk); // (Tk,), of one query
  for (let head = 0; head < B * Hq; head++) {
    const kvHead = kvHeadOf(head, Hq, Hkv);
    const before = new RunningState(past, kvHead, D, Dv);
    for (let i = 0; i < Tq; i++) {
      const row = head * Tq + i;

      // 2. similarities: of features, without a scale and without an exponential
      for (let j = 0; j < Tk; j++) similar[j] = dot(Q.data, row * D, K.data, (kvHead * Tk + j) * D, D); // (Tk,)

      // 3. mask: by how many keys are looked at; what lies beyond is not read
      const visible = causal ? i + 1 : Tk;

      // 4. weighted sum: of the values, beside what the past left
      const sums = new Float64Array(Dv); // (Dv,)
      let total = before.read(Q.data, row, sums);
      for (let j = 0; j < visible; j++) {
        total += similar[j]!;
        addScaled(sums, similar[j]!, v.data, (kvHead * Tk + j) * Dv); // (Dv,)
      }

      // 5. normalise: by selection; where nothing was seen it is 0
      output.data.set(divided(sums, total), row * Dv); // (Dv,)
    }
  }

  // 6. state: of all keys, also those that no query saw
  for (let head = 0; head < B * Hkv; head++) {
    const running = new RunningState(past, head, D, Dv);
    for (let j = head * Tk; j < (head + 1) * Tk; j++) running.write(K.data, v.data, j); // (D, Dv)
    state.data.set(running.S, head * D * Dv);
    norm.data.set(running.z, head * D);
  }
  return { output, state, norm };
}
