/**
 * Multi-head latent attention: keys and values of all heads come from one small latent vector a token.
 *
 *     c = rms_norm(W_dkv x),   k_r = rope(W_kr x)                    what a cache would hold
 *     q_h = [q_n, rope(q_r)]_h,   k_h = [W_uk,h c, k_r],   v_h = W_uv,h c
 *
 * Here keys and values are expanded; {@link mlaAbsorbed} gives the same without that.
 *
 * Letters: B batch, T length, C model width, H heads, Rq and R sizes of the latents, Dn and Dr parts of a
 * head without and with a position, Dv head size of the values, Cout width of the output.
 *
 * Source: DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1.
 */

import { inFloat32 } from "./cast.ts";
import { checkMla } from "./checks_mha.ts";
import { besideHeads, channels, linear, mergeHeads, splitHeads } from "./heads.ts";
import type { Mask } from "./masks.ts";
import type { MhaSteps } from "./mha.ts";
import { rmsNormCore } from "./rms_norm.ts";
import { type Rope, ropeCore } from "./rope.ts";
import { sdpaCore } from "./sdpa.ts";
import type { FloatArray, Tensor } from "./tensor.ts";

/** The weights of one layer. They are (out, in); heads are consecutive blocks of rows. */
export interface MultiHeadLatentAttention<A extends FloatArray = FloatArray> {
  readonly numHeads: number;
  /** (Rq, C): a latent of the queries too. Absent: wQ reads x. */
  readonly wDq?: Tensor<A> | null;
  /** (Rq,): that latent is RMS-normalised with these weights. Absent: it is not. */
  readonly qNorm?: Tensor<A> | null;
  /** (H·(Dn + Dr), Rq or C) */
  readonly wQ: Tensor<A>;
  /** (R, C) */
  readonly wDkv: Tensor<A>;
  /** (R,): the latent is RMS-normalised with these weights. Absent: it is not. */
  readonly kvNorm?: Tensor<A> | null;
  /** (Dr, C) */
  readonly wKr: Tensor<A>;
  /** (H·Dn, R) */
  readonly wUk: Tensor<A>;
  /** (H·Dv, R) */
  readonly wUv: Tensor<A>;
  /** (Cout, H·Dv) */
  readonly wO: Tensor<A>;
  /** Of both norms. Absent: 1e-6. */
  readonly eps?: number | null;
  /** Of the Dr channels with a position. Absent: its defaults. */
  readonly rope?: Rope | null;
}

export interface MlaOptions extends Pick<Mask, "causal" | "kvLengths"> {
  /** Absent: 1/sqrt(Dn + Dr). */
  readonly scale?: number | null;
}

export interface MlaSteps<A extends FloatArray = FloatArray> extends Omit<MhaSteps<A>, "meanWeights"> {
  /** (B, T, R), normalised */
  readonly latent: Tensor<A>;
  /** (B, T, Dr), rotated; all heads share it */
  readonly ropeKey: Tensor<A>;
}

/**
 * Latent attention of `x` (B, T, C) over itself: (B, T, Cout).
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function mla<A extends FloatArray>(
  x: Tensor<A>,
  layer: MultiHeadLatentAttention<A>,
  options: MlaOptions = {},
): Tensor<A> {
  return mlaSteps(x, layer, options).output;
}

/** {@link mla} with its intermediates; same arguments and errors. */
export function mlaSteps<A extends FloatArray>(
  x: Tensor<A>,
  layer: MultiHeadLatentAttention<A>,
  options: MlaOptions = {},
): MlaSteps<A> {
  checkMla("mla", x, layer, options);
  return inFloat32(mlaCore<A>, x, layer, options);
}

function mlaCore<A extends FloatArray>(
  x: Tensor<A>,
  layer: MultiHeadLatentAttention<A>,
  { causal, kvLengths, scale }: MlaOptions,
): MlaSteps<A> {
  const H = layer.numHeads;

  // 1. queries: from x or from a latent of their own; the first Dn channels of a head have no position
  const { content, position } = latentQueries(x, layer); // (B, H, T, Dn), (B, H, T, Dr)

  // 2. latent: all that keys and values are made of
  const latent = latentOf(x, layer); // (B, T, R)

  // 3. rotate: only the part that is there for it
  const Q = besideHeads(content, rotated(position, layer)); // (B, H, T, Dn + Dr)
  const ropeKey = rotated(splitHeads(linear(x, layer.wKr), 1), layer); // (B, 1, T, Dr)

  // 4. expand: the latent to keys and values of every head; the rotary key is the same for all
  const K = besideHeads(splitHeads(linear(latent, layer.wUk), H), ropeKey); // (B, H, T, Dn + Dr)
  const V = splitHeads(linear(latent, layer.wUv), H); // (B, H, T, Dv)

  // 5. attention: every head on its own
  const heads = sdpaCore(Q, K, V, { mask: { causal, kvLengths }, scale }); // output (B, H, T, Dv)

  // 6. output projection: mixes the heads
  const output = linear(mergeHeads(heads.output), layer.wO); // (B, T, Cout)
  return { output, weights: heads.weights, lse: heads.lse, latent, ropeKey: mergeHeads(ropeKey) };
}

/** The queries of all heads, in two parts: (B, H, T, Dn) and, not yet rotated, (B, H, T, Dr). */
export function latentQueries<A extends FloatArray>(
  x: Tensor<A>,
  layer: MultiHeadLatentAttention<A>,
): { content: Tensor<A>; position: Tensor<A> } {
  const source = layer.wDq == null ? x : normalised(linear(x, layer.wDq), layer.qNorm, layer); // (B, T, Rq)
  const q = splitHeads(linear(source, layer.wQ), layer.numHeads); // (B, H, T, Dn + Dr)
  const D = q.shape[3]!;
  const Dn = D - layer.wKr.shape[0]!;
  return { content: channels(q, 0, Dn), position: channels(q, Dn, D) };
}

/** (B, T, R) */
export function latentOf<A extends FloatArray>(x: Tensor<A>, layer: MultiHeadLatentAttention<A>): Tensor<A> {
  return normalised(linear(x, layer.wDkv), layer.kvNorm, layer);
}

/** `x` (B, H or 1, T, Dr) at positions 0, 1, ... */
export function rotated<A extends FloatArray>(x: Tensor<A>, layer: MultiHeadLatentAttention<A>): Tensor<A> {
  return ropeCore(x, layer.rope ?? {}).output;
}

function normalised<A extends FloatArray>(
  x: Tensor<A>,
  weight: Tensor<A> | null | undefined,
  { eps }: MultiHeadLatentAttention<A>,
): Tensor<A> {
  return weight == null ? x : rmsNormCore(x, weight, eps ?? 1e-6);
}
