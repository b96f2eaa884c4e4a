import assert from "node:assert/strict";
import { test } from "node:test";
import { type SparsePattern, sdpaSteps, sparseMask, sparseSteps } from "../src/index.ts";
import { visibilityOf } from "../src/sparse_patterns.ts";
import { assertClose, assertFails, bool, f32, f64, Random } from "./helpers.ts";

const RANDOM = new Random(80);

/** One pattern of each type for Tq queries and Tk keys. */
function patterns(Tq: number, Tk: number): SparsePattern[] {
  const blocks = RANDOM.mask([Math.ceil(Tq / 3), Math.ceil(Tk / 3)]);
  return [
    { type: "window", left: 2, right: 1 },
    { type: "window", left: 0, right: 0 },
    { type: "window", left: 1e300, right: 0 },
    { type: "dilated", left: 2, right: 1, dilation: 3 },
    { type: "dilated", left: 1e300, right: 1e300, dilation: 2 },
    { type: "strided", stride: 3 },
    { type: "strided", stride: 1 },
    { type: "fixed", stride: 4, summary: 1 },
    { type: "fixed", stride: 3, summary: 0 },
    { type: "fixed", stride: 2, summary: 2 },
    { type: "global", left: 1, right: 0, tokens: [0, 5, 5, 99] },
    { type: "global", left: 0, right: 0, tokens: [] },
    { type: "bigbird", block: 2, window: 0, global: 1, random: 2, seed: 7 },
    { type: "bigbird", block: 3, window: 1, global: 0, random: 99, seed: 0 },
    { type: "blocks", block: 3, mask: blocks },
  ];
}

test("the list of keys is the rule, in ascending order, for every pattern and size", () => {
  for (const [Tq, Tk] of [
    [0, 0],
    [1, 1],
    [9, 9],
    [4, 11],
    [11, 4],
    [3, 0],
  ] as const) {
    for (const pattern of patterns(Tq, Tk)) {
      const { sees, keys } = visibilityOf(pattern, Tq, Tk);
      for (let i = 0; i < Tq; i++) {
        const expected = Array.from({ length: Tk }, (_, j) => j).filter((j) => sees(i, j));
        assert.deepEqual(keys(i), expected, `${JSON.stringify(pattern)}: query ${i} of ${Tq}, ${Tk} keys`);
      }
    }
  }
});

/** The mask as rows of 0 and 1. */
function rows(pattern: SparsePattern, Tq: number, Tk: number, causal: boolean = false): string[] {
  const { data } = sparseMask(pattern, Tq, Tk, causal);
  return Array.from({ length: Tq }, (_, i) => data.slice(i * Tk, (i + 1) * Tk).join(""));
}

test("patterns by hand", () => {
  assert.deepEqual(rows({ type: "window", left: 1, right: 0 }, 3, 4), ["1000", "1100", "0110"]);
  assert.deepEqual(rows({ type: "window", left: 0, right: 2 }, 3, 4), ["1110", "0111", "0011"]);
  assert.deepEqual(rows({ type: "window", left: 1, right: 2 }, 3, 4, true), ["1000", "1100", "0110"]);
  const dilated = { type: "dilated", left: 1, right: 1, dilation: 2 } as const;
  assert.deepEqual(rows(dilated, 4, 6), ["101000", "010100", "101010", "010101"]);
  assert.deepEqual(rows({ type: "strided", stride: 3 }, 5, 5), ["10000", "11000", "11100", "11110", "01111"]);
  const fixed = { type: "fixed", stride: 3, summary: 1 } as const;
  assert.deepEqual(rows(fixed, 6, 6), ["100000", "110000", "111000", "001100", "001110", "001111"]);
  const global = { type: "global", left: 0, right: 0, tokens: [1] } as const;
  assert.deepEqual(rows(global, 3, 4), ["1100", "1111", "0110"]);
  const blocks = { type: "blocks", block: 2, mask: bool([2, 2], [1, 0, 0, 1]) } as const;
  assert.deepEqual(rows(blocks, 3, 3), ["110", "110", "001"]);
});

