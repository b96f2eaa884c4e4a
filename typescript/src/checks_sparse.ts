/** What sparse patterns and attention along them must satisfy. */

import {
  type AnyTensor,
  ensure,
  isSize,
  requireBoolean,
  requireDtype,
  requireFinite,
  requireInteger,
  requireObject,
  requireOneOf,
  requireShape,
} from "./checks.ts";
import { checkHeads } from "./checks_attention.ts";
import { InvalidConfig } from "./errors.ts";
import type { SparseOptions } from "./sparse.ts";
import type { SparsePattern } from "./sparse_patterns.ts";
import { sizes4 } from "./tensor.ts";

export function checkSparse(
  fn: string,
  q: AnyTensor,
  k: AnyTensor,
  v: AnyTensor,
  pattern: SparsePattern,
  { scale, causal }: SparseOptions,
): void {
  checkHeads(fn, q, k, v);
  if (scale != null) requireFinite(fn, "scale", scale);
  if (causal != null) requireBoolean(fn, "causal", causal);
  checkPattern(fn, pattern, sizes4(q)[2], sizes4(k)[2]);
}

export function checkSparseMask(
  fn: string,
  pattern: SparsePattern,
  Tq: number,
  Tk: number,
  causal: boolean,
): void {
  requireInteger(fn, "Tq", Tq, 0);
  requireInteger(fn, "Tk", Tk, 0);
  requireBoolean(fn, "causal", causal);
  checkPattern(fn, pattern, Tq, Tk);
}

/** The integers that each pattern needs, and the least that each may be. */
const SIZES: Readonly<Record<string, Readonly<Record<string, number>>>> = {
  window: { left: 0, right: 0 },
  dilated: { left: 0, right: 0, dilation: 1 },
  strided: { stride: 1 },
  fixed: { stride: 1, summary: 0 },
  global: { left: 0, right: 0 },
  bigbird: { block: 1, window: 0, global: 0, random: 0, seed: 0 },
  blocks: { block: 1 },
};

function checkPattern(fn: string, pattern: SparsePattern, Tq: number, Tk: number): void {
  requireObject(fn, "pattern", pattern);
  requireOneOf(fn, "type", pattern.type, Object.keys(SIZES));
  const given = pattern as unknown as Readonly<Record<string, unknown>>;
  for (const [name, least] of Object.entries(SIZES[pattern.type]!)) {
    requireInteger(fn, name, given[name], least);
  }
  if (pattern.type === "fixed") {
    const { stride, summary } = pattern;
    ensure(summary <= stride, InvalidConfig, fn, "summary", `an integer from 0 to ${stride}`, summary);
  } else if (pattern.type === "global") {
    const { tokens } = pattern;
    const good = Array.isArray(tokens) && tokens.every((token) => isSize(token, 0));
    ensure(good, InvalidConfig, fn, "tokens", "a list of integers >= 0", tokens);
  } else if (pattern.type === "bigbird") {
    const { seed } = pattern;
    ensure(Number.isSafeInteger(seed), InvalidConfig, fn, "seed", "an integer from 0 to 2^53 - 1", seed);
  } else if (pattern.type === "blocks") {
    const { block, mask } = pattern;
    ensure(mask != null, InvalidConfig, fn, "mask", "a tensor for the pattern blocks", "nothing");
    requireDtype(fn, "mask", mask, "bool");
    requireShape(fn, "mask", mask, [Math.ceil(Tq / block), Math.ceil(Tk / block)]);
  }
}
