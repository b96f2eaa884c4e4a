/** What a layer has beside its projections: packing, norms of queries and keys, rotation, pruned heads. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { linear, mergeHeads, splitHeads } from "../src/heads.ts";
import {
  dropout,
  type MhaWeights,
  MultiHeadAttention,
  type Packing,
  rmsNorm,
  rope,
  sdpaSteps,
  type Tensor,
} from "../src/index.ts";
import { assertClose, assertFails, assertSame, bool, f32, f64, int64, Random } from "./helpers.ts";

type Doubles = Tensor<Float64Array>;

const [B, T, C, Hq, Hkv, D] = [2, 3, 5, 4, 2, 4];
const random = new Random(110);
const draw = (...shape: number[]) => random.tensor("float64", shape);

function weightsOf(changes: object = {}): MhaWeights<Float64Array> {
  const weights = { wQ: draw(Hq * D, C), wK: draw(Hkv * D, C), wV: draw(Hkv * D, C), wO: draw(C, Hq * D) };
  return { ...weights, numHeads: Hq, numKvHeads: Hkv, ...changes };
}

test("norms of queries and keys, then rotation, then attention", () => {
  const [qNorm, kNorm] = [draw(D), draw(D)];
  const weights = weightsOf({ qNorm, kNorm, qkNormEps: 0.01, rope: { base: 100, interleaved: true } });
  const x = draw(B, T, C);
  const positions = int64([B, T], [0, 1, 2, 5, 3, 9]);
  const layer = new MultiHeadAttention(weights);
  const turned = (w: Doubles, H: number, norm: Doubles) =>
    rope(rmsNorm(splitHeads(linear(x, w), H), norm, 0.01), { base: 100, interleaved: true, positions });
  const heads = sdpaSteps(
    turned(weights.wQ, Hq, qNorm),
    turned(weights.wK, Hkv, kNorm),
    splitHeads(linear(x, weights.wV), Hkv),
  );
  const steps = layer.steps(x, null, { positions });
  assertClose(steps.output.data, linear(mergeHeads(heads.output), weights.wO).data, 1e-12);
  assertClose(steps.weights.data, heads.weights.data, 1e-12);
  assert.equal(layer.numParameters, Hq * D * C + 2 * Hkv * D * C + C * Hq * D + 2 * D);
});

test("rotated scores depend on the distance only, and the offset of the rope is a position", () => {
  const x = draw(B, T, C);
  const weights = weightsOf();
  const at = (offset: number) => new MultiHeadAttention({ ...weights, rope: { offset } }).forward(x);
  assertClose(at(0).data, at(7).data, 1e-11);
  const positions = int64([B, T], [7, 8, 9, 7, 8, 9]);
  assertSame(new MultiHeadAttention({ ...weights, rope: {} }).forward(x, null, { positions }), at(7));
});

/** Rows `from` to `to` of a matrix. */
function rows(w: Doubles, from: number, to: number): number[] {
  return [...w.data.subarray(from * C, to * C)];
}

test("packed projections, in blocks or by heads", () => {
  const weights = weightsOf();
  const { wQ, wK, wV } = weights;
  const [bQ, bK, bV] = [draw(Hq * D), draw(Hkv * D), draw(Hkv * D)];
  const x = draw(B, T, C);
  const expected = new MultiHeadAttention({ ...weights, bQ, bK, bV }).forward(x);
  const G = Hq / Hkv;
  const byHeads = Array.from({ length: Hkv }, (_, g) => [
    ...rows(wQ, g * G * D, (g + 1) * G * D),
    ...rows(wK, g * D, (g + 1) * D),
    ...rows(wV, g * D, (g + 1) * D),
  ]).flat();
  const biasByHeads = Array.from({ length: Hkv }, (_, g) => [
    ...bQ.data.subarray(g * G * D, (g + 1) * G * D),
    ...bK.data.subarray(g * D, (g + 1) * D),
    ...bV.data.subarray(g * D, (g + 1) * D),
  ]).flat();
  const N = (Hq + 2 * Hkv) * D;
  const cases: [Packing | null, number[], number[]][] = [
    ["blocks", [...wQ.data, ...wK.data, ...wV.data], [...bQ.data, ...bK.data, ...bV.data]],
    [null, [...wQ.data, ...wK.data, ...wV.data], [...bQ.data, ...bK.data, ...bV.data]],
    ["heads", byHeads, biasByHeads],
  ];
  const { wQ: _q, wK: _k, wV: _v, ...settings } = weights;
  for (const [packing, w, b] of cases) {
    const packed = { ...settings, packing, wQkv: f64([N, C], w), bQkv: f64([N], b) };
    const layer = MultiHeadAttention.packed(packed);
    assertSame(layer.forward(x), expected);
    assert.equal(layer.numParameters, N * C + N + C * Hq * D);
    assert.equal(MultiHeadAttention.packed({ ...packed, bQkv: null }).bQ, null);
  }
});

