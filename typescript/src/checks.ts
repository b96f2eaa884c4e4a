/**
 * What a call must satisfy, tested once at the edge; the algorithms behind it trust their arguments.
 *
 * Every message names the function, the argument, what was expected and what came. Types are tested as well:
 * the caller may be plain JavaScript.
 */

import {
  type AttentionError,
  CapacityExceeded,
  DtypeMismatch,
  InvalidConfig,
  ShapeMismatch,
} from "./errors.ts";
import type { KVCache } from "./kv_cache.ts";
import type { Mask } from "./masks.ts";
import type { MultiHeadAttention } from "./mha.ts";
import type { AttentionOptions, SdpaOptions } from "./sdpa.ts";
import type { FloatDtype, Lengths, Tensor, TensorArray } from "./tensor.ts";
import { dtypeOf, sizeOf, sizes3, sizes4, toNumbers } from "./tensor.ts";

type AnyTensor = Tensor<TensorArray>;

const FLOATS = ["float32", "float64"];

export function checkSoftmax(fn: string, x: AnyTensor): void {
  requireFloat(fn, "x", x);
  ensure(x.shape.length >= 1, ShapeMismatch, fn, "x", "at least one axis", "rank 0");
}

/** Against the shape (B, Hq, Tq, Tk) that the mask is asked for. */
export function checkMask(fn: string, mask: Mask, shape: readonly [number, number, number, number]): void {
  const { keep, causal, window, kvLengths, qOffset } = mask;
  const [B, , , Tk] = shape;
  if (keep != null) {
    requireDtype(fn, "mask", keep, "bool");
    requireBroadcast(fn, "mask", keep, shape);
  }
  ensure(causal == null || typeof causal === "boolean", InvalidConfig, fn, "causal", "a boolean", causal);
  if (window != null) {
    const pair = Array.isArray(window) && window.length === 2;
    ensure(pair, InvalidConfig, fn, "window", "a pair [left, right]", window);
    for (const side of window) {
      const good = side == null || isSize(side, 0);
      ensure(good, InvalidConfig, fn, "window", "null or an integer >= 0 on each side", window);
    }
  }
  if (kvLengths != null) checkLengths(fn, "kvLengths", kvLengths, B, 0, Tk);
  if (typeof qOffset === "object" && qOffset !== null) {
    checkLengths(fn, "qOffset", qOffset, B, -Infinity, Infinity);
  } else if (qOffset != null) {
    ensure(Number.isInteger(qOffset), InvalidConfig, fn, "qOffset", "an integer", qOffset);
  }
}

export function checkSdpa(fn: string, q: AnyTensor, k: AnyTensor, v: AnyTensor, options: SdpaOptions): void {
  const { mask, bias, sinks } = options;
  requireFloat(fn, "q", q);
  const dtype = dtypeOf(q);
  requireDtype(fn, "k", k, dtype);
  requireDtype(fn, "v", v, dtype);
  requireRank(fn, "q", q, 4, "(B, Hq, Tq, D)");
  requireRank(fn, "k", k, 4, "(B, Hkv, Tk, D)");
  requireRank(fn, "v", v, 4, "(B, Hkv, Tk, Dv)");
  const [B, Hq, Tq, D] = sizes4(q);
  const [kB, Hkv, Tk, kD] = sizes4(k);
  const [vB, vH, vT] = sizes4(v);
  ensure(D >= 1, ShapeMismatch, fn, "q", "a head size of at least 1", D);
  ensure(kB === B, ShapeMismatch, fn, "k", `batch ${B} as in q`, kB);
  ensure(vB === B, ShapeMismatch, fn, "v", `batch ${B} as in q`, vB);
  ensure(kD === D, ShapeMismatch, fn, "k", `head size ${D} as in q`, kD);
  ensure(vH === Hkv, ShapeMismatch, fn, "v", `${Hkv} heads as in k`, vH);
  ensure(vT === Tk, ShapeMismatch, fn, "v", `length ${Tk} as in k`, vT);
  const divides = Hkv === 0 ? Hq === 0 : Hq % Hkv === 0;
  ensure(divides, ShapeMismatch, fn, "q", `a multiple of the ${Hkv} key/value heads`, `${Hq} heads`);
  checkOptions(fn, options);
  checkMask(fn, mask ?? {}, [B, Hq, Tq, Tk]);
  if (bias != null) {
    requireDtype(fn, "bias", bias, dtype);
    requireBroadcast(fn, "bias", bias, [B, Hq, Tq, Tk]);
  }
  if (sinks != null) {
    requireDtype(fn, "sinks", sinks, dtype);
    requireShape(fn, "sinks", sinks, [Hq]);
  }
}

