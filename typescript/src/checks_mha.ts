/** What layers of attention must satisfy. */

import type { Cache } from "./cache.ts";
import {
  type AnyTensor,
  ensure,
  isSize,
  requireBoolean,
  requireDtype,
  requireFinite,
  requireFloats,
  requireInteger,
  requireLengths,
  requireOneOf,
  requireRank,
  requireRows,
  requireShape,
  requireSize,
} from "./checks.ts";
import { checkAttention } from "./checks_attention.ts";
import { checkPositions, checkRotation } from "./checks_positions.ts";
import { InvalidConfig, ShapeMismatch } from "./errors.ts";
import type { MhaOptions, MultiHeadAttention } from "./mha.ts";
import type { MlaOptions, MultiHeadLatentAttention } from "./mla.ts";
import type { PackedWeights } from "./packed.ts";
import type { Rope } from "./rope.ts";
import { DEFAULTS, frequenciesOf, scaledFrequencies } from "./rope_scaling.ts";
import type { AttentionOptions } from "./sdpa.ts";
import { dtypeOf, sizes3 } from "./tensor.ts";

/** x (B, Tq, C) and context (B, Tk, Cc) against the weights of the layer, which are (out, in). */
export function checkMha(
  fn: string,
  x: AnyTensor,
  context: AnyTensor | null,
  layer: MultiHeadAttention,
  options: MhaOptions,
): void {
  const { numHeads: Hq, numKvHeads: Hkv, wQ, wK, wV, wO, bQ, bK, bV, bO, qNorm, kNorm, rope } = layer;
  checkNumbersOfHeads(fn, Hq, Hkv);
  requireFloats(fn, { x, context, wQ, wK, wV, wO, bQ, bK, bV, bO, qNorm, kNorm });
  const source = context ?? x;
  requireRank(fn, "x", x, 3, "(B, Tq, C)");
  requireRank(fn, "context", source, 3, "(B, Tk, Cc)");
  const [B, Tq, C] = sizes3(x);
  const [contextB, Tk, Cc] = sizes3(source);
  requireSize(fn, "context", "batch", contextB, B, "x");
  const D = requireRows(fn, "wQ", wQ, Hq, C);
  const kD = requireRows(fn, "wK", wK, Hkv, Cc);
  const Dv = requireRows(fn, "wV", wV, Hkv, Cc);
  ensure(D >= 1, ShapeMismatch, fn, "wQ", "a head size of at least 1", D);
  ensure(kD === D, ShapeMismatch, fn, "wK", `${Hkv * D} rows (head size ${D} as in wQ)`, Hkv * kD);
  requireRank(fn, "wO", wO, 2, "(out, in)");
  ensure(wO.shape[1] === Hq * Dv, ShapeMismatch, fn, "wO", `${Hq * Dv} columns`, wO.shape[1]);
  for (const name of ["Q", "K", "V", "O"] as const) {
    const b = layer[`b${name}`];
    if (b !== null) requireShape(fn, `b${name}`, b, layer[`w${name}`].shape.slice(0, 1));
  }
  if (qNorm !== null) requireShape(fn, "qNorm", qNorm, [D]);
  if (kNorm !== null) requireShape(fn, "kNorm", kNorm, [D]);
  checkEps(fn, "qkNormEps", layer.qkNormEps);
  if (rope !== null) {
    ensure(context === null, InvalidConfig, fn, "rope", "nothing beside a context", "a rope");
    checkRotation(fn, rope, "wQ", D);
  }
  const { positions, headMask } = options;
  if (rope === null)
    ensure(positions == null, InvalidConfig, fn, "positions", "nothing without a rope", "ids");
  checkPositions(fn, { positions, offset: rope?.offset }, [B, Tq]);
  if (headMask != null) {
    requireDtype(fn, "headMask", headMask, "bool");
    requireShape(fn, "headMask", headMask, [Hq]);
  }
  checkAttention(fn, options, [B, Hq, Tq, Tk], dtypeOf(x));
}

/** x (B, T, C) against the weights of the layer, and the cache against both; it finds out the sizes itself. */
export function checkDecode(
  fn: string,
  x: AnyTensor,
  layer: MultiHeadAttention,
  cache: Cache,
  { bias }: AttentionOptions,
): void {
  checkMha(fn, x, null, layer, {});
  requireDtype(fn, "x", x, cache.dtype);
  if (bias != null) requireDtype(fn, "bias", bias, cache.dtype);
  const { kind } = cache.description;
  ensure(
    kind !== "cross",
    InvalidConfig,
    fn,
    "cache",
    "one that can be gone on with",
    `a cache of kind ${kind}`,
  );
  const D = layer.wQ.shape[0]! / layer.numHeads;
  const [own, its] = [layer.rope, cache.rope ?? null].map((rope) => describeRope(rope, D));
  ensure(own === its, InvalidConfig, fn, "cache", `the rope ${own} as in the layer`, its);
}

