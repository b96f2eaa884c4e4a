/**
 * A whole transformer: tokens to rows, blocks, and a score for every word of the vocabulary.
 *
 *     x = embedding[tokens] + position_embedding[0 .. T-1] + segment_embedding[segments]
 *     logits = norm(blocks(norm(x))) · Uᵀ
 *
 * With causal blocks it is a language model, without an encoder.
 *
 * Letters: B batch, T length, C model width, V size of the vocabulary, P longest sequence, S segments.
 *
 * Sources: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; Devlin et al.,
 * "BERT", 2018 (segments); Press and Wolf, "Using the Output Embedding to Improve Language Models", 2016 (U =
 * embedding).
 */

import { type Block, blockCore, type Norm, normCore } from "./block.ts";
import { inFloat32 } from "./cast.ts";
import { checkTransformer } from "./checks_blocks.ts";
import { linear } from "./heads.ts";
import { type FloatArray, type IntTensor, type Lengths, type Tensor, zerosLike } from "./tensor.ts";
import { sum } from "./vectors.ts";

export interface Transformer<A extends FloatArray = FloatArray> {
  /** (V, C) */
  readonly embedding: Tensor<A>;
  /** (P, C) */
  readonly positionEmbedding?: Tensor<A> | null;
  /** (S, C); then every call has segments */
  readonly segmentEmbedding?: Tensor<A> | null;
  /** Of what was embedded. Absent: none. */
  readonly embeddingNorm?: Norm<A> | null;
  /** Blocks without cross-attention. */
  readonly layers: readonly Block<A>[];
  /** Absent: none. */
  readonly finalNorm?: Norm<A> | null;
  /** (V, C). Absent: the embedding. */
  readonly unembedding?: Tensor<A> | null;
}

export interface TransformerOptions {
  /** (B, T), for a model with segments */
  readonly segments?: IntTensor | null;
  /** Absent: false. */
  readonly causal?: boolean | null;
  /** (B,): how many tokens of each row exist. */
  readonly kvLengths?: Lengths | null;
}

export interface TransformerSteps<A extends FloatArray = FloatArray> {
  /** (B, T, C) */
  readonly output: Tensor<A>;
  /** (B, T, V) */
  readonly logits: Tensor<A>;
}

/**
 * `tokens` (B, T) through the model: (B, T, C).
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function transformer<A extends FloatArray>(
  tokens: IntTensor,
  model: Transformer<A>,
  options: TransformerOptions = {},
): Tensor<A> {
  return transformerSteps(tokens, model, options).output;
}

/** {@link transformer} with its logits; same arguments and errors. */
export function transformerSteps<A extends FloatArray>(
  tokens: IntTensor,
  model: Transformer<A>,
  options: TransformerOptions = {},
): TransformerSteps<A> {
  checkTransformer("transformer", tokens, model, options);
  return inFloat32(transformerCore<A>, model.embedding, tokens, model, options);
}

function transformerCore<A extends FloatArray>(
  embedding: Tensor<A>,
  tokens: IntTensor,
  model: Transformer<A>,
  { segments, causal, kvLengths }: TransformerOptions,
): TransformerSteps<A> {
  const { positionEmbedding, segmentEmbedding, embeddingNorm, finalNorm, unembedding } = model;
  const T = tokens.shape[1]!;

  // 1. embed: a row for the token, one for its place, one for its segment
  const places = { data: tokens.data.map((_, at) => BigInt(at % T)), shape: tokens.shape }; // (B, T)
  let x = lookedUp(embedding, tokens); // (B, T, C)
  if (positionEmbedding != null) x = sum(x, lookedUp(positionEmbedding, places));
  if (segmentEmbedding != null) x = sum(x, lookedUp(segmentEmbedding, segments!));
  if (embeddingNorm != null) x = normCore(x, embeddingNorm);

  // 2. layers: one after the other
  for (const layer of model.layers) x = blockCore(x, layer, { causal, kvLengths }); // (B, T, C)

  // 3. final norm: of a pre-norm model, whose rows have grown from block to block
  const output = finalNorm == null ? x : normCore(x, finalNorm); // (B, T, C)

  // 4. logits: how much each row is like that of each word
  const logits = linear(output, unembedding ?? embedding); // (B, T, V)
  return { output, logits };
}

/** The rows of `table` (n, C) that the ids (B, T) name: (B, T, C). */
function lookedUp<A extends FloatArray>(table: Tensor<A>, ids: IntTensor): Tensor<A> {
  const C = table.shape[1]!;
  const rows = zerosLike(table, [...ids.shape, C]);
  ids.data.forEach((id, at) => {
    const row = Number(id);
    rows.data.set(table.data.subarray(row * C, (row + 1) * C), at * C); // (C,)
  });
  return rows;
}
