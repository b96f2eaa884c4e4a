/** What a policy must be before a cache forgets by it. */

import { ensure, requireInteger, requireObject, requireOneOf } from "./checks.ts";
import { checkAttend } from "./checks_cache.ts";
import { InvalidConfig, ShapeMismatch } from "./errors.ts";
import type { Policy } from "./eviction.ts";
import type { FloatDtype } from "./tensor.ts";

const POLICIES: readonly Policy["type"][] = ["window", "heavy_hitters", "snapkv", "key_norm"];

/** What the policy is for. */
interface Target {
  readonly batch: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly dtype: FloatDtype;
  /** L */
  readonly length: number;
  readonly track: boolean;
}

/** @param perHead whether every KV head has slots, and perhaps a budget, of its own. */
export function checkPolicy(fn: string, policy: Policy, cache: Target, perHead: boolean): void {
  requireObject(fn, "policy", policy);
  requireOneOf(fn, "type", policy.type, POLICIES);
  checkBudget(fn, policy, perHead ? cache.numKvHeads : null);
  if (policy.type === "heavy_hitters") {
    ensure(cache.track, InvalidConfig, fn, "policy", "a cache that tracks, for heavy_hitters", "another");
  }
  if (policy.type === "snapkv") {
    const { q, scale } = policy;
    const pool = policy.pool ?? 1;
    const odd = Number.isInteger(pool) && pool >= 1 && pool % 2 === 1;
    ensure(odd, InvalidConfig, fn, "pool", "an odd integer >= 1", pool);
    const { batch, numKvHeads, length, headDim } = cache;
    checkAttend(fn, q, { scale }, cache.dtype, [batch, numKvHeads, length, headDim]);
    ensure(q.shape[2]! >= 1, ShapeMismatch, fn, "q", "at least one query", q.shape[2]);
  }
}

/** @param heads how many budgets a list of them has; null: there is one for the row. */
function checkBudget(fn: string, policy: Policy, heads: number | null): void {
  const { budget } = policy;
  const { recent } = policy as { recent?: number | null };
  const sinks = policy.sinks ?? 0;
  requireInteger(fn, "sinks", sinks, 0);
  requireInteger(fn, "recent", recent ?? 0, 0);
  const none = policy.type !== "window" || recent == null;
  ensure(none, InvalidConfig, fn, "recent", "nothing for a window, whose last slots stay anyway", recent);
  if (Array.isArray(budget)) {
    ensure(heads !== null, InvalidConfig, fn, "budget", "one integer for all heads of a row", budget);
    ensure(budget.length === heads, ShapeMismatch, fn, "budget", `${heads} integers`, budget.length);
  }
  for (const n of (Array.isArray(budget) ? budget : [budget]) as number[]) {
    requireInteger(fn, "budget", n, 0);
    const protectedSlots = BigInt(sinks) + BigInt(recent ?? 0); // doubles would round far away
    const fits = n === 0 || protectedSlots <= BigInt(n);
    ensure(fits, InvalidConfig, fn, "budget", `at least sinks + recent = ${protectedSlots}, or 0`, n);
  }
}