/** With its defaults, and those of its scaling. */
function describeRope(rope: Rope | null | undefined, D: number): string {
  if (rope == null) return "null";
  const { interleaved, offset, scaling } = rope;
  const [base, R] = [rope.base ?? 10000, rope.rotaryDim ?? D];
  const given = Object.entries(scaling ?? {}).filter(([, value]) => value != null);
  const { attentionFactor } = scaledFrequencies(frequenciesOf(base, R), scaling ?? null, base, 0);
  const absent = scaling == null ? {} : { ...DEFAULTS[scaling.type], attentionFactor };
  const stretched = Object.entries({ ...absent, ...Object.fromEntries(given) }).sort();
  return JSON.stringify([base, interleaved ?? false, R, offset ?? 0, stretched]);
}

function checkNumbersOfHeads(fn: string, Hq: number, Hkv: number): void {
  requireInteger(fn, "numHeads", Hq, 1);
  const divides = isSize(Hkv, 1) && Hq % Hkv === 0;
  ensure(divides, InvalidConfig, fn, "numKvHeads", `an integer >= 1 that divides numHeads = ${Hq}`, Hkv);
}

/** wQkv ((Hq + 2·Hkv)·D, C) and its bias: what must hold before they can be taken apart. */
export function checkPacked(fn: string, weights: PackedWeights): void {
  const { wQkv, bQkv, packing, numHeads } = weights;
  const numKvHeads = weights.numKvHeads ?? numHeads;
  checkNumbersOfHeads(fn, numHeads, numKvHeads);
  requireOneOf(fn, "packing", packing ?? "blocks", ["blocks", "heads"]);
  requireFloats(fn, { wQkv, bQkv });
  requireRank(fn, "wQkv", wQkv, 2, "(out, in)");
  requireRows(fn, "wQkv", wQkv, numHeads + 2 * numKvHeads, wQkv.shape[1]!);
  if (bQkv != null) requireShape(fn, "bQkv", bQkv, wQkv.shape.slice(0, 1));
}

/** A small number under a root. */
export function checkEps(fn: string, argument: string, eps: number): void {
  requireFinite(fn, argument, eps);
  ensure(eps >= 0, InvalidConfig, fn, argument, "a number >= 0", eps);
}

/** x (B, T, C) against the weights of the layer. */
export function checkMla(
  fn: string,
  x: AnyTensor,
  layer: MultiHeadLatentAttention,
  { causal, kvLengths, scale }: MlaOptions,
): void {
  const { numHeads: H, wDq, qNorm, wQ, wDkv, kvNorm, wKr, wUk, wUv, wO, eps, rope } = layer;
  requireInteger(fn, "numHeads", H, 1);
  requireFloats(fn, { x, wDq, qNorm, wQ, wDkv, kvNorm, wKr, wUk, wUv, wO });
  requireRank(fn, "x", x, 3, "(B, T, C)");
  const [B, T, C] = sizes3(x);
  const width = wDq == null ? C : requireRows(fn, "wDq", wDq, 1, C); // what wQ reads
  const R = requireRows(fn, "wDkv", wDkv, 1, C);
  const Dr = requireRows(fn, "wKr", wKr, 1, C);
  const Dn = requireRows(fn, "wUk", wUk, H, R);
  const Dv = requireRows(fn, "wUv", wUv, H, R);
  const D = requireRows(fn, "wQ", wQ, H, width);
  ensure(D === Dn + Dr, ShapeMismatch, fn, "wQ", `${H * (Dn + Dr)} rows (head size ${Dn} + ${Dr})`, H * D);
  requireRank(fn, "wO", wO, 2, "(out, in)");
  ensure(wO.shape[1] === H * Dv, ShapeMismatch, fn, "wO", `${H * Dv} columns`, wO.shape[1]);
  if (wDq == null) ensure(qNorm == null, InvalidConfig, fn, "qNorm", "nothing without wDq", "a tensor");
  if (qNorm != null) requireShape(fn, "qNorm", qNorm, [width]);
  if (kvNorm != null) requireShape(fn, "kvNorm", kvNorm, [R]);
  ensure(qNorm == null || width >= 1, ShapeMismatch, fn, "wDq", "at least one row beside qNorm", width);
  ensure(kvNorm == null || R >= 1, ShapeMismatch, fn, "wDkv", "at least one row beside kvNorm", R);
  if (eps != null) checkEps(fn, "eps", eps);
  checkRotation(fn, rope ?? {}, "wKr", Dr);
  if (rope?.offset != null) requireInteger(fn, "offset", rope.offset);
  if (scale != null) requireFinite(fn, "scale", scale);
  if (causal != null) requireBoolean(fn, "causal", causal);
  if (kvLengths != null) requireLengths(fn, "kvLengths", kvLengths, B, 0, T);
}