function checkOptions(fn: string, { scale, softcap }: AttentionOptions): void {
  ensure(scale == null || Number.isFinite(scale), InvalidConfig, fn, "scale", "a finite number", scale);
  const good = softcap == null || (Number.isFinite(softcap) && softcap > 0);
  ensure(good, InvalidConfig, fn, "softcap", "a finite number > 0", softcap);
}

/** x (B, Tq, C) and context (B, Tk, Cc) against the weights of the layer, which are (out, in). */
export function checkMha(fn: string, x: AnyTensor, context: AnyTensor, layer: MultiHeadAttention): void {
  const { numHeads: Hq, numKvHeads: Hkv, wQ, wK, wV, wO } = layer;
  ensure(isSize(Hq, 1), InvalidConfig, fn, "numHeads", "an integer >= 1", Hq);
  const divides = isSize(Hkv, 1) && Hq % Hkv === 0;
  ensure(divides, InvalidConfig, fn, "numKvHeads", `an integer >= 1 that divides numHeads = ${Hq}`, Hkv);
  requireFloat(fn, "x", x);
  const dtype = dtypeOf(x);
  requireDtype(fn, "context", context, dtype);
  requireRank(fn, "x", x, 3, "(B, Tq, C)");
  requireRank(fn, "context", context, 3, "(B, Tk, Cc)");
  const [B, , C] = sizes3(x);
  const [contextB, , Cc] = sizes3(context);
  ensure(contextB === B, ShapeMismatch, fn, "context", `batch ${B} as in x`, contextB);
  for (const [name, w] of Object.entries({ wQ, wK, wV, wO })) {
    requireDtype(fn, name, w, dtype);
    requireRank(fn, name, w, 2, "(out, in)");
  }
  const D = checkRows(fn, "wQ", wQ, Hq, C);
  const kD = checkRows(fn, "wK", wK, Hkv, Cc);
  const Dv = checkRows(fn, "wV", wV, Hkv, Cc);
  ensure(kD === D, ShapeMismatch, fn, "wK", `${Hkv * D} rows (head size ${D} as in wQ)`, Hkv * kD);
  ensure(wO.shape[1] === Hq * Dv, ShapeMismatch, fn, "wO", `${Hq * Dv} columns`, wO.shape[1]);
  for (const name of ["Q", "K", "V", "O"] as const) {
    const b = layer[`b${name}`];
    if (b == null) continue;
    requireDtype(fn, `b${name}`, b, dtype);
    requireShape(fn, `b${name}`, b, layer[`w${name}`].shape.slice(0, 1));
  }
}

/** Weights (heads·n, width): the head size n. */
function checkRows(fn: string, name: string, w: AnyTensor, heads: number, width: number): number {
  const [rows, columns] = w.shape as [number, number];
  ensure(columns === width, ShapeMismatch, fn, name, `${width} columns`, columns);
  ensure(rows % heads === 0, ShapeMismatch, fn, name, `rows in ${heads} equal blocks`, rows);
  return rows / heads;
}

/** The sizes of a cache; a capacity may be absent. */
export function checkCache(fn: string, cache: KVCache<FloatDtype>): void {
  const { batch, numKvHeads, headDim, valueDim, capacity, dtype } = cache;
  ensure(isSize(batch, 0), InvalidConfig, fn, "batch", "an integer >= 0", batch);
  ensure(isSize(numKvHeads, 1), InvalidConfig, fn, "numKvHeads", "an integer >= 1", numKvHeads);
  ensure(isSize(headDim, 1), InvalidConfig, fn, "headDim", "an integer >= 1", headDim);
  ensure(isSize(valueDim, 0), InvalidConfig, fn, "valueDim", "an integer >= 0", valueDim);
  const bounded = capacity == null || isSize(capacity, 0);
  ensure(bounded, InvalidConfig, fn, "capacity", "null or an integer >= 0", capacity);
  ensure(FLOATS.includes(dtype), DtypeMismatch, fn, "dtype", FLOATS.join(" or "), dtype);
}

export function checkAppend(
  fn: string,
  k: AnyTensor,
  v: AnyTensor,
  lengths: Lengths | null | undefined,
  cache: KVCache<FloatDtype>,
): void {
  const { batch, numKvHeads, headDim, valueDim, dtype } = cache;
  requireDtype(fn, "k", k, dtype);
  requireDtype(fn, "v", v, dtype);
  requireRank(fn, "k", k, 4, "(B, Hkv, T, D)");
  const T = sizes4(k)[2];
  requireShape(fn, "k", k, [batch, numKvHeads, T, headDim]);
  requireShape(fn, "v", v, [batch, numKvHeads, T, valueDim]);
  if (lengths != null) checkLengths(fn, "lengths", lengths, batch, 0, T);
}

