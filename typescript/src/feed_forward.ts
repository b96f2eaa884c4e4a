/**
 * The feed-forward layer of a block: up to a larger width, through a nonlinearity, and down again.
 *
 *     output = W_2 act(W_1 x + b_1) + b_2,   for SwiGLU W_2 swiglu(W_1 x + b_1, W_3 x + b_3) + b_2
 *
 * Letters: C model width, F inner width.
 *
 * Sources: Vaswani et al., "Attention Is All You Need", 2017, section 3.3; Shazeer, "GLU Variants Improve
 * Transformer", 2020.
 */

import { inFloat32 } from "./cast.ts";
import { checkFeedForward } from "./checks_blocks.ts";
import { geluCore } from "./gelu.ts";
import { linear } from "./heads.ts";
import { swigluCore } from "./swiglu.ts";
import { type FloatArray, type Tensor, zerosLike } from "./tensor.ts";

export type Activation = "gelu" | "gelu_tanh" | "relu" | "swiglu";

/** The weights of one layer; they are (out, in). */
export interface FeedForward<A extends FloatArray = FloatArray> {
  /** (F, C) */
  readonly w1: Tensor<A>;
  /** (C, F) */
  readonly w2: Tensor<A>;
  /** (F, C), for swiglu and for it alone */
  readonly w3?: Tensor<A> | null;
  /** (F,) */
  readonly b1?: Tensor<A> | null;
  /** (C,) */
  readonly b2?: Tensor<A> | null;
  /** (F,) */
  readonly b3?: Tensor<A> | null;
  readonly activation: Activation;
}

/**
 * `x` (..., C) through the layer: (..., C).
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function feedForward<A extends FloatArray>(x: Tensor<A>, layer: FeedForward<A>): Tensor<A> {
  checkFeedForward("feed_forward", x, layer);
  return inFloat32(feedForwardCore<A>, x, layer);
}

/** What {@link feedForward} does behind the edge. */
export function feedForwardCore<A extends FloatArray>(x: Tensor<A>, layer: FeedForward<A>): Tensor<A> {
  const { w1, w2, w3, b1, b2, b3, activation } = layer;

  // 1. expand: to the inner width, twice where one half gates the other
  const inner = linear(x, w1, b1); // (..., F)
  const gated = w3 == null ? null : linear(x, w3, b3); // (..., F)

  // 2. activate: the only place where positions are not treated linearly
  const active = gated === null ? activate(inner, activation) : swigluCore(inner, gated, 1); // (..., F)

  // 3. contract: back to the model width
  return linear(active, w2, b2); // (..., C)
}

function activate<A extends FloatArray>(x: Tensor<A>, activation: Activation): Tensor<A> {
  if (activation !== "relu") return geluCore(x, activation === "gelu" ? "none" : "tanh");
  const positive = zerosLike(x, x.shape);
  for (let n = 0; n < x.data.length; n++) positive.data[n] = Math.max(x.data[n]!, 0); // NaN stays
  return positive;
}
