/** From the object `policy` of an evict step to the library's. */

import type { Policy } from "../src/index.ts";
import { Unsupported } from "../src/index.ts";
import { type Config, required } from "./config.ts";
import { InvalidRequest } from "./errors.ts";
import type { Tensors } from "./safetensors.ts";

const POLICIES: readonly string[] = ["window", "heavy_hitters", "snapkv", "key_norm"];

/** A name that is none concerns the whole request. @throws Unsupported. */
export function checkKnown(policy: unknown): void {
  const name = isObject(policy) ? policy.type : null;
  if (typeof name === "string" && !POLICIES.includes(name)) throw new Unsupported(`policy.${name}`);
}

/** What is no object stays as it is, for the library to refuse. @throws InvalidRequest for a field that is missing. */
export function policyOf(policy: unknown, tensors: Tensors): Policy {
  if (!isObject(policy)) return policy as Policy;
  for (const name of ["type", "budget"]) {
    if (policy[name] == null) throw new InvalidRequest(`evict: policy: expected ${name}, got nothing`);
  }
  if (policy.type !== "snapkv") return policy as unknown as Policy;
  return { ...policy, q: required(tensors, policy.q) } as unknown as Policy;
}

function isObject(value: unknown): value is Config {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
