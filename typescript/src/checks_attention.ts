/** What attention over queries, keys and values must satisfy, wherever it stands. */

import {
  type AnyTensor,
  ensure,
  isSize,
  requireBoolean,
  requireBroadcast,
  requireDtype,
  requireFinite,
  requireFloat,
  requireFloats,
  requireInteger,
  requireLengths,
  requireObject,
  requirePositive,
  requireRank,
  requireShape,
  requireSize,
} from "./checks.ts";
import type { Dropout } from "./dropout.ts";
import { InvalidConfig, ShapeMismatch } from "./errors.ts";
import type { Mask } from "./masks.ts";
import type { AttentionOptions, SdpaOptions } from "./sdpa.ts";
import type { Lengths } from "./tensor.ts";
import { dtypeOf, sizes4, toNumbers } from "./tensor.ts";
import type { VarlenOptions } from "./varlen.ts";

export function checkSoftmax(fn: string, x: AnyTensor): void {
  requireFloat(fn, "x", x);
  ensure(x.shape.length >= 1, ShapeMismatch, fn, "x", "at least one axis", "rank 0");
}

/** A mask for a table of these sizes. */
export function checkVisible(
  fn: string,
  mask: Mask,
  sizes: { readonly B: number; readonly Hq: number; readonly Tq: number; readonly Tk: number },
): void {
  for (const [name, n] of Object.entries(sizes)) requireInteger(fn, name, n, 0);
  checkMask(fn, mask, [sizes.B, sizes.Hq, sizes.Tq, sizes.Tk]);
}

/** Against the shape (B, Hq, Tq, Tk) that the mask is asked for. */
function checkMask(fn: string, mask: Mask, shape: readonly [number, number, number, number]): void {
  const { keep, causal, window, kvLengths, qOffset } = mask;
  const [B, , , Tk] = shape;
  if (keep != null) {
    requireDtype(fn, "mask", keep, "bool");
    requireBroadcast(fn, "mask", keep, shape);
  }
  if (causal != null) requireBoolean(fn, "causal", causal);
  if (window != null) {
    const pair = Array.isArray(window) && window.length === 2;
    ensure(pair, InvalidConfig, fn, "window", "a pair [left, right]", window);
    for (const side of window) {
      const good = side == null || isSize(side, 0);
      ensure(good, InvalidConfig, fn, "window", "null or an integer >= 0 on each side", window);
    }
  }
  if (kvLengths != null) requireLengths(fn, "kvLengths", kvLengths, B, 0, Tk);
  if (typeof qOffset === "object" && qOffset !== null) {
    requireLengths(fn, "qOffset", qOffset, B, -Infinity, Infinity);
  } else if (qOffset != null) {
    requireInteger(fn, "qOffset", qOffset);
  }
}

/** q (B, Hq, Tq, D), k (B, Hkv, Tk, D) and v (B, Hkv, Tk, Dv) that fit together. */
export function checkHeads(fn: string, q: AnyTensor, k: AnyTensor, v: AnyTensor): void {
  requireFloats(fn, { q, k, v });
  requireRank(fn, "q", q, 4, "(B, Hq, Tq, D)");
  requireRank(fn, "k", k, 4, "(B, Hkv, Tk, D)");
  requireRank(fn, "v", v, 4, "(B, Hkv, Tk, Dv)");
  const [B, Hq, , D] = sizes4(q);
  const [kB, Hkv, Tk, kD] = sizes4(k);
  const [vB, vH, vT] = sizes4(v);
  ensure(D >= 1, ShapeMismatch, fn, "q", "a head size of at least 1", D);
  requireSize(fn, "k", "batch", kB, B, "q");
  requireSize(fn, "v", "batch", vB, B, "q");
  requireSize(fn, "k", "head size", kD, D, "q");
  ensure(vH === Hkv, ShapeMismatch, fn, "v", `${Hkv} heads as in k`, vH);
  requireSize(fn, "v", "length", vT, Tk, "k");
  checkGroups(fn, Hq, Hkv);
}

export function checkGroups(fn: string, Hq: number, Hkv: number): void {
  const divides = Hkv === 0 ? Hq === 0 : Hq % Hkv === 0;
  ensure(divides, ShapeMismatch, fn, "q", `a multiple of the ${Hkv} key/value heads`, `${Hq} heads`);
}

export function checkSdpa(fn: string, q: AnyTensor, k: AnyTensor, v: AnyTensor, options: SdpaOptions): void {
  const { sinks } = options;
  checkHeads(fn, q, k, v);
  const [B, Hq, Tq] = sizes4(q);
  checkAttention(fn, options, [B, Hq, Tq, sizes4(k)[2]], dtypeOf(q));
  if (sinks != null) {
    requireDtype(fn, "sinks", sinks, dtypeOf(q));
    requireShape(fn, "sinks", sinks, [Hq]);
  }
}

