/** What quantising needs, in a cache or by itself. */

import {
  type AnyTensor,
  ensure,
  requireBoolean,
  requireFloat,
  requireInteger,
  requireOneOf,
} from "./checks.ts";
import { InvalidConfig, ShapeMismatch } from "./errors.ts";
import type { QuantFormat, QuantiseOptions } from "./quantise.ts";
import type { Tensor } from "./tensor.ts";

const FORMATS: readonly QuantFormat[] = ["f16", "bf16", "int8", "int4", "fp8_e4m3"];

export function isInteger(format: QuantFormat): boolean {
  return format === "int8" || format === "int4";
}

export function checkFormat(fn: string, { format, group, zeroPoint }: QuantiseOptions): void {
  requireOneOf(fn, "format", format, FORMATS);
  if (group != null) requireInteger(fn, "group", group, 1);
  if (zeroPoint != null) requireBoolean(fn, "zeroPoint", zeroPoint);
  const fits = zeroPoint !== true || isInteger(format);
  ensure(fits, InvalidConfig, fn, "zeroPoint", `nothing beside the format ${format}`, zeroPoint);
}

/** Only integers have a scale for a group of n tokens to share. */
export function checkKeyGroups(fn: string, n: number, format: QuantFormat): void {
  requireInteger(fn, "keyGroups", n, 1);
  const fits = isInteger(format);
  ensure(fits, InvalidConfig, fn, "keyGroups", `nothing beside the format ${format}`, n);
}

/** x (..., n). */
export function checkQuantise(fn: string, x: AnyTensor, options: QuantiseOptions): void {
  requireFloat(fn, "x", x);
  ensure(x.shape.length >= 1, ShapeMismatch, fn, "x", "at least one axis", "rank 0");
  checkFormat(fn, options);
}

export function checkFinite(fn: string, argument: string, { data }: Tensor<Float32Array>): void {
  const wrong = data.find((number) => !Number.isFinite(number));
  ensure(wrong === undefined, InvalidConfig, fn, argument, "finite numbers", wrong);
}

/** All numbers are finite, and so are the distances that became scales. */
export function checkRange(fn: string, values: Tensor<Float32Array>, scale: Tensor<Float32Array>): void {
  const infinite = (number: number) => !Number.isFinite(number);
  const wrong = values.data.find(infinite) ?? scale.data.find(infinite);
  ensure(wrong === undefined, InvalidConfig, fn, "x", "finite numbers, and finite distances", wrong);
}
