import assert from "node:assert/strict";
import { test } from "node:test";
import { type Mask, visible } from "../src/index.ts";
import { assertFails, bool, f32, int64, Random } from "./helpers.ts";

/** The rows of a mask for one batch row and one head, as strings of 1 and 0. */
function rows(mask: Mask, Tq: number, Tk: number): string[] {
  const { data, shape } = visible(mask, 1, 1, Tq, Tk);
  assert.deepEqual(shape, [1, 1, Tq, Tk]);
  return Array.from({ length: Tq }, (_, i) => data.subarray(i * Tk, (i + 1) * Tk).join(""));
}

test("an empty mask hides nothing", () => {
  assert.deepEqual(rows({}, 2, 3), ["111", "111"]);
  assert.deepEqual(rows({ causal: null, window: null, keep: null, kvLengths: null, qOffset: null }, 1, 2), [
    "11",
  ]);
});

test("causal is top-left, and bottom-right by an offset (CausalAlignment)", () => {
  assert.deepEqual(rows({ causal: true }, 2, 4), ["1000", "1100"]);
  assert.deepEqual(rows({ causal: true, qOffset: 2 }, 2, 4), ["1110", "1111"]);
  assert.deepEqual(rows({ causal: true, qOffset: -2 }, 4, 2), ["00", "00", "10", "11"]);
});

test("a window counts the keys beside the query (WindowOffByOne)", () => {
  assert.deepEqual(rows({ window: [1, 0] }, 4, 4), ["1000", "1100", "0110", "0011"]);
  assert.deepEqual(rows({ window: [0, 0] }, 2, 3), ["100", "010"]);
  assert.deepEqual(rows({ window: [null, 1] }, 2, 4), ["1100", "1110"]);
  assert.deepEqual(rows({ window: [0, null] }, 2, 4), ["1111", "0111"]);
  assert.deepEqual(rows({ window: [null, null] }, 1, 2), ["11"]);
  assert.deepEqual(rows({ window: [1, 0], qOffset: 2 }, 2, 4), ["0110", "0011"]);
  assert.deepEqual(rows({ window: [2, 1], causal: true }, 4, 4), ["1000", "1100", "1110", "0111"]);
});

test("lengths and offsets are per row of the batch", () => {
  const mask = { causal: true, kvLengths: int64([2], [1, 3]), qOffset: int64([2], [2, 0]) };
  const { data } = visible(mask, 2, 1, 2, 3);
  assert.deepEqual([...data], [1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 1, 0]);
  assert.deepEqual(visible({ ...mask, kvLengths: [1, 3], qOffset: [2, 0] }, 2, 1, 2, 3).data, data);
});

test("keep is aligned at the right: rank 3 is (Hq, Tq, Tk)", () => {
  const keep = bool([2, 1, 3], [1, 0, 1, 0, 1, 1]);
  assert.deepEqual([...visible({ keep }, 2, 2, 1, 3).data], [1, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1, 1]);
  assert.deepEqual([...visible({ keep: bool([], [0]) }, 1, 1, 1, 2).data], [0, 0]);
  assert.deepEqual([...visible({ keep: bool([2, 1], [1, 0]) }, 1, 1, 2, 2).data], [1, 1, 0, 0]);
});

test("any value but 0 keeps its slot, and a Buffer is a mask too", () => {
  assert.deepEqual([...visible({ keep: bool([3], [2, 0, 255]) }, 1, 1, 1, 3).data], [1, 0, 1]);
  const buffer = Buffer.from([9, 9, 1, 0, 1]).subarray(2);
  assert.deepEqual([...visible({ keep: { data: buffer, shape: [3] } }, 1, 1, 1, 3).data], [1, 0, 1]);
});

test("all conditions intersect", () => {
  const random = new Random(3);
  for (let round = 0; round < 100; round++) {
    const [B, H, Tq, Tk] = [
      random.integer(1, 3),
      random.integer(1, 2),
      random.integer(0, 6),
      random.integer(0, 6),
    ];
    const conditions: Mask[] = [
      { causal: true },
      { window: [random.integer(0, 3), random.integer(0, 3)] },
      { kvLengths: Array.from({ length: B }, () => random.integer(0, Tk)) },
      { keep: random.mask([B, 1, Tq, Tk]) },
    ];
    const qOffset = Array.from({ length: B }, () => random.integer(-3, 3));
    const tables = conditions.map((mask) => visible({ ...mask, qOffset }, B, H, Tq, Tk).data);
    const all = visible(Object.assign({ qOffset }, ...conditions), B, H, Tq, Tk).data;
    assert.deepEqual(
      [...all],
      Array.from(all, (_, slot) => Number(tables.every((table) => table[slot] === 1))),
    );
  }
});

test("sizes of 0", () => {
  assert.deepEqual(visible({ causal: true }, 0, 2, 3, 4), bool([0, 2, 3, 4], []));
  assert.deepEqual(visible({ keep: bool([2, 0], []) }, 1, 1, 2, 0), bool([1, 1, 2, 0], []));
});

test("bad calls", () => {
  const table = (mask: unknown) => () => visible(mask as Mask, 2, 1, 3, 4);
  assertFails(table({ keep: bool([5], [1, 1, 1, 1, 1]) }), "shape_mismatch");
  assertFails(table({ keep: bool([1, 1, 1, 1, 4], [1, 1, 1, 1]) }), "shape_mismatch");
  assertFails(table({ keep: bool([4, 3], new Uint8Array(12)) }), "shape_mismatch");
  assertFails(table({ keep: bool([0], []) }), "shape_mismatch");
  assertFails(table({ keep: f32([4], [0, 0, 0, 0]) }), "dtype_mismatch");
  for (const window of [[-1, 0], [0, -1], [1.5, 0], [NaN, 0], [1], [1, 2, 3], 3, "ab", [true, 0], ["1", 0]]) {
    assertFails(table({ window }), "invalid_config");
  }
  for (const sizes of [
    [-1, 1, 1, 1],
    [1, 0.5, 1, 1],
    [1, 1, NaN, 1],
    [1, 1, "1", 1],
    [1, 2 ** 10, 2 ** 20, 2 ** 20],
  ]) {
    assertFails(() => visible({}, ...(sizes as [number, number, number, number])), "invalid_config");
  }
  for (const causal of [1, 0, "true"]) assertFails(table({ causal }), "invalid_config");
  for (const qOffset of [1.5, NaN, Infinity, true, "2"]) assertFails(table({ qOffset }), "invalid_config");
  for (const argument of ["kvLengths", "qOffset"]) {
    assertFails(table({ [argument]: int64([1], [1]) }), "shape_mismatch");
    assertFails(table({ [argument]: int64([2, 1], [1, 1]) }), "shape_mismatch");
    assertFails(table({ [argument]: [1, 2, 3] }), "shape_mismatch");
    assertFails(table({ [argument]: [1, 0.5] }), "invalid_config");
    assertFails(table({ [argument]: f32([2], [1, 1]) }), "dtype_mismatch");
    assertFails(table({ [argument]: { data: Int32Array.of(1, 1), shape: [2] } }), "dtype_mismatch");
  }
  assertFails(table({ kvLengths: int64([2], [0, 5]) }), "invalid_config");
  assertFails(table({ kvLengths: int64([2], [-1, 4]) }), "invalid_config");
  assertFails(table({ kvLengths: 3 }), "dtype_mismatch");
});
