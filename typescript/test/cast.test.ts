/** Conversions between the float types, exhaustively where 65,536 codes allow it. */

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  Bfloat16Array,
  cast,
  type FloatDtype,
  fromBfloat16,
  KVCache,
  narrow,
  toBfloat16,
  Unsupported,
  widen,
} from "../src/index.ts";
import { dtypeOf } from "../src/tensor.ts";
import { as, assertFails, bool, f32, f64, int64 } from "./helpers.ts";

const CODES = Uint16Array.from({ length: 65536 }, (_, code) => code);
const HALVES = { float16: new Float16Array(CODES.buffer), bfloat16: new Bfloat16Array(CODES.buffer) };

/** The codes of a tensor of a half type. */
function codes(x: { data: Float16Array | Bfloat16Array }): number[] {
  return [...new Uint16Array(x.data.buffer, x.data.byteOffset, x.data.length)];
}

for (const [dtype, data] of Object.entries(HALVES) as [keyof typeof HALVES, Float16Array][]) {
  test(`every code of ${dtype} comes back from float32 and from float64`, () => {
    const x = { data, shape: [65536] };
    for (const wide of ["float32", "float64"] as const) {
      const numbers = cast(x, wide);
      const back = cast(numbers, dtype);
      const [again, same] = [widen(back).data, codes(back)];
      for (let code = 0; code < 65536; code++) {
        if (Number.isNaN(numbers.data[code])) assert.ok(Number.isNaN(again[code]));
        else assert.equal(same[code], code);
      }
    }
  });

  test(`${dtype}: ties go to the even code, and a hair beside them to the nearer one`, () => {
    const [infinity, sign] = [dtype === "float16" ? 0x7c00 : 0x7f80, 0x8000];
    const numbers = cast({ data, shape: [65536] }, "float64").data;
    const step = numbers[infinity - 1]! - numbers[infinity - 2]!;
    for (let code = 0; code < infinity; code++) {
      const next = code + 1 === infinity ? numbers[code]! + step : numbers[code + 1]!;
      const middle = (numbers[code]! + next) / 2;
      const hair = middle * 2 ** -50; // lost in float32
      const even = code % 2 === 0 ? code : code + 1;
      const values = [middle, middle - hair, middle + hair, -middle, -middle + hair, -middle - hair];
      const expected = [even, code, code + 1, even + sign, code + sign, code + 1 + sign];
      assert.deepEqual(codes(narrow(f64([6], values), dtype)), expected, `code ${code}`);
    }
  });
}

test("bfloat16 by hand", () => {
  const cases: [number, number][] = [
    [1, 0x3f80],
    [-0, 0x8000],
    [256, 0x4380],
    [257, 0x4380], // no odd integers above 256
    [259, 0x4382],
    [4095, 0x4580],
    [Infinity, 0x7f80],
    [-Infinity, 0xff80],
    [3.3895313892515355e38, 0x7f7f],
    [2 ** 128 - 2 ** 119 - 2 ** 80, 0x7f7f],
    [2 ** 128 - 2 ** 119, 0x7f80],
    [1e300, 0x7f80],
    [2 ** -133, 0x0001],
    [2 ** -134, 0x0000],
    [2 ** -134 * (1 + 2 ** -50), 0x0001],
    [-1e-300, 0x8000],
  ];
  for (const [x, code] of cases) assert.equal(toBfloat16(x), code, String(x));
  assert.equal(fromBfloat16(0x3fc0), 1.5);
  assert.ok(Number.isNaN(fromBfloat16(toBfloat16(NaN))));
  assert.equal(CODES.filter((code) => Number.isNaN(fromBfloat16(code))).length, 2 * 127);
  for (const code of CODES) {
    if (Number.isNaN(fromBfloat16(code)))
      assert.ok(Number.isNaN(fromBfloat16(toBfloat16(fromBfloat16(code)))));
  }
});

test("float64 goes to a half type in one rounding", () => {
  const x = f64([1], [1 + 2 ** -11 + 2 ** -40]); // float32 would make it a tie, and the tie 1
  assert.deepEqual(codes(cast(x, "float16")), [0x3c01]);
  assert.deepEqual(codes(cast(cast(x, "float32"), "float16")), [0x3c00]);
  const y = f64([1], [1 + 2 ** -8 + 2 ** -40]);
  assert.deepEqual(codes(cast(y, "bfloat16")), [0x3f81]);
  assert.deepEqual(codes(cast(cast(y, "float32"), "bfloat16")), [0x3f80]);
});

test("between half types, by the value", () => {
  const x = as("float16", [4], [1.5, 65504, 2 ** -24, 1 + 2 ** -10]);
  assert.deepEqual(codes(cast(x, "bfloat16")), [0x3fc0, 0x4780, 0x3380, 0x3f80]);
  assert.deepEqual(codes(cast(as("bfloat16", [2], [1e38, -3]), "float16")), [0x7c00, 0xc200]);
});

test("a cast is a copy with the same shape; widening and views", () => {
  const x = f32([2, 1], [1, 2]);
  const copy = cast(x, "float32");
  assert.deepEqual(copy, x);
  assert.notEqual(copy.data, x.data);
  assert.equal(widen(x).data, x.data);
  const view = { data: as("bfloat16", [3], [1, 2, 3]).data.subarray(1), shape: [2] };
  assert.equal(dtypeOf(view), "bfloat16");
  assert.deepEqual(widen(view), f32([2], [2, 3]));
  assert.deepEqual(cast(as("float16", [0, 3], []), "bfloat16").shape, [0, 3]);
});

test("a plain Uint16Array is no bfloat16", () => {
  assertFails(() => cast({ data: new Uint16Array(1), shape: [1] } as never, "float32"), "dtype_mismatch");
  assert.equal(dtypeOf({ data: new Bfloat16Array(1), shape: [1] }), "bfloat16");
});

test("bad calls", () => {
  assertFails(() => cast(bool([1], [1]) as never, "float32"), "dtype_mismatch");
  assertFails(() => cast(int64([1], [1]) as never, "float16"), "dtype_mismatch");
  assertFails(() => cast(f32([2], [1]), "float16"), "shape_mismatch");
  assertFails(() => cast(f32([1], [1]), 16 as never), "invalid_config");
  assert.throws(
    () => cast(f32([1], [1]), "float8" as FloatDtype),
    (error) => error instanceof Unsupported && error.feature === "cast.float8",
  );
});

test("a cache of a half type stores what it was given, and attends in float32", () => {
  for (const dtype of ["float16", "bfloat16"] as const) {
    const cache = new KVCache({ batch: 1, numKvHeads: 1, headDim: 1, dtype });
    const [k, v] = [as(dtype, [1, 1, 3, 1], [0.1, 0.7, -2]), as(dtype, [1, 1, 3, 1], [3, 6, 1 / 3])];
    const q = as(dtype, [1, 1, 1, 1], [1.7]);
    cache.append(k, v);
    assert.deepEqual(codes(cache.read().k), codes(k));
    const wide = new KVCache({ batch: 1, numKvHeads: 1, headDim: 1 });
    wide.append(widen(k) as never, widen(v) as never);
    const expected = wide.attendSteps(widen(q) as never);
    const { output, lse } = cache.attendSteps(q);
    assert.deepEqual(codes(output), codes(narrow(expected.output, dtype)));
    assert.deepEqual(lse, expected.lse);
    assertFails(() => cache.append(widen(k) as never, v), "dtype_mismatch");
    assertFails(() => cache.attend(widen(q) as never), "dtype_mismatch");
  }
});
