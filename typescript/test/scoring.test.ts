/** Attention without heads: the earlier scores, and structured self-attention. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { type ScoringForm, scoringSteps, sdpaSteps, structuredSteps } from "../src/index.ts";
import { assertClose, assertFails, assertSame, f32, f64, int64, Random } from "./helpers.ts";

test("each form by hand", () => {
  const [q, k] = [f64([1, 1, 2], [1, 2]), f64([1, 2, 2], [3, -1, 0, 1])];
  const v = f64([1, 2, 1], [3, 6]);
  const additive = { wQ: f64([1, 2], [1, 0]), wK: f64([1, 2], [0, 1]), wV: f64([1], [2]) };
  const cases: [ScoringForm, object, number[]][] = [
    ["dot", {}, [1, 2]],
    ["scaled", {}, [Math.SQRT1_2, Math.SQRT2]],
    ["general", { w: f64([2, 2], [0, 1, 1, 0]) }, [5, 1]],
    ["additive", additive, [0, 2 * Math.tanh(2)]],
  ];
  for (const [form, options, expected] of cases) {
    const { scores, weights, output } = scoringSteps(form, q, k, v, options);
    assertClose(scores.data, expected, 1e-12);
    const weight = 1 / (1 + Math.exp(expected[1]! - expected[0]!));
    assertClose(weights.data, [weight, 1 - weight], 1e-12);
    assertClose(output.data, [3 * weight + 6 * (1 - weight)], 1e-12);
  }
});

test("scaled is sdpa with one head; keys beyond a length are not read", () => {
  const random = new Random(85);
  const draw = (...shape: number[]) => random.tensor("float64", shape);
  const [q, k, v] = [draw(3, 2, 4), draw(3, 5, 4), draw(3, 5, 2)];
  const heads = (x: typeof q) => ({ data: x.data, shape: [x.shape[0]!, 1, ...x.shape.slice(1)] });
  k.data.fill(NaN, 4 * 4, 5 * 4);
  v.data.fill(NaN, 4 * 2, 5 * 2);
  const kvLengths = int64([3], [4, 0, 5]);
  const expected = sdpaSteps(heads(q), heads(k), heads(v), { mask: { kvLengths } });
  const { output, weights } = scoringSteps("scaled", q, k, v, { kvLengths });
  assertClose(output.data, expected.output.data, 1e-14);
  assertClose(weights.data, expected.weights.data, 1e-14);
  assert.deepEqual([...output.data.subarray(4, 8)], [0, 0, 0, 0]); // a row without keys
});

test("sizes of 0, and sizes of query and key that differ", () => {
  const w = f64([2, 3], [1, 0, 0, 0, 1, 0]);
  const { output, scores } = scoringSteps(
    "general",
    f64([1, 1, 2], [2, 3]),
    f64([1, 1, 3], [1, 1, 9]),
    f64([1, 1, 1], [4]),
    {
      w,
    },
  );
  assert.deepEqual([scores.data[0], output.data[0]], [5, 4]);
  assert.deepEqual(
    scoringSteps("dot", f64([0, 2, 1], []), f64([0, 3, 1], []), f64([0, 3, 2], [])).output.shape,
    [0, 2, 2],
  );
  assert.deepEqual(
    [...scoringSteps("dot", f64([1, 1, 1], [1]), f64([1, 0, 1], []), f64([1, 0, 2], [])).output.data],
    [0, 0],
  );
});

test("structured: views as means of positions, and a penalty for views alike", () => {
  const h = f64([1, 2, 1], [3, 6]);
  const [w1, w2] = [f64([1, 1], [0]), f64([2, 1], [1, 1])];
  const { output, weights, penalty } = structuredSteps(h, w1, w2); // both views uniform
  assertClose(weights.data, [0.5, 0.5, 0.5, 0.5], 0);
  assertClose(output.data, [4.5, 4.5], 0);
  assertClose(penalty.data, [4 * 0.25], 1e-15); // A Aᵀ is 1/2 everywhere
  const sharp = structuredSteps(f64([1, 2, 1], [-9, 9]), f64([1, 1], [9]), f64([2, 1], [400, -400]));
  assertClose(sharp.output.data, [9, -9], 1e-12);
  assertClose(sharp.penalty.data, [0], 1e-12);
});

test("structured: positions beyond a length are not read; none give 0 and the penalty of I", () => {
  const random = new Random(86);
  const [w1, w2] = [random.tensor("float32", [4, 3]), random.tensor("float32", [2, 4])];
  const h = random.tensor("float32", [2, 5, 3]);
  h.data.fill(NaN, 3 * 3, 5 * 3);
  const { output, weights, penalty } = structuredSteps(h, w1, w2, [3, 0]);
  const alone = structuredSteps({ data: h.data.subarray(0, 9), shape: [1, 3, 3] }, w1, w2);
  assertSame({ data: output.data.slice(0, 6), shape: [1, 2, 3] }, alone.output);
  assertClose([...weights.data.subarray(3, 5), ...weights.data.subarray(10)], new Array(12).fill(0), 0);
  assertClose(penalty.data, [alone.penalty.data[0]!, 2], 0);
});

test("bad calls", () => {
  const x = f64([1, 2, 2], [1, 2, 3, 4]);
  const narrow = f64([1, 2, 1], [1, 2]);
  assertFails(() => scoringSteps("cosine" as never, x, x, x), "invalid_config");
  assertFails(() => scoringSteps("dot", x, narrow, x), "shape_mismatch");
  assertFails(() => scoringSteps("general", x, x, x), "invalid_config");
  assertFails(() => scoringSteps("general", x, x, x, { w: f64([2, 1], [1, 2]) }), "shape_mismatch");
  const additive = {
    wQ: f64([3, 2], new Float64Array(6)),
    wK: f64([3, 2], new Float64Array(6)),
    wV: f64([3], [1, 2, 3]),
  };
  assert.doesNotThrow(() => scoringSteps("additive", x, x, x, additive));
  assertFails(() => scoringSteps("additive", x, x, x, { ...additive, wV: null }), "invalid_config");
  const w = f64([2, 2], [1, 2, 3, 4]);
  for (const [form, other] of [
    ["additive", { ...additive, w }],
    ["general", { w, wV: additive.wV }],
    ["dot", { w }],
    ["scaled", additive],
  ] as const) {
    assertFails(() => scoringSteps(form, x, x, x, other), "invalid_config", /expected nothing for the form/);
  }
  assert.doesNotThrow(() => scoringSteps("dot", x, x, x, { wQ: null, w: undefined }));
  assertFails(
    () => scoringSteps("additive", x, x, x, { ...additive, wV: f64([2], [1, 2]) }),
    "shape_mismatch",
  );
  assertFails(
    () => scoringSteps("additive", x, x, x, { ...additive, wV: f32([3], [1, 2, 3]) as never }),
    "dtype_mismatch",
  );
  assertFails(() => scoringSteps("dot", x, x, x, { kvLengths: [3] }), "invalid_config");
  assertFails(() => scoringSteps("dot", x, x, f64([1, 1, 2], [1, 2])), "shape_mismatch");
  assertFails(() => scoringSteps("dot", f64([1, 2, 0], []), f64([1, 2, 0], []), x), "shape_mismatch");
  const [w1, w2] = [f64([3, 2], new Float64Array(6)), f64([1, 3], [1, 2, 3])];
  assert.doesNotThrow(() => structuredSteps(x, w1, w2));
  assertFails(() => structuredSteps(x, w2, w1), "shape_mismatch");
  assertFails(() => structuredSteps(x, w1, f64([1, 2], [1, 2])), "shape_mismatch");
  assertFails(() => structuredSteps(x, w1, w2, [-1]), "invalid_config");
});
