/** What the three ways to linear attention share: the feature map and the running sums. Checks nothing. */

import type { LinearState } from "./linear_attention.ts";
import { type FloatArray, type Tensor, zerosLike } from "./tensor.ts";
import { addScaled } from "./vectors.ts";

/** elu(x) + 1, element by element. */
export function featureMap<A extends FloatArray>(x: Tensor<A>): Tensor<A> {
  const features = zerosLike(x, x.shape);
  for (let n = 0; n < x.data.length; n++) {
    const value = x.data[n]!;
    features.data[n] = value > 0 ? value + 1 : Math.exp(value);
  }
  return features;
}

/** sums / total (Dv,), and 0 where the total is 0. */
export function divided(sums: Float64Array, total: number): Float64Array {
  return sums.map((sum) => (total === 0 ? 0 : sum / total));
}

/** S = Σ f(k) vᵀ (D, Dv) and z = Σ f(k) (D,) of one KV head, in doubles. */
export class RunningState {
  readonly S: Float64Array;
  readonly z: Float64Array;

  /** That of KV head `head` of the past, zeros without one. */
  constructor(past: LinearState | null | undefined, head: number, D: number, Dv: number) {
    this.S = new Float64Array(D * Dv);
    this.z = new Float64Array(D);
    if (past == null) return;
    this.S.set(past.state.data.subarray(head * D * Dv, (head + 1) * D * Dv));
    this.z.set(past.norm.data.subarray(head * D, (head + 1) * D));
  }

  /** Adds the feature of one key, K[j] (D,), with its value, V[j] (Dv,). */
  write(K: FloatArray, V: FloatArray, j: number): void {
    const [D, Dv] = [this.z.length, this.S.length / this.z.length];
    for (let c = 0; c < D; c++) {
      const feature = K[j * D + c]!;
      this.z[c]! += feature;
      for (let n = 0; n < Dv; n++) this.S[c * Dv + n]! += feature * V[j * Dv + n]!; // (D, Dv)
    }
  }

  /** Adds f(q)ᵀ S of the feature Q[i] (D,) to `sums` (Dv,), and gives f(q)ᵀ z. */
  read(Q: FloatArray, i: number, sums: Float64Array): number {
    const [D, Dv] = [this.z.length, sums.length];
    let total = 0;
    for (let c = 0; c < D; c++) {
      total += Q[i * D + c]! * this.z[c]!;
      addScaled(sums, Q[i * D + c]!, this.S.subarray(c * Dv, (c + 1) * Dv), 0); // (Dv,)
    }
    return total;
  }
}
