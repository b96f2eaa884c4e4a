/** The ops around scaled dot-product attention: softmax, sdpa, mha, mla, merge, varlen, scoring, dropout. */

import {
  blocked,
  type Dropout,
  dropoutSteps,
  type FlashOptions,
  type FloatArray,
  flash,
  InvalidConfig,
  type MhaSettings,
  type MlaOptions,
  MultiHeadAttention,
  type MultiHeadLatentAttention,
  merge,
  mlaAbsorbed,
  mlaSteps,
  type Packing,
  type ScoringForm,
  type SdpaOptions,
  type SplitOptions,
  scoringSteps,
  sdpaSteps,
  softmaxLse,
  splitKv,
  type Threads,
  type VarlenOptions,
  varlen,
  wasm,
} from "../src/index.ts";
import { attentionOptions, type Config, field, optional, required, ropeOptions } from "./config.ts";
import { type Op, op, plainOp } from "./op.ts";
import type { Tensors } from "./safetensors.ts";
import { engine, threads } from "./threads.ts";

/** What every kind of attention over queries, keys and values has. */
export const COMMON_FEATURES: readonly string[] = [
  ...["causal", "q_offset", "q_offset_tensor", "window", "mask", "bias", "softcap", "scale"],
  ...["gqa", "value_dim"],
];

const SDPA = [...COMMON_FEATURES, "kv_lengths", "sinks", "dropout"];
const SDPA_OUTPUTS = ["output", "weights", "lse", "scores", "capped", "biased"];
const STATE = ["output", "lse"];

export const ATTENTION: Readonly<Record<string, Op>> = {
  softmax: plainOp(["output", "lse"], ["lse"], (_, tensors) => {
    const x = required(tensors, "x");
    return () => {
      const { weights, lse } = softmaxLse(x);
      return { output: weights, lse };
    };
  }),

  sdpa: op({
    outputs: SDPA_OUTPUTS,
    features: [...SDPA, ...SDPA_OUTPUTS.slice(1)],
    variants: {
      naive(config, tensors) {
        const { q, k, v, options } = readSdpa(config, tensors);
        return () => sdpaSteps<FloatArray>(q, k, v, options);
      },
      flash: {
        outputs: STATE,
        reader(config, tensors) {
          const { q, k, v, options } = readSdpa(config, tensors);
          const blocks = { blockQ: config.block_q, blockK: config.block_k } as FlashOptions;
          return () => flash<FloatArray>(q, k, v, { ...options, ...blocks });
        },
      },
      split: {
        outputs: STATE,
        reader(config, tensors) {
          const { q, k, v, options } = readSdpa(config, tensors);
          const { splits } = config as SplitOptions;
          return () => splitKv<FloatArray>(q, k, v, { ...options, splits });
        },
      },
      blocked: {
        outputs: STATE,
        partial: true,
        reader(config, tensors) {
          const { q, k, v, options } = readSdpa(config, tensors);
          return () => blocked<FloatArray>(q, k, v, options);
        },
      },
      wasm: {
        outputs: STATE,
        partial: true,
        reader(config, tensors) {
          const { q, k, v, options } = readSdpa(config, tensors);
          return () => wasm(...([q, k, v, options, engine()] as Parameters<typeof wasm>));
        },
      },
      threads: {
        outputs: STATE,
        partial: true,
        reader(config, tensors) {
          const { q, k, v, options } = readSdpa(config, tensors);
          return () => threads().sdpa(...([q, k, v, options] as Parameters<Threads["sdpa"]>));
        },
      },
    },
  }),

  mha: plainOp(
    ["output", "weights", "lse", "mean_weights"],
    [
      ...COMMON_FEATURES,
      ...["kv_lengths", "dropout", "context", "projection_bias", "rope", "positions", "qk_norm", "packed"],
      ...["head_mask", "weights", "lse", "mean_weights"],
    ],
    (config, tensors) => {
      const x = required(tensors, "x");
      const context = optional(tensors, "context");
      const layer = readMha(config, tensors, "", context !== null);
      const options = {
        ...attentionOptions(config, tensors),
        positions: optional(tensors, "positions"),
        headMask: optional(tensors, "head_mask"),
      };
      return () => layer.steps(x, context, options);
    },
  ),

  mla: op({
    outputs: ["output", "weights", "lse", "latent", "rope_key"],
    features: [
      ...["causal", "kv_lengths", "scale", "rope", "query_latent", "kv_norm", "q_norm", "value_dim"],
      ...["weights", "lse", "latent", "rope_key"],
    ],
    variants: {
      naive(config, tensors) {
        const { x, layer, options } = readMla(config, tensors);
        return () => mlaSteps<FloatArray>(x, layer, options);
      },
      absorbed(config, tensors) {
        const { x, layer, options } = readMla(config, tensors);
        return () => mlaAbsorbed<FloatArray>(x, layer, options);
      },
    },
  }),

  merge: plainOp(STATE, ["lse"], (_, tensors) => {
    const [a, aLse] = [required(tensors, "a_output"), required(tensors, "a_lse")];
    const [b, bLse] = [required(tensors, "b_output"), required(tensors, "b_lse")];
    return () => merge<FloatArray>(a, aLse as never, b, bLse as never);
  }),

  varlen: plainOp(
    STATE,
    ["causal", "q_offset", "q_offset_tensor", "window", "softcap", "scale", "gqa", "value_dim", "lse"],
    (config, tensors) => {
      const { q, k, v, options } = readSdpa(config, tensors);
      const [cuQ, cuK] = [required(tensors, "cu_seqlens_q"), required(tensors, "cu_seqlens_k")];
      const { scale, softcap, mask } = options;
      const { causal, window, qOffset } = mask!;
      const chosen: VarlenOptions = { scale, softcap, causal, window, qOffset };
      return () => varlen<FloatArray>(q, k, v, cuQ, cuK, chosen);
    },
  ),

  scoring: plainOp(
    ["output", "weights", "scores"],
    ["additive", "dot", "general", "scaled", "kv_lengths", "weights", "scores"],
    (config, tensors) => {
      const form = field<ScoringForm>(config, "form");
      const needed: Record<string, string[]> = { additive: ["w_q", "w_k", "w_v"], general: ["w"] };
      for (const name of Object.hasOwn(needed, form) ? needed[form]! : []) required(tensors, name);
      const [q, k, v] = [required(tensors, "q"), required(tensors, "k"), required(tensors, "v")];
      const options = {
        wQ: optional(tensors, "w_q"),
        wK: optional(tensors, "w_k"),
        wV: optional(tensors, "w_v"),
        w: optional(tensors, "w"),
        kvLengths: optional(tensors, "kv_lengths"),
      };
      return () => scoringSteps<FloatArray>(form, q, k, v, options);
    },
  ),

  dropout: plainOp(["output", "keep"], ["offset", "keep"], (config, tensors) => {
    const x = required(tensors, "x");
    const options: Dropout = { p: field(config, "p"), seed: field(config, "seed") };
    const offset = (config.offset ?? 0) as number;
    return () => dropoutSteps<FloatArray>(x, options, offset);
  }),
};

