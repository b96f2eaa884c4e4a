/**
 * Latent attention without expanding keys and values: every head attends to the latent itself.
 *
 *     q_n · (W_uk,h c) = (W_uk,hᵀ q_n) · c,   Σ w_j W_uv,h c_j = W_uv,h Σ w_j c_j
 *
 * The up-projections move to the queries and to the result, so that a cache of latents is read as it is: one
 * KV head of size R + Dr for all query heads. The same result as {@link mla}, in another order of sums.
 *
 * Letters: B batch, T length, H heads, R size of the latent, Dn and Dr parts of a head without and with a
 * position, Dv head size of the values, Cout width of the output.
 *
 * Source: DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1.2 and appendix C.
 */

import { inFloat32 } from "./cast.ts";
import { checkMla } from "./checks_mha.ts";
import { besideHeads, linear, mergeHeads, splitHeads } from "./heads.ts";
import {
  latentOf,
  latentQueries,
  type MlaOptions,
  type MlaSteps,
  type MultiHeadLatentAttention,
  rotated,
} from "./mla.ts";
import { sdpaCore } from "./sdpa.ts";
import { type FloatArray, sizes4, type Tensor, zerosLike } from "./tensor.ts";
import { transposed } from "./vectors.ts";

/** Arguments, result and errors of {@link mlaSteps}. */
export function mlaAbsorbed<A extends FloatArray>(
  x: Tensor<A>,
  layer: MultiHeadLatentAttention<A>,
  options: MlaOptions = {},
): MlaSteps<A> {
  checkMla("mla_absorbed", x, layer, options);
  return inFloat32(mlaAbsorbedCore<A>, x, layer, options);
}

function mlaAbsorbedCore<A extends FloatArray>(
  x: Tensor<A>,
  layer: MultiHeadLatentAttention<A>,
  { causal, kvLengths, scale }: MlaOptions,
): MlaSteps<A> {
  // 1. queries: from x or from a latent of their own; the first Dn channels of a head have no position
  const { content, position } = latentQueries(x, layer); // (B, H, T, Dn), (B, H, T, Dr)

  // 2. latent: the keys and the values at once
  const latent = latentOf(x, layer); // (B, T, R)
  const V = splitHeads(latent, 1); // (B, 1, T, R)

  // 3. rotate: only the part that is there for it
  const ropeKey = rotated(splitHeads(linear(x, layer.wKr), 1), layer); // (B, 1, T, Dr)
  const K = besideHeads(V, ropeKey); // (B, 1, T, R + Dr)

  // 4. absorb: the projection of the keys goes onto the queries
  const absorbed = headwise(content, (h) => transposed(rowsOf(layer.wUk, h, layer))); // (B, H, T, R)
  const Q = besideHeads(absorbed, rotated(position, layer)); // (B, H, T, R + Dr)

  // 5. attention: all heads over the one latent; the scale is that of the heads, not of the latent
  const D = layer.wQ.shape[0]! / layer.numHeads; // Dn + Dr
  const mask = { causal, kvLengths };
  const heads = sdpaCore(Q, K, V, { mask, scale: scale ?? 1 / Math.sqrt(D) }); // output (B, H, T, R)

  // 6. lift: the mean latent of each head to its values
  const lifted = headwise(heads.output, (h) => rowsOf(layer.wUv, h, layer)); // (B, H, T, Dv)

  // 7. output projection: mixes the heads
  const output = linear(mergeHeads(lifted), layer.wO); // (B, T, Cout)
  return { output, weights: heads.weights, lse: heads.lse, latent, ropeKey: mergeHeads(ropeKey) };
}

/** The rows (n, R) of head `h` in weights (H·n, R). */
function rowsOf<A extends FloatArray>(
  w: Tensor<A>,
  h: number,
  { numHeads }: MultiHeadLatentAttention<A>,
): Tensor<A> {
  const [n, R] = [w.shape[0]! / numHeads, w.shape[1]!];
  return { data: w.data.subarray(h * n * R, (h + 1) * n * R) as A, shape: [n, R] };
}

/** `x` (B, H, T, in) with weights (out, in) of its own for every head: (B, H, T, out). */
function headwise<A extends FloatArray>(x: Tensor<A>, weightOf: (h: number) => Tensor<A>): Tensor<A> {
  const [B, H, T, width] = sizes4(x);
  const weights = Array.from({ length: H }, (_, h) => weightOf(h)); // (H,) of (out, in)
  const y = zerosLike(x, [B, H, T, weights[0]!.shape[0]!]);
  for (let head = 0; head < B * H; head++) {
    const rows = { data: x.data.subarray(head * T * width, (head + 1) * T * width) as A, shape: [T, width] };
    const turned = linear(rows, weights[head % H]!); // (T, out)
    y.data.set(turned.data, head * turned.data.length);
  }
  return y;
}