/** Options for scores (B, Hq, Tq, Tk) of that type. */
export function checkAttention(
  fn: string,
  options: AttentionOptions,
  shape: readonly [number, number, number, number],
  dtype: string,
): void {
  const { mask, bias, dropout } = options;
  checkScores(fn, options);
  checkMask(fn, mask ?? {}, shape);
  if (bias != null) {
    requireDtype(fn, "bias", bias, dtype);
    requireBroadcast(fn, "bias", bias, shape);
  }
  if (dropout != null) checkDropoutOptions(fn, dropout);
}

function checkScores(fn: string, { scale, softcap }: AttentionOptions): void {
  if (scale != null) requireFinite(fn, "scale", scale);
  if (softcap != null) requirePositive(fn, "softcap", softcap);
}

/** No element is counted beyond this. */
const FARTHEST = 2 ** 62;

/** A seed is an integer that a double holds exactly. */
function checkDropoutOptions(fn: string, dropout: Dropout): void {
  requireObject(fn, "dropout", dropout);
  const { p, seed } = dropout;
  const chance = typeof p === "number" && p >= 0 && p <= 1;
  ensure(chance, InvalidConfig, fn, "p", "a number from 0 to 1", p);
  const good = Number.isSafeInteger(seed) && seed >= 0;
  ensure(good, InvalidConfig, fn, "seed", "an integer from 0 to 2^53 - 1", seed);
}

export function checkDropout(fn: string, x: AnyTensor, options: Dropout, offset: number): void {
  requireFloat(fn, "x", x);
  checkDropoutOptions(fn, options);
  const good = isSize(offset, 0) && offset <= FARTHEST;
  ensure(good, InvalidConfig, fn, "offset", "an integer from 0 to 2^62", offset);
}

/** Two states (..., Dv) with their log-sum-exps (...), which are wide also where the outputs are half. */
export function checkMerge(
  fn: string,
  aOutput: AnyTensor,
  aLse: AnyTensor,
  bOutput: AnyTensor,
  bLse: AnyTensor,
): void {
  requireFloats(fn, { aOutput, bOutput });
  const wide = dtypeOf(aOutput) === "float64" ? "float64" : "float32";
  requireDtype(fn, "aLse", aLse, wide);
  requireDtype(fn, "bLse", bLse, wide);
  ensure(aOutput.shape.length >= 1, ShapeMismatch, fn, "aOutput", "at least one axis", "rank 0");
  requireShape(fn, "bOutput", bOutput, aOutput.shape);
  requireShape(fn, "aLse", aLse, aOutput.shape.slice(0, -1));
  requireShape(fn, "bLse", bLse, aOutput.shape.slice(0, -1));
}

export function checkVarlen(
  fn: string,
  q: AnyTensor,
  k: AnyTensor,
  v: AnyTensor,
  cuSeqlensQ: Lengths,
  cuSeqlensK: Lengths,
  options: VarlenOptions,
): void {
  requireFloats(fn, { q, k, v });
  requireRank(fn, "q", q, 3, "(Nq, Hq, D)");
  requireRank(fn, "k", k, 3, "(Nk, Hkv, D)");
  requireRank(fn, "v", v, 3, "(Nk, Hkv, Dv)");
  const [Nq, Hq, D] = q.shape as [number, number, number];
  const [Nk, Hkv, kD] = k.shape as [number, number, number];
  ensure(D >= 1, ShapeMismatch, fn, "q", "a head size of at least 1", D);
  requireSize(fn, "k", "head size", kD, D, "q");
  requireSize(fn, "v", "length", v.shape[0]!, Nk, "k");
  ensure(v.shape[1] === Hkv, ShapeMismatch, fn, "v", `${Hkv} heads as in k`, v.shape[1]);
  checkGroups(fn, Hq, Hkv);
  const S = checkBoundaries(fn, "cuSeqlensQ", cuSeqlensQ, Nq);
  const kS = checkBoundaries(fn, "cuSeqlensK", cuSeqlensK, Nk);
  ensure(kS === S, ShapeMismatch, fn, "cuSeqlensK", `${S + 1} values as in cuSeqlensQ`, kS + 1);
  const { causal, window, qOffset } = options;
  checkScores(fn, options);
  checkMask(fn, { causal, window, qOffset }, [S, Hq, Nq, Nk]);
}

/** Where sequences begin and end in N rows, (S + 1,): how many there are. */
function checkBoundaries(fn: string, argument: string, boundaries: Lengths, N: number): number {
  const isList = Array.isArray(boundaries);
  const size = isList ? boundaries.length : (boundaries as AnyTensor).data?.length;
  requireLengths(fn, argument, boundaries, Math.max(size, 1), -Infinity, Infinity);
  const ends = toNumbers(boundaries);
  const good = ends[0] === 0 && ends.at(-1) === N && ends.every((end, s) => s === 0 || end >= ends[s - 1]!);
  ensure(good, InvalidConfig, fn, argument, `integers that rise from 0 to ${N}`, ends);
  return ends.length - 1;
}