function readSdpa(config: Config, tensors: Tensors) {
  const [q, k, v] = [required(tensors, "q"), required(tensors, "k"), required(tensors, "v")];
  const options: SdpaOptions = { ...attentionOptions(config, tensors), sinks: optional(tensors, "sinks") };
  return { q, k, v, options };
}

const SEPARATE = ["w_q", "w_k", "w_v", "b_q", "b_k", "b_v"];

/** A layer whose tensors have names that begin with `prefix`. */
export function readMha(
  config: Config,
  tensors: Tensors,
  prefix: string,
  hasContext: boolean,
): MultiHeadAttention<FloatArray> {
  const needed = (name: string) => required(tensors, `${prefix}${name}`);
  const perhaps = (name: string) => optional(tensors, `${prefix}${name}`);
  const settings: MhaSettings = {
    numHeads: field(config, "num_heads"),
    numKvHeads: config.num_kv_heads as number | null,
    wO: needed("w_o"),
    bO: perhaps("b_o"),
    qNorm: perhaps("q_norm"),
    kNorm: perhaps("k_norm"),
    qkNormEps: config.qk_norm_eps as number | null,
    rope: ropeOptions(config.rope),
  };
  const [wQkv, bQkv] = [perhaps("w_qkv"), perhaps("b_qkv")];
  if (wQkv === null) {
    return new MultiHeadAttention<FloatArray>({
      ...settings,
      wQ: needed("w_q"),
      wK: needed("w_k"),
      wV: needed("w_v"),
      bQ: perhaps("b_q"),
      bK: perhaps("b_k"),
      bV: perhaps("b_v"),
    });
  }
  const beside = SEPARATE.find((name) => tensors.has(`${prefix}${name}`)) ?? (hasContext ? "context" : null);
  if (beside !== null) throw new InvalidConfig(`mha: wQkv: expected no ${beside} beside it, got both`);
  const packing = config.packing as Packing | null;
  return MultiHeadAttention.packed<FloatArray>({ ...settings, wQkv, bQkv, packing });
}

function readMla(config: Config, tensors: Tensors) {
  const x = required(tensors, "x");
  const layer: MultiHeadLatentAttention = {
    numHeads: field(config, "num_heads"),
    wDq: optional(tensors, "w_dq"),
    qNorm: optional(tensors, "q_norm"),
    wQ: required(tensors, "w_q"),
    wDkv: required(tensors, "w_dkv"),
    kvNorm: optional(tensors, "kv_norm"),
    wKr: required(tensors, "w_kr"),
    wUk: required(tensors, "w_uk"),
    wUv: required(tensors, "w_uv"),
    wO: required(tensors, "w_o"),
    eps: config.eps as number | null,
    rope: ropeOptions(config.rope),
  };
  const { causal, scale } = config as MlaOptions;
  const options: MlaOptions = { causal, scale, kvLengths: optional(tensors, "kv_lengths") };
  return { x, layer, options };
}
