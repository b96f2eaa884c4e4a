/** From a request's JSON and tensors to the arguments of the library, for what sdpa, mha and attend share. */

import {
  type AttentionOptions,
  type BoolTensor,
  DtypeMismatch,
  type FloatArray,
  type IntTensor,
  InvalidConfig,
  type Mask,
  type Rope,
  type RopeScaling,
  type Tensor,
  type TensorArray,
  Unsupported,
} from "../src/index.ts";
import { InvalidRequest } from "./errors.ts";
import type { Tensors } from "./safetensors.ts";

/** A JSON object whose values nobody has looked at yet; the library tests them. */
export type Config = Readonly<Record<string, unknown>>;

/** Where no position is; one beyond ± this becomes it. */
const FARTHEST = 2 ** 62;

/** The fields that are numbers, not integers. */
const REALS: readonly string[] = [
  ...["scale", "softcap", "base", "p", "eps", "qk_norm_eps", "alpha", "factor", "attention_factor"],
  ...["beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor"],
];

/** A config whose integers, however far away, are those of the ports that count in 64 bits. */
export function nearby<T>(value: T): T {
  const within = (n: number) => Math.max(-FARTHEST, Math.min(n, FARTHEST));
  if (typeof value === "number") return within(value) as T;
  if (typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map(nearby) as T;
  const entries = Object.entries(value);
  return Object.fromEntries(entries.map(([name, x]) => [name, REALS.includes(name) ? x : nearby(x)])) as T;
}

/** What the library's types promise to it, unproven: its own checks find out. */
export type AnyTensor = Tensor<FloatArray> & BoolTensor & IntTensor;

/** The element types that this port computes with. */
const READABLE = ["F32", "F64", "F16", "BF16", "I64", "BOOL"];

/**
 * The tensor of that name.
 *
 * @throws InvalidRequest when the file lacks it, Unsupported for a float type and DtypeMismatch for another type
 * that this port does not compute with.
 */
export function required(tensors: Tensors, name: unknown): AnyTensor {
  const stored = typeof name === "string" ? tensors.get(name) : undefined;
  if (stored === undefined) {
    throw new InvalidRequest(`inputs: expected a tensor ${name}, got ${[...tensors.keys()].join(", ")}`);
  }
  const { dtype, shape, data } = stored;
  const readable = READABLE.includes(dtype);
  if (dtype.includes("F") && !readable) throw new Unsupported(`dtype.${dtype.toLowerCase()}`);
  if (!readable) throw new DtypeMismatch(`inputs: ${name}: expected a float type, I64 or BOOL, got ${dtype}`);
  const tensor: Tensor<TensorArray> = { data, shape };
  return tensor as AnyTensor;
}

/** Absent is null. */
export function optional(tensors: Tensors, name: string): AnyTensor | null {
  return tensors.has(name) ? required(tensors, name) : null;
}

/** A field that the request must have. @throws InvalidRequest. */
export function field<T>(config: Config, name: string): T {
  if (config[name] == null) throw new InvalidRequest(`config: expected ${name}, got nothing`);
  return config[name] as T;
}

/** num_heads is numHeads in the library; what is no object stays as it is, for the library to refuse. */
function camelKeys<T>(object: unknown): T {
  if (typeof object !== "object" || object === null || Array.isArray(object)) return object as T;
  return Object.fromEntries(Object.entries(object).map(([name, value]) => [camel(name), value])) as T;
}

export function camel(name: string): string {
  return name.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
}

/** An object of rotary options, with its scaling inside; absent is null. */
export function ropeOptions(value: unknown): Rope | null {
  if (typeof value !== "object" || value === null || Array.isArray(value))
    return (value ?? null) as Rope | null;
  const options = camelKeys<Rope>(value);
  return { ...options, scaling: camelKeys<RopeScaling | null>(options.scaling ?? null) };
}

/** Of sdpa and mha, whose tensors have fixed names. */
export function attentionOptions(config: Config, tensors: Tensors): AttentionOptions {
  const offsets = optional(tensors, "q_offset");
  if (offsets !== null && config.q_offset != null) {
    throw new InvalidConfig(`q_offset: expected a tensor or a number, got both`);
  }
  const mask = {
    ...plainConditions(config),
    keep: optional(tensors, "mask"),
    kvLengths: optional(tensors, "kv_lengths"),
    qOffset: offsets ?? plainOffset(config),
  };
  return { ...plainOptions(config), mask, bias: optional(tensors, "bias") };
}

/** Of an attend step, which names its tensors. */
export function stepOptions(step: Config, tensors: Tensors): AttentionOptions {
  const named = (name: unknown) => (name == null ? null : required(tensors, name));
  const qOffset = typeof step.q_offset === "string" ? required(tensors, step.q_offset) : plainOffset(step);
  const mask = { ...plainConditions(step), keep: named(step.mask), qOffset };
  return { ...plainOptions(step), mask, bias: named(step.bias) };
}

function plainConditions(config: Config): Mask {
  return { causal: config.causal, window: config.window } as Mask;
}

function plainOptions(config: Config): AttentionOptions {
  return { scale: config.scale, softcap: config.softcap, dropout: config.dropout } as AttentionOptions;
}

/** A list is a tensor's business, never the config's. */
export function plainOffset(config: Config): number | null {
  const offset = config.q_offset;
  if (typeof offset === "object" && offset !== null) {
    throw new InvalidConfig(`q_offset: expected an integer, got ${JSON.stringify(offset)}`);
  }
  return offset as number | null;
}
