/** The ops of attention without a full softmax: linear_attention, gated_linear, sparse, structured. */

import {
  type FloatArray,
  type GatedLinearOptions,
  gatedLinear,
  type LinearChunkedOptions,
  type LinearState,
  linearAttention,
  linearChunked,
  linearRecurrent,
  type SparseOptions,
  type SparsePattern,
  sparseMask,
  sparseSteps,
  structuredSteps,
} from "../src/index.ts";
import { type Config, field, optional, required } from "./config.ts";
import { InvalidRequest } from "./errors.ts";
import { type Op, op, plainOp } from "./op.ts";
import type { Tensors } from "./safetensors.ts";

export const LINEAR: Readonly<Record<string, Op>> = {
  linear_attention: op({
    outputs: ["output", "state", "norm"],
    features: ["causal", "state_in", "gqa", "value_dim", "state", "norm"],
    variants: {
      naive(config, tensors) {
        const { q, k, v, options } = readLinear(config, tensors);
        return () => linearAttention<FloatArray>(q, k, v, options);
      },
      recurrent(config, tensors) {
        const { q, k, v, options } = readLinear(config, tensors);
        return () => linearRecurrent<FloatArray>(q, k, v, options);
      },
      chunked(config, tensors) {
        const { q, k, v, options } = readLinear(config, tensors);
        const { chunk } = config as LinearChunkedOptions;
        return () => linearChunked<FloatArray>(q, k, v, { ...options, chunk });
      },
    },
  }),

  gated_linear: plainOp(
    ["output", "state"],
    ["gated", "delta", "gated_delta", "state_in", "scale", "gqa", "value_dim", "state"],
    (config, tensors) => {
      const { q, k, v } = readHeads(tensors);
      const { rule, scale } = config as GatedLinearOptions;
      const options = {
        rule,
        scale,
        past: optional(tensors, "state"),
        decay: optional(tensors, "decay"),
        beta: optional(tensors, "beta"),
      };
      return () => gatedLinear<FloatArray>(q, k, v, options);
    },
  ),

  sparse: plainOp(
    ["output", "lse", "mask", "visited"],
    [
      ...["window", "dilated", "strided", "fixed", "global", "bigbird", "blocks"],
      ...["causal", "scale", "gqa", "value_dim", "lse", "mask", "visited"],
    ],
    (config, tensors, want) => {
      const { q, k, v } = readHeads(tensors);
      const pattern = readPattern(config, tensors);
      const { scale, causal } = config as SparseOptions;
      return () => {
        const steps = sparseSteps<FloatArray>(q, k, v, pattern, { scale, causal });
        if (!want.includes("mask")) return steps;
        return { ...steps, mask: sparseMask(pattern, q.shape[2]!, k.shape[2]!, causal ?? false) };
      };
    },
  ),

  structured: plainOp(
    ["output", "weights", "penalty"],
    ["kv_lengths", "weights", "penalty"],
    (_, tensors) => {
      const [h, w1, w2] = [required(tensors, "h"), required(tensors, "w_1"), required(tensors, "w_2")];
      const kvLengths = optional(tensors, "kv_lengths");
      return () => structuredSteps<FloatArray>(h, w1, w2, kvLengths);
    },
  ),
};

function readHeads(tensors: Tensors) {
  return { q: required(tensors, "q"), k: required(tensors, "k"), v: required(tensors, "v") };
}

function readLinear(config: Config, tensors: Tensors) {
  const [state, norm] = [optional(tensors, "state"), optional(tensors, "norm")];
  if ((state === null) !== (norm === null)) {
    const [given, missing] = norm === null ? ["state", "norm"] : ["norm", "state"];
    throw new InvalidRequest(`inputs: expected ${missing} beside ${given}, got nothing`);
  }
  const past: LinearState | null = state === null ? null : { state, norm: norm! };
  return { ...readHeads(tensors), options: { causal: config.causal as boolean | null, past } };
}

/** The pattern `blocks` has its table in a tensor. */
function readPattern(config: Config, tensors: Tensors): SparsePattern {
  const pattern = field<SparsePattern>(config, "pattern");
  if (pattern?.type !== "blocks") return pattern;
  return { ...pattern, mask: required(tensors, "block_mask") };
}
