/** What pages need. */

import type { AppendOptions } from "./cache.ts";
import { ensure, requireIds, requireInteger } from "./checks.ts";
import { checkCache, requireNumbers } from "./checks_cache.ts";
import { CapacityExceeded } from "./errors.ts";
import type { PagePool } from "./page_pool.ts";
import type { FloatDtype } from "./tensor.ts";

export function checkPool<T extends FloatDtype>(fn: string, pool: PagePool<T>): void {
  requireInteger(fn, "numPages", pool.numPages, 0);
  requireInteger(fn, "pageSize", pool.pageSize, 1);
  checkCache(fn, { ...pool, batch: 0 });
  const { numPages, pageSize, numKvHeads, headDim, valueDim } = pool;
  requireNumbers(fn, "numPages", numPages, pageSize, numKvHeads, Math.max(headDim, valueDim));
}

/** (B, T), any numbers. */
export function checkTokens(fn: string, { tokens }: AppendOptions, shape: readonly [number, number]): void {
  if (tokens != null) requireIds(fn, "tokens", tokens, shape, -Infinity, Infinity);
}

export function checkPages(fn: string, needed: number, free: number): void {
  ensure(needed <= free, CapacityExceeded, fn, "k", `at most ${free} more pages`, needed);
}
