/**
 * From a request to a library call: config and tensors are read once, so that the call can be repeated and
 * timed.
 */

import { Unsupported } from "../src/index.ts";
import { prepareCache } from "./cache_script.ts";
import { type Config, nearby } from "./config.ts";
import { InvalidRequest } from "./errors.ts";
import { type Call, type Claims, DTYPES, type Op } from "./op.ts";
import { ATTENTION, COMMON_FEATURES } from "./ops_attention.ts";
import { BLOCKS } from "./ops_blocks.ts";
import { LINEAR } from "./ops_linear.ts";
import { POSITIONS } from "./ops_positions.ts";
import type { Tensors } from "./safetensors.ts";

/** What a `run` or `bench` request says about its op. */
export interface OpRequest {
  readonly op?: unknown;
  readonly variant?: unknown;
  readonly config?: unknown;
  readonly want?: unknown;
  /** Where files that a script names by relative paths are, beside this one. */
  readonly outputs?: unknown;
}

const CACHE: Claims = {
  variants: ["naive"],
  dtypes: DTYPES,
  features: [
    ...COMMON_FEATURES,
    ...["contiguous", "rotating", "paged", "quantised", "latent", "cross"],
    ...[
      "grow",
      "append",
      "append_lengths",
      "append_padding",
      "tokens",
      "attend",
      "attend_lse",
      "append_attend",
    ],
    ...["truncate", "reset", "read", "codes", "positions", "reorder", "fork", "drop", "evict", "shift"],
    ...["per_head", "rope_at", "track", "tracked", "key_groups", "budget_list"],
    ...["evict_window", "evict_heavy_hitters", "evict_snapkv", "evict_key_norm"],
    ...["save", "load", "stats", "rope", "f16", "bf16", "int8", "int4", "fp8_e4m3", "zero_point", "group"],
  ],
};

const ALL: Readonly<Record<string, Op>> = {
  ...ATTENTION,
  kv_cache: {
    claims: CACHE,
    prepare: (_, config, tensors, want, outputs) => prepareCache(config, tensors, want, outputs),
  },
  ...POSITIONS,
  ...LINEAR,
  ...BLOCKS,
};

/** The claims of the answer to `start`. */
export const OPS: Readonly<Record<string, Claims>> = Object.fromEntries(
  Object.entries(ALL).map(([name, { claims }]) => [name, claims]),
);

/** @throws InvalidRequest, and the library's errors. */
export function prepare(request: OpRequest, tensors: Tensors): Call {
  const name = text("op", request.op);
  const op = Object.hasOwn(ALL, name) ? ALL[name]! : null;
  if (op === null) throw new Unsupported(`op.${name}`);
  const variant = text("variant", request.variant ?? op.claims.variants[0]);
  if (!op.claims.variants.includes(variant)) throw new Unsupported(`variant.${variant}`);
  const config = request.config ?? {};
  if (typeof config !== "object" || Array.isArray(config)) {
    throw new InvalidRequest(`config: expected an object, got ${JSON.stringify(config)}`);
  }
  const want = request.want == null ? null : names(request.want);
  return op.prepare(variant, nearby(config as Config), tensors, want, request.outputs);
}

function text(name: string, value: unknown): string {
  if (typeof value === "string") return value;
  throw new InvalidRequest(`${name}: expected a name, got ${JSON.stringify(value)}`);
}

function names(want: unknown): string[] {
  if (Array.isArray(want) && want.every((name) => typeof name === "string")) return want;
  throw new InvalidRequest(`want: expected a list of names, got ${JSON.stringify(want)}`);
}
