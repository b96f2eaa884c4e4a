/**
 * A transformer block: layers around which the input goes straight through.
 *
 *     pre-norm   x = x + f(norm(x))        post-norm   x = norm(x + f(x))
 *
 * for f in turn self-attention, cross-attention (if there is a context), feed-forward.
 *
 * Letters: B batch, T and Tk lengths, C model width, Cc width of the context.
 *
 * Sources: Vaswani et al., "Attention Is All You Need", 2017, section 3.1 (post-norm); Xiong et al., "On
 * Layer Normalization in the Transformer Architecture", 2020 (pre-norm).
 */

import { inFloat32 } from "./cast.ts";
import { checkBlock } from "./checks_blocks.ts";
import { type FeedForward, feedForwardCore } from "./feed_forward.ts";
import { layerNormCore } from "./layer_norm.ts";
import { type MultiHeadAttention, mhaCore } from "./mha.ts";
import { rmsNormCore } from "./rms_norm.ts";
import type { FloatArray, Lengths, Tensor } from "./tensor.ts";
import { sum } from "./vectors.ts";

/** One norm with its weights. */
export interface Norm<A extends FloatArray = FloatArray> {
  readonly kind: "layer" | "rms";
  /** (C,) */
  readonly weight?: Tensor<A> | null;
  /** (C,), of a layer norm */
  readonly bias?: Tensor<A> | null;
  /** Absent: 1e-5. */
  readonly eps?: number | null;
}

/** The layers of one block. */
export interface Block<A extends FloatArray = FloatArray> {
  readonly attention: MultiHeadAttention<A>;
  /** Over a context; then there is one in every call, and a third norm. */
  readonly cross?: MultiHeadAttention<A> | null;
  readonly ff: FeedForward<A>;
  /** Of each layer in turn. */
  readonly norm1: Norm<A>;
  readonly norm2: Norm<A>;
  readonly norm3?: Norm<A> | null;
  /** Pre-norm. Absent: true. */
  readonly normFirst?: boolean | null;
}

export interface BlockOptions<A extends FloatArray = FloatArray> {
  /** (B, Tk, Cc) */
  readonly context?: Tensor<A> | null;
  /** Of self-attention. Absent: false. */
  readonly causal?: boolean | null;
  /** (B,): how many positions of each row exist. */
  readonly kvLengths?: Lengths | null;
  /** (B,): the same of the context. */
  readonly contextLengths?: Lengths | null;
}

/**
 * `x` (B, T, C) through the block: (B, T, C).
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function block<A extends FloatArray>(
  x: Tensor<A>,
  layers: Block<A>,
  options: BlockOptions<A> = {},
): Tensor<A> {
  checkBlock("block", x, layers, options);
  return inFloat32(blockCore<A>, x, layers, options);
}

/** What {@link block} does behind the edge. */
export function blockCore<A extends FloatArray>(
  x: Tensor<A>,
  layers: Block<A>,
  { context, causal, kvLengths, contextLengths }: BlockOptions<A>,
): Tensor<A> {
  const { attention, cross, ff, norm1, norm2, norm3 } = layers;
  const around = (norm: Norm<A>, y: Tensor<A>, layer: (y: Tensor<A>) => Tensor<A>): Tensor<A> =>
    (layers.normFirst ?? true) ? sum(y, layer(normCore(y, norm))) : normCore(sum(y, layer(y)), norm);

  // 1. self-attention: positions exchange what they hold
  const among = { causal, kvLengths };
  let y = around(norm1, x, (z) => mhaCore(z, null, attention, { mask: among }).output); // (B, T, C)

  // 2. cross-attention: and look at the context, all of it that exists
  if (cross != null && context != null) {
    const mask = { kvLengths: contextLengths };
    y = around(norm2, y, (z) => mhaCore(z, context, cross, { mask }).output); // (B, T, C)
  }

  // 3. feed-forward: each position on its own
  return around(norm3 ?? norm2, y, (z) => feedForwardCore(z, ff)); // (B, T, C)
}

/** `x` (..., C) with each row normalised. */
export function normCore<A extends FloatArray>(
  x: Tensor<A>,
  { kind, weight, bias, eps }: Norm<A>,
): Tensor<A> {
  if (kind === "rms") return rmsNormCore(x, weight ?? null, eps ?? 1e-5);
  return layerNormCore(x, weight ?? null, bias ?? null, eps ?? 1e-5).output;
}
