/** The ops of whole layers: norms, activations, block, transformer, cache_write. */

import {
  type Block,
  type BlockOptions,
  block,
  cacheWrite,
  type FeedForward,
  type FloatArray,
  type GeluForm,
  gelu,
  InvalidConfig,
  layerNormSteps,
  type Norm,
  rmsNorm,
  swiglu,
  type Transformer,
  type TransformerOptions,
  transformerSteps,
} from "../src/index.ts";
import { type Config, field, optional, required } from "./config.ts";
import { InvalidRequest } from "./errors.ts";
import { type Op, plainOp } from "./op.ts";
import { readMha } from "./ops_attention.ts";
import type { Tensors } from "./safetensors.ts";

const BLOCK = [
  ...["causal", "kv_lengths", "rope", "gqa", "qk_norm", "rms", "post_norm"],
  ...["gelu_tanh", "relu", "swiglu", "biases"],
];

export const BLOCKS: Readonly<Record<string, Op>> = {
  layer_norm: plainOp(
    ["output", "mean", "inv_std"],
    ["weight", "bias", "eps", "mean", "inv_std"],
    (config, tensors) => {
      const x = required(tensors, "x");
      const [weight, bias] = [optional(tensors, "weight"), optional(tensors, "bias")];
      const eps = (config.eps ?? 1e-5) as number;
      return () => layerNormSteps<FloatArray>(x, weight, bias, eps);
    },
  ),

  rms_norm: plainOp(["output"], ["weight", "eps"], (config, tensors) => {
    const [x, weight] = [required(tensors, "x"), optional(tensors, "weight")];
    const eps = (config.eps ?? 1e-5) as number;
    return () => ({ output: rmsNorm<FloatArray>(x, weight, eps) });
  }),

  gelu: plainOp(["output"], ["tanh"], (config, tensors) => {
    const x = required(tensors, "x");
    const approximate = (config.approximate ?? "none") as GeluForm;
    return () => ({ output: gelu<FloatArray>(x, approximate) });
  }),

  swiglu: plainOp(["output"], ["alpha"], (config, tensors) => {
    const [a, b] = [required(tensors, "a"), required(tensors, "b")];
    const alpha = (config.alpha ?? 1) as number;
    return () => ({ output: swiglu<FloatArray>(a, b, alpha) });
  }),

  block: plainOp(["output"], [...BLOCK, "context", "context_lengths"], (config, tensors) => {
    const x = required(tensors, "x");
    const options: BlockOptions = {
      context: optional(tensors, "context"),
      causal: config.causal as boolean | null,
      kvLengths: optional(tensors, "kv_lengths"),
      contextLengths: optional(tensors, "context_lengths"),
    };
    const layers = readBlock(config, tensors, "", options.context !== null);
    return () => ({ output: block<FloatArray>(x, layers, options) });
  }),

  transformer: plainOp(
    ["output", "logits"],
    [
      ...BLOCK,
      ...["position_embedding", "segments", "embedding_norm", "final_norm", "unembedding", "logits"],
    ],
    (config, tensors) => {
      const tokens = required(tensors, "tokens");
      const model = readTransformer(config, tensors);
      const options: TransformerOptions = {
        segments: optional(tensors, "segments"),
        causal: config.causal as boolean | null,
        kvLengths: optional(tensors, "kv_lengths"),
      };
      if ((options.segments == null) !== (model.segmentEmbedding == null)) {
        throw new InvalidRequest("inputs: expected segments beside segment_embedding, got only one of them");
      }
      return () => transformerSteps<FloatArray>(tokens, model, options);
    },
  ),

  cache_write: plainOp(["output"], ["write_indices", "circular"], (config, tensors) => {
    const [cache, update] = [required(tensors, "cache"), required(tensors, "update")];
    const indices = optional(tensors, "write_indices");
    const circular = (config.circular ?? false) as boolean;
    return () => ({ output: cacheWrite<FloatArray>(cache, update, indices, circular) });
  }),
};

/** The layers whose tensors have names that begin with `prefix`. */
function readBlock(config: Config, tensors: Tensors, prefix: string, hasContext: boolean): Block<FloatArray> {
  const withoutRope = { ...config, rope: null }; // which is for self-attention only
  const hasCross = [...tensors.keys()].some((name) => name.startsWith(`${prefix}cross.`));
  if (hasCross && !hasContext) {
    throw new InvalidRequest(`inputs: expected a context beside ${prefix}cross.*, got nothing`);
  }
  return {
    attention: readMha(config, tensors, `${prefix}attention.`, false),
    cross: hasContext ? readMha(withoutRope, tensors, `${prefix}cross.`, true) : null,
    norm1: neededNorm(config, tensors, `${prefix}norm_1`),
    norm2: neededNorm(config, tensors, `${prefix}norm_2`),
    norm3: hasContext ? neededNorm(config, tensors, `${prefix}norm_3`) : null,
    ff: readFeedForward(config, tensors, `${prefix}ff.`),
    normFirst: config.norm_first as boolean | null,
  };
}

/** A norm that a block must have. */
function neededNorm(config: Config, tensors: Tensors, name: string): Norm<FloatArray> {
  required(tensors, `${name}.weight`);
  return readNorm(config, tensors, name);
}

function readNorm(config: Config, tensors: Tensors, name: string): Norm<FloatArray> {
  return {
    kind: (config.norm ?? "layer") as Norm["kind"],
    weight: optional(tensors, `${name}.weight`),
    bias: optional(tensors, `${name}.bias`),
    eps: config.eps as number | null,
  };
}

/** A norm that is there if one of its tensors is. */
function perhapsNorm(config: Config, tensors: Tensors, name: string): Norm<FloatArray> | null {
  const given = tensors.has(`${name}.weight`) || tensors.has(`${name}.bias`);
  return given ? readNorm(config, tensors, name) : null;
}

function readFeedForward(config: Config, tensors: Tensors, prefix: string): FeedForward<FloatArray> {
  const activation = (config.activation ?? "gelu") as FeedForward["activation"];
  const gated = activation === "swiglu";
  return {
    activation,
    w1: required(tensors, `${prefix}w_1`),
    b1: optional(tensors, `${prefix}b_1`),
    w2: required(tensors, `${prefix}w_2`),
    b2: optional(tensors, `${prefix}b_2`),
    w3: gated ? required(tensors, `${prefix}w_3`) : null,
    b3: gated ? optional(tensors, `${prefix}b_3`) : null,
  };
}

function readTransformer(config: Config, tensors: Tensors): Transformer<FloatArray> {
  const count = field<number>(config, "num_layers");
  if (!Number.isInteger(count) || count < 0) {
    throw new InvalidConfig(`transformer: numLayers: expected an integer >= 0, got ${count}`);
  }
  const layers: Block<FloatArray>[] = [];
  for (let n = 0; n < count; n++) layers.push(readBlock(config, tensors, `layers.${n}.`, false));
  return {
    embedding: required(tensors, "embedding"),
    positionEmbedding: optional(tensors, "position_embedding"),
    segmentEmbedding: optional(tensors, "segment_embedding"),
    embeddingNorm: perhapsNorm(config, tensors, "embedding_norm"),
    layers,
    finalNorm: perhapsNorm(config, tensors, "final_norm"),
    unembedding: optional(tensors, "unembedding"),
  };
}
