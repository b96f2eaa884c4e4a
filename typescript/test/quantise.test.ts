import assert from "node:assert/strict";
import { test } from "node:test";
import { fromFloat8, roundHalfEven, toFloat8 } from "../src/float8.ts";
import { type QuantFormat, type QuantiseOptions, quantise, restore } from "../src/index.ts";
import { FORMATS } from "./caches.ts";
import { as, assertClose, assertFails, f32, f64, int64, Random } from "./helpers.ts";

function codes(format: QuantFormat, x: number[], more: Partial<QuantiseOptions> = {}): number[] {
  return Array.from(quantise(f32([x.length], x), { format, ...more }).codes.data, Number);
}

function restored(format: QuantFormat, x: number[], more: Partial<QuantiseOptions> = {}): number[] {
  return [...restore(quantise(f32([x.length], x), { format, ...more })).data];
}

test("halves go to the even neighbour", () => {
  const halves = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49, -0.51, 126.5];
  assert.deepEqual(
    halves.map((x) => roundHalfEven(x) + 0),
    [0, 2, 2, 0, -2, -2, 0, -1, 126],
  );
  assert.deepEqual(codes("int8", [127, 0.5, 1.5, -2.5, -127]), [127, 0, 2, -2, -127]);
});

test("groups without a range", () => {
  for (const format of ["int8", "int4"] as const) {
    for (const zeroPoint of [false, true]) {
      assert.deepEqual(restored(format, [0, 0, 0, -0], { zeroPoint }), [0, 0, 0, 0]);
      assert.deepEqual(restored(format, [-1, 1], { zeroPoint }), [-1, 1]);
    }
    const {
      codes: zeros,
      scale,
      zero,
    } = quantise(f32([4], [0.7, 0.7, 0.7, 0.7]), { format, zeroPoint: true });
    assert.ok(zeros.data.every((code) => code === 0));
    assert.deepEqual([scale!.data[0], zero!.data[0]], [0, Math.fround(0.7)]);
    assert.deepEqual(restored(format, [0.7, 0.7], { zeroPoint: true }), [Math.fround(0.7), Math.fround(0.7)]);
  }
  assert.deepEqual(codes("int8", [-1, 1]), [-127, 127]);
});

test("the scale belongs to its group, and is multiplied", () => {
  const x = [1, -2, 100, 50, 0.5];
  const { scale } = quantise(f32([5], x), { format: "int8", group: 2 });
  assertClose(scale!.data, [2 / 127, 100 / 127, 0.5 / 127], 1e-7);
  assertClose(restored("int8", x, { group: 2 }), [1.007874, -2, 100, 50.3937, 0.5], 1e-5);
  assert.deepEqual(codes("int8", x, { group: 9 }), codes("int8", x));
});

test("int4 has two codes a byte, the even channel below, in two's complement", () => {
  assert.deepEqual(codes("int4", [7, -7, -1, 3, -2]), [0x97, 0x3f, 0x0e]);
  assert.deepEqual(restored("int4", [7, -7, -1, 3, -2]), [7, -7, -1, 3, -2]);
  assert.deepEqual(codes("int4", [0, 15, 8], { zeroPoint: true }), [0xf0, 0x08]);
  assert.deepEqual(restored("int4", [0, 15, 8], { zeroPoint: true }), [0, 15, 8]);
});

test("every code of float8 comes back, ties are even, and what is too large becomes the largest", () => {
  for (let code = 0; code < 256; code++) {
    const x = fromFloat8(code);
    assert.equal(toFloat8(x), Number.isNaN(x) ? 0x7f : code);
    const above = fromFloat8(code + 1);
    if (code < 0x7e) assert.equal(toFloat8((x + above) / 2), code % 2 === 0 ? code : code + 1);
  }
  assert.deepEqual([fromFloat8(0x7e), fromFloat8(1), fromFloat8(8)], [448, 2 ** -9, 2 ** -6]);
  const largest = [449, 464, 480, 1e30, Infinity].map((x) => [toFloat8(x), toFloat8(-x)]);
  assert.ok(largest.every(([plus, minus]) => plus === 0x7e && minus === 0xfe));
  assert.deepEqual([toFloat8(NaN), toFloat8(-NaN), toFloat8(-0), toFloat8(1e-45)], [0x7f, 0x7f, 0x80, 0]);
});

/**
 * To half a step comes what float32 adds, for a number x that stands a above the zero point (a = x without one):
 *
 * - 2^-24 of the result each of x - zero, a / step, code · step and + zero: of a three times, of x once; a is at
 *   most limit · step, and a fourth of these is more than all of second order
 * - 2^-150 of a step that is subnormal or 0, which the largest code, limit, has limit times
 */
test("restored numbers are at most half a step away, also among outliers and subnormals", () => {
  const random = new Random(90);
  for (const factor of [1, 1e30, 1e-38, 1e-44]) {
    for (const format of ["int8", "int4"] as const) {
      for (const zeroPoint of [false, true]) {
        const x = random.tensor("float32", [3, 2, 7]);
        for (let n = 0; n < x.data.length; n++) x.data[n]! *= factor * (n % 11 === 0 ? 50 : 1);
        const parts = quantise(x, { format, group: 3, zeroPoint });
        const limit = { int8: [127, 255], int4: [7, 15] }[format][Number(zeroPoint)]!; // the largest code
        const y = restore(parts);
        for (const [n, value] of x.data.entries()) {
          const step = parts.scale!.data[Math.floor(n / 7) * 3 + Math.floor((n % 7) / 3)]!;
          const bound = step / 2 + 2 ** -24 * (4 * limit * step + Math.abs(value)) + 2 ** -150 * limit;
          assert.ok(Math.abs(y.data[n]! - value) <= bound, `${factor} ${format}`);
        }
      }
    }
  }
});

test("float64 is rounded to float32 first, halves are widened", () => {
  const x = f64([3], [1 + 2 ** -40, 0.1, -3]);
  const rounded = f32([3], x.data);
  for (const format of FORMATS) {
    assert.deepEqual(quantise(x, { format }), quantise(rounded, { format }));
    const half = as("bfloat16", [3], x.data);
    assert.deepEqual(restore(quantise(half, { format: "bf16" })).data[1], 0.10009765625);
  }
});

test("no channels, no rows", () => {
  for (const format of FORMATS) {
    for (const shape of [[2, 0], [0, 3], [0]]) {
      const parts = quantise(f32(shape, []), { format });
      assert.deepEqual(restore(parts), f32(shape, []));
    }
  }
});

test("what cannot be quantised", () => {
  const x = f32([2], [1, 2]);
  for (const bad of [Infinity, -Infinity, NaN]) {
    for (const format of ["int8", "int4"] as const) {
      for (const zeroPoint of [false, true]) {
        assertFails(() => quantise(f32([3], [1, bad, 2]), { format, zeroPoint }), "invalid_config");
      }
    }
    assert.equal(restored("f16", [bad])[0], bad);
  }
  assertFails(() => quantise(f32([2], [-3e38, 3e38]), { format: "int8", zeroPoint: true }), "invalid_config");
  for (const options of [
    { format: "int2" },
    { format: "int8", group: 0 },
    { format: "int8", group: 1.5 },
    { format: "int8", zeroPoint: 1 },
    { format: "f16", zeroPoint: true },
  ]) {
    assertFails(() => quantise(x, options as never), "invalid_config");
  }
  assertFails(() => quantise(int64([2], [1, 2]) as never, { format: "int8" }), "dtype_mismatch");
  assertFails(() => quantise(f32([], [1]), { format: "int8" }), "shape_mismatch");
});
