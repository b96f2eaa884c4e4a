/**
 * From a request to a library call: config and tensors are read once, so that the call can be repeated and
 * timed.
 */

import {
  type FloatArray,
  MultiHeadAttention,
  type SdpaOptions,
  sdpa,
  sdpaSteps,
  softmax,
  softmaxLse,
  type Tensor,
  Unsupported,
} from "../src/index.ts";
import { prepareCache } from "./cache_script.ts";
import { attentionOptions, type Config, optional, required } from "./config.ts";
import { InvalidRequest } from "./errors.ts";
import { store, type Tensors } from "./safetensors.ts";

/** `evaluate` is the library call alone; `outputs` and `steps` turn its result into what is answered. */
export interface Call<R = unknown> {
  evaluate(): R;
  outputs(result: R): Tensors;
  steps?(result: R): string[];
}

/** What a `run` or `bench` request says about its op. */
export interface OpRequest {
  readonly op?: unknown;
  readonly variant?: unknown;
  readonly config?: unknown;
  readonly want?: unknown;
}

const DTYPES = ["f32", "f64"];
const ATTENTION = ["causal", "q_offset", "q_offset_tensor", "window", "mask", "bias", "softcap", "scale"];

/** The claims of the answer to `start`. */
export const OPS: Readonly<Record<string, { variants: string[]; dtypes: string[]; features: string[] }>> = {
  softmax: claim("lse"),
  sdpa: claim(
    ...ATTENTION,
    "kv_lengths",
    "sinks",
    "gqa",
    "value_dim",
    "weights",
    "lse",
    "scores",
    "capped",
    "biased",
  ),
  mha: claim(...ATTENTION, "kv_lengths", "context", "gqa", "value_dim", "projection_bias", "weights", "lse"),
  kv_cache: claim(
    ...ATTENTION,
    ...[
      "contiguous",
      "grow",
      "append",
      "append_lengths",
      "attend",
      "attend_lse",
      "truncate",
      "reset",
      "read",
    ],
    ...["gqa", "value_dim"],
  ),
};

function claim(...features: string[]) {
  return { variants: ["naive"], dtypes: DTYPES, features };
}

/** @throws InvalidRequest, and the library's errors. */
export function prepare(request: OpRequest, tensors: Tensors): Call {
  const { want } = request;
  const op = text("op", request.op);
  const claims = Object.hasOwn(OPS, op) ? OPS[op]! : null;
  if (claims === null) throw new Unsupported(`op.${op}`);
  const variant = text("variant", request.variant ?? claims.variants[0]);
  if (!claims.variants.includes(variant)) throw new Unsupported(`variant.${variant}`);
  const config = request.config ?? {};
  if (typeof config !== "object" || Array.isArray(config)) {
    throw new InvalidRequest(`config: expected an object, got ${JSON.stringify(config)}`);
  }
  if (op === "kv_cache") return prepareCache(config as Config, tensors, want == null ? null : names(want));
  const wanted = want == null ? ["output"] : names(want);
  if (op === "softmax") return prepareSoftmax(tensors, wanted);
  if (op === "sdpa") return prepareSdpa(config as Config, tensors, wanted);
  return prepareMha(config as Config, tensors, wanted);
}

function prepareSoftmax(tensors: Tensors, want: string[]): Call {
  check(want, ["output", "lse"]);
  const x = required(tensors, "x");
  return call(
    want,
    () => ({ output: softmax(x) }),
    () => {
      const { weights, lse } = softmaxLse(x);
      return { output: weights, lse };
    },
  );
}

function prepareSdpa(config: Config, tensors: Tensors, want: string[]): Call {
  check(want, ["output", "weights", "lse", "scores", "capped", "biased"]);
  const [q, k, v] = [required(tensors, "q"), required(tensors, "k"), required(tensors, "v")];
  const options: SdpaOptions = { ...attentionOptions(config, tensors), sinks: optional(tensors, "sinks") };
  return call(
    want,
    () => ({ output: sdpa<FloatArray>(q, k, v, options) }),
    () => ({ ...sdpaSteps<FloatArray>(q, k, v, options) }),
  );
}

function prepareMha(config: Config, tensors: Tensors, want: string[]): Call {
  check(want, ["output", "weights", "lse"]);
  if (config.num_heads == null) throw new InvalidRequest("config: expected num_heads, got nothing");
  const x = required(tensors, "x");
  const context = optional(tensors, "context");
  const layer = new MultiHeadAttention<FloatArray>({
    wQ: required(tensors, "w_q"),
    wK: required(tensors, "w_k"),
    wV: required(tensors, "w_v"),
    wO: required(tensors, "w_o"),
    bQ: optional(tensors, "b_q"),
    bK: optional(tensors, "b_k"),
    bV: optional(tensors, "b_v"),
    bO: optional(tensors, "b_o"),
    numHeads: config.num_heads as number,
    numKvHeads: config.num_kv_heads as number | null,
  });
  const options = attentionOptions(config, tensors);
  return call(
    want,
    () => ({ output: layer.forward(x, context, options) }),
    () => ({ ...layer.steps(x, context, options) }),
  );
}

/** The plain call where only its output is wanted, the one with intermediates elsewhere. */
function call<R extends Record<string, Tensor>>(want: string[], plain: () => R, steps: () => R): Call {
  const evaluate = want.every((name) => name === "output") ? plain : steps;
  return {
    evaluate,
    outputs: (result) => new Map(want.map((name) => [name, store((result as R)[name]!)])),
  };
}

function text(name: string, value: unknown): string {
  if (typeof value === "string") return value;
  throw new InvalidRequest(`${name}: expected a name, got ${JSON.stringify(value)}`);
}

function names(want: unknown): string[] {
  if (Array.isArray(want) && want.every((name) => typeof name === "string")) return want;
  throw new InvalidRequest(`want: expected a list of names, got ${JSON.stringify(want)}`);
}

function check(want: string[], offered: string[]): void {
  for (const name of want) {
    if (!offered.includes(name)) throw new InvalidRequest(`want: expected some of ${offered}, got ${name}`);
  }
}