/** What the cache needs before it can align the queries; sdpa checks the rest. */
export function checkAttend(fn: string, q: AnyTensor, mask: Mask): void {
  requireFloat(fn, "q", q);
  requireRank(fn, "q", q, 4, "(B, Hq, Tq, D)");
  ensure(mask.kvLengths == null, InvalidConfig, fn, "kvLengths", "nothing: the cache has its own", "a value");
}

export function checkRoom(fn: string, needed: number, capacity: number | null): void {
  const fits = capacity === null || needed <= capacity;
  ensure(fits, CapacityExceeded, fn, "k", `at most ${capacity} positions`, needed);
}

/** One integer a row, from 0 to what the row holds. */
export function checkTruncate(fn: string, lengths: readonly number[], held: readonly number[]): void {
  const list = Array.isArray(lengths) && lengths.every(Number.isInteger);
  ensure(list, InvalidConfig, fn, "lengths", "a list of integers", lengths);
  ensure(
    lengths.length === held.length,
    ShapeMismatch,
    fn,
    "lengths",
    `${held.length} values`,
    lengths.length,
  );
  const good = lengths.every((n, b) => n >= 0 && n <= held[b]!);
  ensure(good, InvalidConfig, fn, "lengths", `integers from 0 to the lengths held, ${show(held)}`, lengths);
}

/** int64 or a plain list, (B,), every value from `least` to `most`. */
function checkLengths(
  fn: string,
  argument: string,
  lengths: Lengths,
  B: number,
  least: number,
  most: number,
): void {
  ensure(typeof lengths === "object", DtypeMismatch, fn, argument, "int64 or a list of integers", lengths);
  if ("data" in lengths) {
    requireDtype(fn, argument, lengths, "int64");
    requireShape(fn, argument, lengths, [B]);
  } else {
    ensure(lengths.length === B, ShapeMismatch, fn, argument, `${B} values`, lengths.length);
  }
  const values: readonly unknown[] = "data" in lengths ? toNumbers(lengths) : lengths;
  const good = values.every((n) => Number.isInteger(n) && least <= (n as number) && (n as number) <= most);
  ensure(good, InvalidConfig, fn, argument, `integers from ${least} to ${most}`, values);
}

function requireFloat(fn: string, argument: string, x: AnyTensor): void {
  ensure(FLOATS.includes(dtypeOf(x)), DtypeMismatch, fn, argument, FLOATS.join(" or "), dtypeOf(x));
  requireData(fn, argument, x);
}

function requireDtype(fn: string, argument: string, x: AnyTensor, dtype: string): void {
  ensure(dtypeOf(x) === dtype, DtypeMismatch, fn, argument, dtype, dtypeOf(x));
  requireData(fn, argument, x);
}

/** The array holds just what the shape says. */
function requireData(fn: string, argument: string, x: AnyTensor): void {
  const { data, shape } = x;
  const sizes = Array.isArray(shape) && shape.every((n) => isSize(n, 0));
  ensure(sizes, ShapeMismatch, fn, argument, "a shape of integers >= 0", shape);
  const whole = data.length === sizeOf(shape);
  ensure(
    whole,
    ShapeMismatch,
    fn,
    argument,
    `${sizeOf(shape)} elements for the shape ${show(shape)}`,
    data.length,
  );
}

function requireRank(fn: string, argument: string, x: AnyTensor, rank: number, letters: string): void {
  ensure(x.shape.length === rank, ShapeMismatch, fn, argument, `rank ${rank} ${letters}`, x.shape);
}

function requireShape(fn: string, argument: string, x: AnyTensor, shape: readonly number[]): void {
  const same = x.shape.length === shape.length && shape.every((n, axis) => n === x.shape[axis]);
  ensure(same, ShapeMismatch, fn, argument, `shape ${show(shape)}`, x.shape);
}

/** Right-aligned: every axis is the target's or 1. */
function requireBroadcast(fn: string, argument: string, x: AnyTensor, target: readonly number[]): void {
  const skipped = target.length - x.shape.length;
  const fits = skipped >= 0 && x.shape.every((n, axis) => n === 1 || n === target[axis + skipped]);
  ensure(fits, ShapeMismatch, fn, argument, `a shape that broadcasts to ${show(target)}`, x.shape);
}

function isSize(n: unknown, least: number): n is number {
  return Number.isInteger(n) && (n as number) >= least;
}

function ensure(
  condition: boolean,
  Kind: new (message: string) => AttentionError,
  fn: string,
  argument: string,
  expected: string,
  got: unknown,
): void {
  if (!condition) throw new Kind(`${fn}: ${argument}: expected ${expected}, got ${show(got)}`);
}

/** A value in a message: shapes as (2, 3), strings quoted only where they came from the caller. */
function show(value: unknown): string {
  if (Array.isArray(value)) return `(${value.map(show).join(", ")})`;
  return String(value);
}
