/** What the ops of positions must satisfy. */

import {
  type AnyTensor,
  ensure,
  requireBoolean,
  requireDtype,
  requireFloat,
  requireFloats,
  requireIds,
  requireInteger,
  requireObject,
  requireOneOf,
  requirePositive,
  requireRank,
  requireShape,
} from "./checks.ts";
import { InvalidConfig, ShapeMismatch } from "./errors.ts";
import type { RelativeBiasOptions } from "./relative_bias.ts";
import { positionsOf, type Rope, type RopeOptions } from "./rope.ts";
import { DEFAULTS, type RopeScaling } from "./rope_scaling.ts";
import type { SinusoidalOptions } from "./sinusoidal.ts";
import type { IntTensor } from "./tensor.ts";
import { dtypeOf, sizes3, sizes4 } from "./tensor.ts";

/** x (B, H, T, D). */
export function checkRope(fn: string, x: AnyTensor, options: RopeOptions): void {
  requireFloat(fn, "x", x);
  requireRank(fn, "x", x, 4, "(B, H, T, D)");
  const [B, , T, D] = sizes4(x);
  requireObject(fn, "options", options);
  checkRotation(fn, options, "x", D);
  checkPositions(fn, options, [B, T]);
  checkTables(fn, options, dtypeOf(x), B, T, options.rotaryDim ?? D);
}

/** How channels turn, against the D channels of `argument`. */
export function checkRotation(fn: string, options: Rope, argument: string, D: number): void {
  const { base, interleaved, rotaryDim, scaling } = options;
  requireObject(fn, "rope", options);
  if (base != null) requirePositive(fn, "base", base);
  if (interleaved != null) requireBoolean(fn, "interleaved", interleaved);
  if (rotaryDim == null) {
    const even = D % 2 === 0 && D >= 2;
    ensure(even, ShapeMismatch, fn, argument, "an even head size, or a rotaryDim", D);
  } else {
    const good = Number.isInteger(rotaryDim) && rotaryDim % 2 === 0 && 2 <= rotaryDim && rotaryDim <= D;
    ensure(good, InvalidConfig, fn, "rotaryDim", `an even integer from 2 to ${D}`, rotaryDim);
  }
  if (scaling != null) checkScaling(fn, scaling, base ?? 10000, rotaryDim ?? D);
}

/** One position for each token (B, T), or an offset. */
export function checkPositions(
  fn: string,
  { positions, offset }: { positions?: IntTensor | null; offset?: number | null },
  shape: readonly [number, number],
): void {
  if (offset != null) requireInteger(fn, "offset", offset);
  if (positions == null) return;
  ensure(offset == null, InvalidConfig, fn, "offset", "nothing beside positions", offset);
  requireIds(fn, "positions", positions, shape, -Infinity, Infinity);
}

/** cos and sin (P, R/2), for every position that is asked for. */
function checkTables(fn: string, options: RopeOptions, dtype: string, B: number, T: number, R: number): void {
  const { cos, sin, base, scaling, positions, offset } = options;
  if (cos == null && sin == null) return;
  ensure(cos != null, InvalidConfig, fn, "cos", "a table beside sin", "nothing");
  ensure(sin != null, InvalidConfig, fn, "sin", "a table beside cos", "nothing");
  ensure(base == null, InvalidConfig, fn, "base", "nothing beside tables", base);
  ensure(scaling == null, InvalidConfig, fn, "scaling", "nothing beside tables", "a scaling");
  requireDtype(fn, "cos", cos!, dtype);
  requireDtype(fn, "sin", sin!, dtype);
  requireRank(fn, "cos", cos!, 2, "(P, R/2)");
  const P = cos!.shape[0]!;
  requireShape(fn, "cos", cos!, [P, R / 2]);
  requireShape(fn, "sin", sin!, [P, R / 2]);
  const all = Array.from({ length: B }, (_, b) => positionsOf(b, T, positions, offset)).flat();
  const outside = all.find((p) => p < 0 || p >= P);
  ensure(outside === undefined, InvalidConfig, fn, "positions", `positions from 0 to ${P - 1}`, outside);
}

/** What each scaling needs. */
const NEEDED: Readonly<Record<string, readonly string[]>> = {
  linear: ["factor"],
  dynamic: ["factor", "originalLength"],
  yarn: ["factor", "originalLength"],
  llama3: ["factor", "originalLength"],
  longrope: ["shortFactor", "longFactor", "originalLength"],
};