test("bigbird draws without putting back, the same from the same seed", () => {
  const pattern = { type: "bigbird", block: 1, window: 0, global: 1, random: 3, seed: 11 } as const;
  const lines = rows(pattern, 12, 12);
  lines.forEach((line, a) => {
    assert.equal([...line].filter((c) => c === "1").length, a === 0 ? 12 : 5, line);
  });
  assert.deepEqual(rows(pattern, 12, 12), lines);
  assert.notDeepEqual(rows({ ...pattern, seed: 12 }, 12, 12), lines);
  assert.deepEqual(rows({ ...pattern, random: 50 }, 12, 12), new Array(12).fill("1".repeat(12)));
});

test("sparse attention is sdpa with the pattern as its mask, and scores what is visible only", () => {
  for (const [Tq, Tk] of [
    [9, 9],
    [4, 11],
    [7, 2],
    [2, 0],
  ] as const) {
    const draw = (...shape: number[]) => RANDOM.tensor("float64", shape);
    const [q, k, v] = [draw(2, 4, Tq, 3), draw(2, 2, Tk, 3), draw(2, 2, Tk, 2)];
    for (const pattern of patterns(Tq, Tk)) {
      for (const causal of [false, true]) {
        const keep = sparseMask(pattern, Tq, Tk, causal);
        const expected = sdpaSteps(q, k, v, { mask: { keep }, scale: 0.5 });
        const { output, lse, visited } = sparseSteps(q, k, v, pattern, { causal, scale: 0.5 });
        assertClose(output.data, expected.output.data, 1e-12);
        assertClose(lse.data, expected.lse.data, 1e-12);
        const counts = Array.from({ length: Tq }, (_, i) =>
          keep.data.slice(i * Tk, (i + 1) * Tk).reduce((sum, seen) => sum + seen, 0),
        );
        assert.deepEqual([...visited.data].map(Number), counts);
      }
    }
  }
});

test("what is hidden is never read", () => {
  const q = f64([1, 1, 2, 1], [1, 1]);
  const k = f64([1, 1, 2, 1], [0, NaN]);
  const { output, lse } = sparseSteps(q, k, f64([1, 1, 2, 1], [5, Infinity]), {
    type: "window",
    left: 0,
    right: 0,
  });
  assertClose(output.data, [5, NaN], 0);
  assertClose(lse.data, [0, NaN], 0);
});

test("bad calls", () => {
  const x = f64([1, 1, 2, 1], [1, 2]);
  for (const pattern of [
    ...[
      null,
      3,
      [],
      {},
      { type: "banded" },
      { type: "window", left: 1 },
      { type: "window", left: -1, right: 0 },
    ],
    ...[
      { type: "window", left: 0.5, right: 0 },
      { type: "dilated", left: 1, right: 1, dilation: 0 },
    ],
    ...[
      { type: "strided", stride: 0 },
      { type: "fixed", stride: 2, summary: 3 },
      { type: "fixed", stride: 2 },
    ],
    ...[
      { type: "global", left: 0, right: 0 },
      { type: "global", left: 0, right: 0, tokens: [-1] },
    ],
    ...[
      { type: "global", left: 0, right: 0, tokens: 3 },
      { type: "blocks", block: 1 },
    ],
    { type: "bigbird", block: 0, window: 0, global: 0, random: 0, seed: 0 },
    { type: "bigbird", block: 1, window: 0, global: 0, random: 0, seed: 2 ** 53 },
    { type: "bigbird", block: 1, window: 0, global: 0, random: 0 },
  ]) {
    assertFails(() => sparseSteps(x, x, x, pattern as never), "invalid_config");
  }
  const blocks = (mask: unknown) => ({ type: "blocks", block: 1, mask }) as never;
  assertFails(() => sparseSteps(x, x, x, blocks(bool([1, 2], [1, 1]))), "shape_mismatch");
  assertFails(() => sparseSteps(x, x, x, blocks(f32([2, 2], [1, 1, 1, 1]))), "dtype_mismatch");
  const window = { type: "window", left: 0, right: 0 } as const;
  assertFails(() => sparseSteps(x, x, x, window, { causal: 1 as never }), "invalid_config");
  assertFails(() => sparseSteps(x, x, x, window, { scale: Infinity }), "invalid_config");
  assertFails(() => sparseSteps(x, x, f64([1, 1, 1, 1], [1]), window), "shape_mismatch");
  for (const Tq of [-1, 1.5, 2 ** 50]) {
    assertFails(() => sparseMask(window, Tq, 1), "invalid_config");
  }
});
