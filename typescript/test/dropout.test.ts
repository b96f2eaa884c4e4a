import assert from "node:assert/strict";
import { test } from "node:test";
import { type Dropout, dropout, dropoutSteps, philoxWords, sdpaSteps } from "../src/index.ts";
import { assertClose, assertFails, assertSame, bool, f32, f64, Random } from "./helpers.ts";

/** Philox4x32-10 in BigInt, whose products lose nothing (DropoutMask). */
function slowWord(seed: number, n: number): number {
  const mask = 0xffffffffn;
  let [x0, x1, x2, x3] = [BigInt(n) / 4n, BigInt(n) / 4n / 2n ** 32n, 0n, 0n];
  x0 &= mask;
  let [k0, k1] = [BigInt(seed) & mask, BigInt(seed) / 2n ** 32n];
  for (let round = 0; round < 10; round++) {
    const [p, r] = [x0 * 0xd2511f53n, x2 * 0xcd9e8d57n];
    [x0, x1, x2, x3] = [(r >> 32n) ^ x1 ^ k0, r & mask, (p >> 32n) ^ x3 ^ k1, p & mask];
    [k0, k1] = [(k0 + 0x9e3779b9n) & mask, (k1 + 0xbb67ae85n) & mask];
  }
  return Number([x0, x1, x2, x3][n % 4]);
}

test("the published answer for counter 0 and key 0", () => {
  assert.deepEqual([...philoxWords(0, 0, 4)], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
});

test("words are those of whole integers, for large seeds and large numbers too (DropoutMask)", () => {
  for (const seed of [0, 1, 42, 2 ** 32 - 1, 2 ** 32, 0xdeadbeef * 4099, 2 ** 53 - 1]) {
    for (const first of [0, 3, 4, 1021, 2 ** 34 - 2, 2 ** 34, 2 ** 53 - 10]) {
      const words = philoxWords(seed, first, 9);
      assert.deepEqual(
        [...words],
        Array.from({ length: 9 }, (_, n) => slowWord(seed, first + n)),
      );
    }
  }
});

test("words do not depend on where one begins, and none are needed", () => {
  const whole = philoxWords(7, 0, 41);
  assertFails(() => philoxWords(7, 0, 2 ** 50), "invalid_config"); // more than a processor can address
  for (let first = 0; first < 9; first++) {
    assert.deepEqual(philoxWords(7, first, 32), whole.slice(first, first + 32));
  }
  assert.equal(philoxWords(7, 5, 0).length, 0);
  const far = philoxWords(7, 2 ** 62, 12); // (12,), where a double no longer tells a word from the next
  assert.equal(new Set(far).size, 12);
  assert.deepEqual(philoxWords(7, 2 ** 62, 5), far.slice(0, 5));
});

test("p of the elements fall, the others grow by 1/(1 - p)", () => {
  const x = f64([100, 100], new Float64Array(10000).fill(3));
  const { output, keep } = dropoutSteps(x, { p: 0.25, seed: 5 });
  const kept = keep.data.reduce((sum, k) => sum + k, 0);
  assert.ok(Math.abs(kept - 7500) < 150, `${kept} kept`);
  output.data.forEach((y, n) => {
    assert.equal(y, keep.data[n] === 1 ? 3 * (1 / 0.75) : 0);
  });
  const part = dropoutSteps({ data: x.data.subarray(137, 199), shape: [62] }, { p: 0.25, seed: 5 }, 137);
  assert.deepEqual(part.keep.data, keep.data.slice(137, 199));
});

test("p = 0 returns the input, p = 1 drops all, and what is dropped is 0 whatever it was", () => {
  const x = f32([4], [NaN, Infinity, -0, 1]);
  assertSame(dropout(x, { p: 0, seed: 1 }), x);
  assertSame(dropout(x, { p: 1, seed: 1 }), f32([4], [0, 0, 0, 0]));
  assert.deepEqual(dropout(f32([0, 2], []), { p: 0.5, seed: 1 }).shape, [0, 2]);
});

test("the factor is rounded once to the type of the computation", () => {
  const keep = (x: Dropout) => dropout(f32([64], new Float32Array(64).fill(1)), x).data.find((y) => y !== 0);
  assert.equal(keep({ p: 0.1, seed: 3 }), Math.fround(1 / 0.9));
});

test("sdpa drops weights by their place, after the softmax and without normalising again (DropoutScale)", () => {
  const random = new Random(31);
  const [q, k] = [random.tensor("float64", [2, 4, 3, 2]), random.tensor("float64", [2, 2, 5, 2])];
  const v = f64([2, 2, 5, 5], new Float64Array(100));
  for (let n = 0; n < 20; n++) v.data[n * 5 + (n % 5)] = 1; // so that the output is the weights
  const options = { p: 0.4, seed: 99 };
  const plain = sdpaSteps(q, k, v);
  const { output, weights, lse } = sdpaSteps(q, k, v, { dropout: options });
  assertSame(weights, plain.weights);
  assertSame(lse as typeof q, plain.lse);
  assertClose(output.data, dropout(plain.weights, options).data, 0);
  assertSame(sdpaSteps(q, k, v, { dropout: { p: 0, seed: 1 } }).output, plain.output);
});

test("bad calls", () => {
  const x = f32([1], [1]);
  for (const p of [-0.1, 1.1, NaN, "0.5", null, true]) {
    assertFails(() => dropout(x, { p, seed: 1 } as never), "invalid_config");
  }
  for (const seed of [-1, 0.5, 2 ** 53, Infinity, "1", undefined]) {
    assertFails(() => dropout(x, { p: 0.5, seed } as never), "invalid_config");
  }
  for (const offset of [-1, 0.5, 2 ** 63])
    assertFails(() => dropout(x, { p: 0.5, seed: 1 }, offset), "invalid_config");
  assertFails(() => dropout(x, 0.5 as never), "invalid_config");
  assertFails(() => dropout(bool([1], [1]) as never, { p: 0.5, seed: 1 }), "dtype_mismatch");
  const q = f64([1, 1, 1, 1], [1]);
  assertFails(() => sdpaSteps(q, q, q, { dropout: 0.5 as never }), "invalid_config");
  assertFails(() => sdpaSteps(q, q, q, { dropout: { p: 2, seed: 0 } }), "invalid_config");
});