const POSITIVE = ["factor", "attentionFactor", "betaFast", "betaSlow", "lowFreqFactor", "highFreqFactor"];

function checkScaling(fn: string, scaling: RopeScaling, base: number, R: number): void {
  requireObject(fn, "scaling", scaling);
  requireOneOf(fn, "type", scaling.type, Object.keys(NEEDED));
  const given = scaling as unknown as Readonly<Record<string, unknown>>;
  for (const name of NEEDED[scaling.type]!) {
    const expected = `a value for the scaling ${scaling.type}`;
    ensure(given[name] != null, InvalidConfig, fn, name, expected, "nothing");
  }
  for (const name of POSITIVE) if (given[name] != null) requirePositive(fn, name, given[name]);
  for (const name of ["originalLength", "length"]) {
    if (given[name] != null) requireInteger(fn, name, given[name], 1);
  }
  if (scaling.type === "yarn") {
    if (scaling.truncate != null) requireBoolean(fn, "truncate", scaling.truncate);
    ensure(base !== 1, InvalidConfig, fn, "base", "another one than 1 with yarn", base);
  } else if (scaling.type === "llama3") {
    const low = scaling.lowFreqFactor ?? DEFAULTS.llama3.lowFreqFactor;
    const high = scaling.highFreqFactor ?? DEFAULTS.llama3.highFreqFactor;
    ensure(low < high, InvalidConfig, fn, "highFreqFactor", `more than lowFreqFactor = ${low}`, high);
  } else if (scaling.type === "longrope") {
    for (const name of ["shortFactor", "longFactor"]) {
      const list = given[name];
      const good = Array.isArray(list) && list.length === R / 2;
      ensure(good, InvalidConfig, fn, name, `a list of ${R / 2} numbers`, list);
      for (const n of list as unknown[]) requirePositive(fn, name, n);
    }
    const { originalLength, factor, attentionFactor } = scaling; // ln L0 is a divisor
    const divides =
      originalLength > 1 || attentionFactor != null || (factor ?? DEFAULTS.longrope.factor) <= 1;
    ensure(divides, InvalidConfig, fn, "originalLength", "an integer >= 2 with a factor", originalLength);
  }
}

/** x (B, T, C). */
export function checkSinusoidal(fn: string, x: AnyTensor, options: SinusoidalOptions): void {
  requireFloat(fn, "x", x);
  requireRank(fn, "x", x, 3, "(B, T, C)");
  const [B, T, C] = sizes3(x);
  ensure(C % 2 === 0, ShapeMismatch, fn, "x", "an even width", C);
  if (options.base != null) requirePositive(fn, "base", options.base);
  if (options.halves != null) requireBoolean(fn, "halves", options.halves);
  checkPositions(fn, options, [B, T]);
}

export function checkAlibi(fn: string, scores: AnyTensor, qOffset: number): void {
  requireFloat(fn, "scores", scores);
  requireRank(fn, "scores", scores, 4, "(B, H, Tq, Tk)");
  requireInteger(fn, "qOffset", qOffset);
}

/** table (buckets, H): at least two buckets on each side. */
export function checkRelativeBias(
  fn: string,
  scores: AnyTensor,
  table: AnyTensor,
  options: RelativeBiasOptions,
): void {
  requireFloats(fn, { scores, table });
  requireRank(fn, "scores", scores, 4, "(B, H, Tq, Tk)");
  requireRank(fn, "table", table, 2, "(buckets, H)");
  const rows = table.shape[0]!;
  requireShape(fn, "table", table, [rows, sizes4(scores)[1]]);
  const { qOffset, bidirectional, maxDistance } = options;
  if (qOffset != null) requireInteger(fn, "qOffset", qOffset);
  if (bidirectional != null) requireBoolean(fn, "bidirectional", bidirectional);
  const both = bidirectional ?? true;
  const enough = both ? rows >= 4 && rows % 2 === 0 : rows >= 2;
  ensure(enough, ShapeMismatch, fn, "table", both ? "an even number of rows >= 4" : "rows >= 2", rows);
  const e = Math.floor((both ? rows / 2 : rows) / 2);
  requireInteger(fn, "maxDistance", maxDistance ?? 128, e + 1);
}
