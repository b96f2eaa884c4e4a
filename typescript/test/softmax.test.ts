import assert from "node:assert/strict";
import { test } from "node:test";
import { softmax, softmaxLse } from "../src/index.ts";
import { assertClose, assertFails, assertSame, f32, f64, int64, Random } from "./helpers.ts";

test("ln 2 against 0 is 2/3 against 1/3", () => {
  const { weights, lse } = softmaxLse(f64([2], [0, Math.LN2]));
  assertClose(weights.data, [1 / 3, 2 / 3], 1e-15);
  assertClose(lse.data, [Math.log(3)], 1e-15);
  assert.deepEqual(lse.shape, []);
});

test("the element type stays", () => {
  assert.ok(softmaxLse(f32([1, 2], [0, 1])).weights.data instanceof Float32Array);
  assert.ok(softmaxLse(f32([1, 2], [0, 1])).lse.data instanceof Float32Array);
  assert.ok(softmaxLse(f64([1, 2], [0, 1])).lse.data instanceof Float64Array);
});

test("a slot of -inf is hidden, and a row of nothing else is empty, never NaN (FullyMaskedRow)", () => {
  const { weights, lse } = softmaxLse(f64([2, 3], [0, -Infinity, Math.LN2, -Infinity, -Infinity, -Infinity]));
  assertClose(weights.data, [1 / 3, 0, 2 / 3, 0, 0, 0], 1e-15);
  assertClose(lse.data, [Math.log(3), -Infinity], 1e-15);
});

test("NaN and +inf make their row NaN, but for its hidden slots", () => {
  for (const bad of [NaN, Infinity]) {
    for (const row of [
      [bad, 1, -Infinity],
      [1, bad, -Infinity],
      [-Infinity, bad, 1],
    ]) {
      const { weights, lse } = softmaxLse(f64([2, 3], [...row, 0, 0, 0]));
      const expected = row.map((x) => (x === -Infinity ? 0 : NaN));
      assertClose(weights.data, [...expected, 1 / 3, 1 / 3, 1 / 3], 1e-15);
      assertClose(lse.data, [NaN, Math.log(3)], 1e-15);
    }
  }
});

test("large logits on either side of zero are shifted first (Overflow)", () => {
  assertClose(softmax(f64([2], [-1e5, -1e5 + Math.LN2])).data, [1 / 3, 2 / 3], 1e-11);
  assertClose(softmax(f32([2], [100, 99])).data, [0.7310586, 0.2689414], 1e-6);
  assertClose(softmax(f32([2], [3e38, -3e38])).data, [1, 0]);
});

test("a weight below the smallest normal number is kept", () => {
  assert.equal(softmax(f32([2], [0, -100])).data[1], Math.fround(Math.exp(-100)));
});

test("sizes 0 and 1", () => {
  const none = softmaxLse(f32([2, 0], []));
  assert.deepEqual(none.weights.shape, [2, 0]);
  assertClose(none.lse.data, [-Infinity, -Infinity]);
  assert.deepEqual(softmaxLse(f32([0, 3], [])).lse.shape, [0]);
  assertClose(softmaxLse(f64([3, 1], [7, -8, 1e300])).weights.data, [1, 1, 1]);
  assertClose(softmaxLse(f64([3, 1], [7, -8, 1e300])).lse.data, [7, -8, 1e300]);
});

test("a row is independent of the others and of the elements around a view", () => {
  const random = new Random(1);
  for (let round = 0; round < 50; round++) {
    const [rows, n] = [random.integer(1, 5), random.integer(0, 40)];
    const x = random.tensor("float32", [rows, n]);
    const whole = softmaxLse(x);
    for (let row = 0; row < rows; row++) {
      const view = { data: x.data.subarray(row * n, (row + 1) * n), shape: [n] };
      const alone = softmaxLse(view);
      assertClose(alone.weights.data, whole.weights.data.subarray(row * n, (row + 1) * n), 0);
      assert.equal(alone.lse.data[0], whole.lse.data[row]);
    }
  }
  const view = new Float32Array([9, 9, 1, 2, 3]).subarray(2);
  assertSame(softmax({ data: view, shape: [3] }), softmax(f32([3], [1, 2, 3])));
});

test("200 000 slots are no problem (nodejs/node#43043)", () => {
  const x = f64([200_000], new Float64Array(200_000));
  const { weights, lse } = softmaxLse(x);
  assertClose([weights.data[0]!, weights.data.at(-1)!], [5e-6, 5e-6], 1e-15);
  assertClose(lse.data, [Math.log(200_000)], 1e-12);
});

test("a constant added to a row changes nothing but its lse", () => {
  const random = new Random(2);
  for (let round = 0; round < 50; round++) {
    const x = random.tensor("float64", [random.integer(1, 30)]);
    const shifted = softmaxLse({ data: x.data.map((value) => value + 3), shape: x.shape });
    const { weights, lse } = softmaxLse(x);
    assertClose(shifted.weights.data, weights.data, 1e-15);
    assertClose(shifted.lse.data, [lse.data[0]! + 3], 1e-14);
    assertClose([weights.data.reduce((sum, w) => sum + w, 0)], [1], 1e-14);
  }
});

test("bad calls", () => {
  assertFails(() => softmax(f32([], [1])), "shape_mismatch");
  assertFails(() => softmax(f32([3], [1])), "shape_mismatch");
  assertFails(() => softmax({ data: new Float32Array(2), shape: [-1, -2] }), "shape_mismatch");
  assertFails(() => softmax(int64([1], [1]) as never), "dtype_mismatch");
  assertFails(() => softmax({ data: [1, 2], shape: [2] } as never), "dtype_mismatch");
});
