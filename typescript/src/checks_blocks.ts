/** What norms, feed-forward layers, blocks and transformers must satisfy. */

import type { Block, BlockOptions, Norm } from "./block.ts";
import {
  type AnyTensor,
  ensure,
  requireBoolean,
  requireDtype,
  requireFloat,
  requireFloats,
  requireIds,
  requireLengths,
  requireOneOf,
  requireRank,
  requireShape,
} from "./checks.ts";
import { checkEps, checkMha } from "./checks_mha.ts";
import { InvalidConfig, ShapeMismatch } from "./errors.ts";
import type { FeedForward } from "./feed_forward.ts";
import type { MultiHeadAttention } from "./mha.ts";
import { type IntTensor, sizes2, zerosLike } from "./tensor.ts";
import type { Transformer, TransformerOptions } from "./transformer.ts";

/** x (..., n) with weights (n,). */
export function checkNorm(
  fn: string,
  x: AnyTensor,
  weight: AnyTensor | null,
  bias: AnyTensor | null,
  eps: number,
): void {
  requireFloats(fn, { x, weight, bias });
  ensure(x.shape.length >= 1, ShapeMismatch, fn, "x", "at least one axis", "rank 0");
  const n = x.shape.at(-1)!;
  ensure(n >= 1, ShapeMismatch, fn, "x", "rows of at least 1", n);
  if (weight !== null) requireShape(fn, "weight", weight, [n]);
  if (bias !== null) requireShape(fn, "bias", bias, [n]);
  checkEps(fn, "eps", eps);
}

function checkNormLayer(fn: string, x: AnyTensor, { kind, weight, bias, eps }: Norm): void {
  requireOneOf(fn, "norm", kind, ["layer", "rms"]);
  ensure(kind === "layer" || bias == null, InvalidConfig, fn, "bias", "nothing for an RMS norm", "a tensor");
  checkNorm(fn, x, weight ?? null, bias ?? null, eps ?? 1e-5);
}

const ACTIVATIONS = ["gelu", "gelu_tanh", "relu", "swiglu"];

/** x (..., C) against the weights of the layer. */
export function checkFeedForward(fn: string, x: AnyTensor, layer: FeedForward): void {
  const { w1, w2, w3, b1, b2, b3, activation } = layer;
  requireOneOf(fn, "activation", activation, ACTIVATIONS);
  const gated = activation === "swiglu";
  const expected = gated ? "a tensor for swiglu" : `nothing for ${activation}`;
  ensure(gated === (w3 != null), InvalidConfig, fn, "w3", expected, w3 == null ? "nothing" : "a tensor");
  ensure(gated || b3 == null, InvalidConfig, fn, "b3", expected, "a tensor");
  requireFloats(fn, { x, w1, w2, w3, b1, b2, b3 });
  ensure(x.shape.length >= 1, ShapeMismatch, fn, "x", "at least one axis", "rank 0");
  const C = x.shape.at(-1)!;
  requireRank(fn, "w1", w1, 2, "(out, in)");
  const F = w1.shape[0]!;
  requireShape(fn, "w1", w1, [F, C]);
  requireShape(fn, "w2", w2, [C, F]);
  if (w3 != null) requireShape(fn, "w3", w3, [F, C]);
  if (b1 != null) requireShape(fn, "b1", b1, [F]);
  if (b2 != null) requireShape(fn, "b2", b2, [C]);
  if (b3 != null) requireShape(fn, "b3", b3, [F]);
}

/** x (B, T, C) against all layers of the block, each of which gives (B, T, C). */
export function checkBlock(fn: string, x: AnyTensor, layers: Block, options: BlockOptions): void {
  const { attention, cross, ff, norm1, norm2, norm3, normFirst } = layers;
  const { context, causal, kvLengths, contextLengths } = options;
  requireFloat(fn, "x", x);
  requireRank(fn, "x", x, 3, "(B, T, C)");
  if (normFirst != null) requireBoolean(fn, "normFirst", normFirst);
  const [has, wants] = [context == null ? "nothing" : "a tensor", cross == null ? "nothing" : "a tensor"];
  ensure(has === wants, InvalidConfig, fn, "context", `${wants}, as for cross-attention`, has);
  const third = norm3 == null ? "nothing" : "a norm";
  ensure((norm3 == null) === (cross == null), InvalidConfig, fn, "norm3", `a norm for each layer`, third);
  if (cross == null) {
    ensure(
      contextLengths == null,
      InvalidConfig,
      fn,
      "contextLengths",
      "nothing without a context",
      "a value",
    );
  }
  const C = x.shape[2]!;
  const checkAttention = (
    name: string,
    layer: MultiHeadAttention,
    source: AnyTensor | null,
    mask: object,
  ) => {
    checkMha(fn, x, source, layer, { mask });
    ensure(
      layer.wO.shape[0] === C,
      ShapeMismatch,
      fn,
      `${name}.wO`,
      `${C} rows as x is wide`,
      layer.wO.shape[0],
    );
  };
  checkAttention("attention", attention, null, { causal, kvLengths });
  if (cross != null) checkAttention("cross", cross, context!, { kvLengths: contextLengths });
  for (const norm of [norm1, norm2, norm3]) if (norm != null) checkNormLayer(fn, x, norm);
  checkFeedForward(fn, x, ff);
}

/** tokens (B, T) against the tables and layers of the model. */
export function checkTransformer(
  fn: string,
  tokens: IntTensor,
  model: Transformer,
  { segments, causal, kvLengths }: TransformerOptions,
): void {
  const { embedding, positionEmbedding, segmentEmbedding, unembedding } = model;
  requireDtype(fn, "tokens", tokens, "int64");
  requireRank(fn, "tokens", tokens, 2, "(B, T)");
  const [B, T] = sizes2(tokens);
  requireFloats(fn, { embedding, positionEmbedding, segmentEmbedding, unembedding });
  requireRank(fn, "embedding", embedding, 2, "(V, C)");
  const [V, C] = sizes2(embedding);
  requireIds(fn, "tokens", tokens, [B, T], 0, V - 1);
  if (positionEmbedding != null) {
    const P = positionEmbedding.shape[0]!;
    requireShape(fn, "positionEmbedding", positionEmbedding, [P, C]);
    ensure(T <= P, InvalidConfig, fn, "tokens", `at most ${P} positions`, T);
  }
  const given = segments == null ? "nothing" : "a tensor";
  const expected = segmentEmbedding == null ? "nothing" : "a tensor";
  ensure(given === expected, InvalidConfig, fn, "segments", `${expected}, as for the embedding`, given);
  if (segmentEmbedding != null) {
    const S = segmentEmbedding.shape[0]!;
    requireShape(fn, "segmentEmbedding", segmentEmbedding, [S, C]);
    requireIds(fn, "segments", segments!, [B, T], 0, S - 1);
  }
  if (unembedding != null) requireShape(fn, "unembedding", unembedding, [V, C]);
  if (causal != null) requireBoolean(fn, "causal", causal);
  if (kvLengths != null) requireLengths(fn, "kvLengths", kvLengths, B, 0, T);
  const x = zerosLike(embedding, [B, T, C]);
  for (const norm of [model.embeddingNorm, model.finalNorm]) if (norm != null) checkNormLayer(fn, x, norm);
  for (const layer of model.layers) checkBlock(fn, x, layer, { causal, kvLengths });
}