test("a pruned head contributes 0, whatever it saw", () => {
  const weights = weightsOf({ bO: draw(C) });
  const x = draw(B, T, C);
  const layer = new MultiHeadAttention(weights);
  const half = { data: weights.wO.data.slice(), shape: weights.wO.shape };
  half.data.forEach((_, at) => {
    if (Math.floor((at % (Hq * D)) / D) % 2 === 1) half.data[at] = 0; // columns of heads 1 and 3
  });
  const expected = new MultiHeadAttention({ ...weights, wO: half }).forward(x);
  const headMask = bool([Hq], [1, 0, 1, 0]);
  const steps = layer.steps(x, null, { headMask });
  assertClose(steps.output.data, expected.data, 1e-12);
  assertSame(steps.weights, layer.steps(x).weights);
  const spoiled = { ...weights, wQ: { data: weights.wQ.data.slice(), shape: weights.wQ.shape } };
  spoiled.wQ.data.fill(NaN, D * C, 2 * D * C); // head 1
  assertSame(new MultiHeadAttention(spoiled).forward(x, null, { headMask }), steps.output);
  const none = layer.forward(x, null, { headMask: bool([Hq], [0, 0, 0, 0]) });
  assertClose(
    none.data,
    Array.from({ length: B * T * C }, (_, at) => weights.bO!.data[at % C]!),
    0,
  );
});

test("mean weights are over the heads, and dropout is that of sdpa", () => {
  const weights = weightsOf();
  const x = draw(B, T, C);
  const plain = new MultiHeadAttention(weights).steps(x);
  const options = { p: 0.5, seed: 4 };
  const dropped = new MultiHeadAttention(weights).steps(x, null, { dropout: options });
  assertSame(dropped.weights, plain.weights);
  assert.notDeepEqual(dropped.output.data, plain.output.data);
  const V = splitHeads(linear(x, weights.wV), Hkv);
  const kept = dropout(plain.weights, options);
  const heads = f64([B, Hq, T, D], new Float64Array(B * Hq * T * D));
  for (let at = 0; at < heads.data.length; at++) {
    const [b, h, t, c] = [
      Math.floor(at / (Hq * T * D)),
      Math.floor(at / (T * D)) % Hq,
      Math.floor(at / D) % T,
      at % D,
    ];
    for (let j = 0; j < T; j++) {
      const value = V.data[((b * Hkv + Math.floor(h / 2)) * T + j) * D + c]!;
      heads.data[at]! += kept.data[((b * Hq + h) * T + t) * T + j]! * value;
    }
  }
  assertClose(dropped.output.data, linear(mergeHeads(heads), weights.wO).data, 1e-12);
  for (let at = 0; at < B * T * T; at++) {
    const [b, slot] = [Math.floor(at / (T * T)), at % (T * T)];
    const all = [0, 1, 2, 3].map((h) => plain.weights.data[(b * Hq + h) * T * T + slot]!);
    assertClose([plain.meanWeights.data[at]!], [all.reduce((sum, w) => sum + w, 0) / Hq], 1e-15);
  }
});

test("bad calls", () => {
  const x = draw(B, T, C);
  const fails = (code: string, changes: object, options: object = {}, context: Doubles | null = null) => {
    const layer = new MultiHeadAttention(weightsOf(changes));
    assertFails(() => layer.forward(x, context, options as never), code, /^mha: \w+: expected .+, got .+$/);
  };
  fails("shape_mismatch", { qNorm: draw(D + 1) });
  fails("shape_mismatch", { kNorm: draw(1, D) });
  fails("dtype_mismatch", { kNorm: f32([D], new Float32Array(D)) });
  fails("invalid_config", { qkNormEps: -1 });
  fails("invalid_config", { rope: 1 });
  fails("invalid_config", { rope: {} }, {}, draw(B, 2, C));
  fails("invalid_config", { rope: { scaling: { type: "linear" } } });
  fails("invalid_config", { rope: { offset: 1 } }, { positions: int64([B, T], [0, 1, 2, 0, 1, 2]) });
  fails("shape_mismatch", { rope: {} }, { positions: int64([T], [0, 1, 2]) });
  fails("dtype_mismatch", { rope: {} }, { positions: draw(B, T) });
  fails("shape_mismatch", {}, { headMask: bool([2], [1, 1]) });
  fails("dtype_mismatch", {}, { headMask: draw(Hq) });
  fails("invalid_config", {}, { dropout: { p: 2, seed: 1 } });
  fails("invalid_config", {}, { dropout: 0.5 });
  const packed = { wQkv: draw(16, C), wO: draw(C, 8), numHeads: 2, numKvHeads: 1 };
  const refuses = (code: string, changes: object) =>
    assertFails(() => MultiHeadAttention.packed({ ...packed, ...changes }), code);
  assert.doesNotThrow(() => MultiHeadAttention.packed(packed).forward(x));
  refuses("invalid_config", { packing: "rows" });
  refuses("invalid_config", { numKvHeads: 3 });
  refuses("invalid_config", { numHeads: 0 });
  refuses("shape_mismatch", { wQkv: draw(15, C) });
  refuses("shape_mismatch", { wQkv: draw(16) });
  refuses("shape_mismatch", { bQkv: draw(15) });
  refuses("dtype_mismatch", { bQkv: f32([16], new Float32Array(16)) });
});
