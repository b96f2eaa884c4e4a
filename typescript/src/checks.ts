/**
 * What a call must satisfy, tested once at the edge; the algorithms behind it trust their arguments.
 *
 * Every message names the function, the argument, what was expected and what came. Types are tested as well:
 * the caller may be plain JavaScript. This module has what all checks are made of; those of one kind of op
 * stand together in the modules `checks_....ts`.
 */

import { type AttentionError, DtypeMismatch, InvalidConfig, ShapeMismatch } from "./errors.ts";
import type { IntTensor, Lengths, Tensor, TensorArray } from "./tensor.ts";
import { dtypeOf, FLOATS, sizeOf, toNumbers } from "./tensor.ts";

export type AnyTensor = Tensor<TensorArray>;

/** Tensors by the name of their argument; what is absent is not tested. */
export type Named = Readonly<Record<string, AnyTensor | null | undefined>>;

export function requireFloat(fn: string, argument: string, x: AnyTensor): void {
  ensure(FLOATS.includes(dtypeOf(x)), DtypeMismatch, fn, argument, FLOATS.join(" or "), dtypeOf(x));
  requireData(fn, argument, x);
}

export function requireDtype(fn: string, argument: string, x: AnyTensor, dtype: string): void {
  ensure(dtypeOf(x) === dtype, DtypeMismatch, fn, argument, dtype, dtypeOf(x));
  requireData(fn, argument, x);
}

/** The first is a float tensor, and the others have its type. */
export function requireFloats(fn: string, tensors: Named): void {
  let dtype: string | null = null;
  for (const [argument, x] of Object.entries(tensors)) {
    if (x == null) continue;
    if (dtype === null) requireFloat(fn, argument, x);
    else requireDtype(fn, argument, x, dtype);
    dtype ??= dtypeOf(x);
  }
}

/** The array holds just what the shape says. */
function requireData(fn: string, argument: string, x: AnyTensor): void {
  const { data, shape } = x;
  const sizes = Array.isArray(shape) && shape.every((n) => isSize(n, 0));
  ensure(sizes, ShapeMismatch, fn, argument, "a shape of integers >= 0", shape);
  const whole = data.length === sizeOf(shape);
  const expected = `${sizeOf(shape)} elements for the shape ${show(shape)}`;
  ensure(whole, ShapeMismatch, fn, argument, expected, data.length);
}

export function requireRank(fn: string, argument: string, x: AnyTensor, rank: number, letters: string): void {
  ensure(x.shape.length === rank, ShapeMismatch, fn, argument, `rank ${rank} ${letters}`, x.shape);
}

export function requireShape(fn: string, argument: string, x: AnyTensor, shape: readonly number[]): void {
  const same = x.shape.length === shape.length && shape.every((n, axis) => n === x.shape[axis]);
  ensure(same, ShapeMismatch, fn, argument, `shape ${show(shape)}`, x.shape);
}

/** One size of a tensor; `like` says where the expected one comes from. */
export function requireSize(
  fn: string,
  argument: string,
  what: string,
  got: number,
  expected: number,
  like: string,
): void {
  ensure(got === expected, ShapeMismatch, fn, argument, `${what} ${expected} as in ${like}`, got);
}

/** Right-aligned: every axis is the target's or 1. */
export function requireBroadcast(
  fn: string,
  argument: string,
  x: AnyTensor,
  target: readonly number[],
): void {
  const skipped = target.length - x.shape.length;
  const fits = skipped >= 0 && x.shape.every((n, axis) => n === 1 || n === target[axis + skipped]);
  ensure(fits, ShapeMismatch, fn, argument, `a shape that broadcasts to ${show(target)}`, x.shape);
}

/** Weights (heads·n, width): the head size n. */
export function requireRows(
  fn: string,
  argument: string,
  w: AnyTensor,
  heads: number,
  width: number,
): number {
  requireRank(fn, argument, w, 2, "(out, in)");
  const [rows, columns] = w.shape as [number, number];
  ensure(columns === width, ShapeMismatch, fn, argument, `${width} columns`, columns);
  ensure(rows % heads === 0, ShapeMismatch, fn, argument, `rows in ${heads} equal blocks`, rows);
  return rows / heads;
}

/** int64 or a plain list, (B,), every value from `least` to `most`. */
export function requireLengths(
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

/** int64 of this shape, every value from `least` to `most`. */
export function requireIds(
  fn: string,
  argument: string,
  ids: IntTensor,
  shape: readonly number[],
  least: number,
  most: number,
): void {
  requireDtype(fn, argument, ids, "int64");
  requireShape(fn, argument, ids, shape);
  const wrong = ids.data.find((n) => n < least || n > most);
  ensure(wrong === undefined, InvalidConfig, fn, argument, `integers from ${least} to ${most}`, wrong);
}

export function requireInteger(fn: string, argument: string, n: unknown, least: number = -Infinity): void {
  const expected = least === -Infinity ? "an integer" : `an integer >= ${least}`;
  ensure(isSize(n, least), InvalidConfig, fn, argument, expected, n);
}

export function requireFinite(fn: string, argument: string, n: unknown): void {
  ensure(Number.isFinite(n), InvalidConfig, fn, argument, "a finite number", n);
}

export function requirePositive(fn: string, argument: string, n: unknown): void {
  const good = Number.isFinite(n) && (n as number) > 0;
  ensure(good, InvalidConfig, fn, argument, "a finite number > 0", n);
}

export function requireBoolean(fn: string, argument: string, value: unknown): void {
  ensure(typeof value === "boolean", InvalidConfig, fn, argument, "a boolean", value);
}

export function requireOneOf(fn: string, argument: string, name: unknown, names: readonly string[]): void {
  ensure(names.includes(name as string), InvalidConfig, fn, argument, names.join(" or "), name);
}

/** An object of options, not a number or a list. */
export function requireObject(fn: string, argument: string, value: unknown): void {
  const good = typeof value === "object" && value !== null && !Array.isArray(value);
  ensure(good, InvalidConfig, fn, argument, "an object", value);
}

export function isSize(n: unknown, least: number): n is number {
  return Number.isInteger(n) && (n as number) >= least;
}

export function ensure(
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
export function show(value: unknown): string {
  if (Array.isArray(value)) return `(${value.map(show).join(", ")})`;
  return String(value);
}
