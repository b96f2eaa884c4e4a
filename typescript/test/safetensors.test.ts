import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { formatTensors, parseTensors, readTensors, type Stored, writeTensors } from "../port/safetensors.ts";
import { Bfloat16Array } from "../src/index.ts";
import { assertClose } from "./helpers.ts";

const folder = mkdtempSync(join(tmpdir(), "safetensors-"));
after(() => rmSync(folder, { recursive: true }));

/** A file with exactly this header. */
function file(header: string, data: ArrayLike<number> = []): Uint8Array {
  const text = Buffer.from(header);
  const bytes = new Uint8Array(8 + text.length + data.length);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(text.length), true);
  bytes.set(text, 8);
  bytes.set(data, 8 + text.length);
  return bytes;
}

function entry(dtype: string, shape: number[], begin: number, end: number): string {
  return JSON.stringify({ dtype, shape, data_offsets: [begin, end] });
}

test("a header of any length, tensors in any order, empty and of rank 0", () => {
  const wide = new DataView(new ArrayBuffer(8));
  wide.setFloat64(0, 0.1, true);
  const narrow = new DataView(new ArrayBuffer(12));
  narrow.setFloat32(0, 1.5, true);
  narrow.setBigInt64(4, -2n, true);
  const data = [1, ...new Uint8Array(narrow.buffer), ...new Uint8Array(wide.buffer), 0, 0x3f];
  const first = `"z":${entry("F64", [1], 13, 21)},"s":${entry("F32", [], 1, 5)}`;
  const second = `"i":${entry("I64", [1], 5, 13)},"b":${entry("BOOL", [1], 0, 1)}`;
  const third = `"e":${entry("F32", [2, 0], 21, 21)},"h":${entry("BF16", [1], 21, 23)}`;
  const header = `{${first},${second},${third}}`;
  for (let spaces = 0; spaces < 9; spaces++) {
    const tensors = parseTensors(file(header + " ".repeat(spaces), data));
    assert.deepEqual([...tensors.keys()], ["z", "s", "i", "b", "e", "h"]);
    assert.deepEqual(tensors.get("z"), { dtype: "F64", shape: [1], data: Float64Array.of(0.1) });
    assert.deepEqual(tensors.get("s"), { dtype: "F32", shape: [], data: Float32Array.of(1.5) });
    assert.deepEqual(tensors.get("i"), { dtype: "I64", shape: [1], data: BigInt64Array.of(-2n) });
    assert.deepEqual(tensors.get("b"), { dtype: "BOOL", shape: [1], data: Uint8Array.of(1) });
    assert.deepEqual(tensors.get("e"), { dtype: "F32", shape: [2, 0], data: new Float32Array(0) });
    assert.deepEqual(tensors.get("h"), { dtype: "BF16", shape: [1], data: new Bfloat16Array([0x3f00]) });
  }
});

test("a file inside a larger Buffer is read from its own first byte", () => {
  const bytes = file(`{"x":${entry("F32", [1], 0, 4)}}`, [0, 0, 0x80, 0x3f]);
  const larger = Buffer.concat([Buffer.from([9, 9, 9]), bytes, Buffer.from([9])]);
  const { data } = parseTensors(larger.subarray(3, -1)).get("x")!;
  assertClose(data as Float32Array, [1], 0);
  assert.equal(data.buffer.byteLength, 4);
});

test("metadata is no tensor", () => {
  assert.equal(parseTensors(file('{"__metadata__":{"format":"pt"}}')).size, 0);
  assert.equal(parseTensors(file("{}")).size, 0);
});

test("what was written is read back bit for bit, and every tensor is aligned", () => {
  const special = [NaN, Infinity, -Infinity, -0, 5e-324, Number.MAX_VALUE, 0.1];
  const view = Float32Array.of(9, 9, 1, 2, 3).subarray(2);
  const tensors = new Map<string, Stored>([
    ["bool", { dtype: "BOOL", shape: [3], data: Uint8Array.of(1, 0, 1) }],
    ["f32", { dtype: "F32", shape: [7], data: Float32Array.from(special) }],
    ["f64", { dtype: "F64", shape: [7, 1], data: Float64Array.from(special) }],
    ["view", { dtype: "F32", shape: [3], data: view }],
    ["f16", { dtype: "F16", shape: [7], data: Float16Array.from(special) }],
    ["bf16", { dtype: "BF16", shape: [3], data: new Bfloat16Array([0x7fab, 0x8000, 1]) }],
    ["u8", { dtype: "U8", shape: [1], data: Uint8Array.of(9) }],
    ["i64", { dtype: "I64", shape: [2], data: BigInt64Array.of(-(2n ** 63n), 2n ** 53n + 1n) }],
    ["scalar.ünï", { dtype: "F64", shape: [], data: Float64Array.of(3) }],
    ["empty", { dtype: "F32", shape: [0, 4], data: new Float32Array(0) }],
    ["__proto__", { dtype: "F32", shape: [1], data: Float32Array.of(4) }],
  ]);
  const path = join(folder, "round.safetensors");
  writeTensors(path, tensors);
  const read = readTensors(path);
  assert.deepEqual(new Set(read.keys()), new Set(tensors.keys()));
  for (const [name, tensor] of tensors)
    assert.deepEqual(read.get(name), { ...tensor, data: tensor.data.slice() });
  assert.deepEqual(readdirSync(folder), ["round.safetensors"]);

  const bytes = formatTensors(tensors);
  const length = Number(new DataView(bytes.buffer).getBigUint64(0, true));
  assert.equal(length % 8, 0);
  const header = JSON.parse(Buffer.from(bytes.subarray(8, 8 + length)).toString());
  for (const [name, { data_offsets }] of Object.entries<{ data_offsets: number[] }>(header)) {
    assert.equal(data_offsets[0]! % tensors.get(name)!.data.BYTES_PER_ELEMENT, 0, name);
  }
});

test("no tensors make a file too", () => {
  assert.equal(parseTensors(formatTensors(new Map())).size, 0);
});

test("broken files are refused", () => {
  const x = `{"x":${entry("F32", [1], 0, 4)}}`;
  const broken: [string, Uint8Array][] = [
    ["no length", new Uint8Array(7)],
    ["a header beyond the end", file("{}").subarray(0, 9)],
    ["a header of 2 to the 60 bytes", new Uint8Array([0, 0, 0, 0, 0, 0, 0, 16, 123, 125])],
    ["a header padded with NUL", file(`${x}\0`, [0, 0, 0, 0])],
    ["no JSON", file("{x}")],
    ["no object", file("3")],
    ["no UTF-8", new Uint8Array([3, 0, 0, 0, 0, 0, 0, 0, 0x22, 0xff, 0x22])],
    ["too little data", file(x, [0, 0, 0])],
    ["too much data", file(x, [0, 0, 0, 0, 0])],
    ["a hole", file(`{"x":${entry("F32", [1], 1, 5)}}`, [0, 0, 0, 0, 0])],
    ["bytes of two", file(`{"x":${entry("F32", [1], 0, 4)},"y":${entry("U8", [1], 3, 4)}}`, [0, 0, 0, 0])],
    ["offsets that do not fit the shape", file(`{"x":${entry("F32", [2], 0, 4)}}`, [0, 0, 0, 0])],
    ["offsets the wrong way round", file(`{"x":${entry("F32", [0], 4, 0)}}`, [0, 0, 0, 0])],
    ["a negative offset", file(`{"x":${entry("F32", [1], -4, 0)}}`, [0, 0, 0, 0])],
    ["no dtype", file('{"x":{"shape":[1],"data_offsets":[0,4]}}', [0, 0, 0, 0])],
    ["an unknown dtype", file('{"x":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}}', [0, 0, 0, 0])],
    ["no shape", file('{"x":{"dtype":"F32","data_offsets":[0,4]}}', [0, 0, 0, 0])],
    ["no offsets", file('{"x":{"dtype":"F32","shape":[1]}}', [0, 0, 0, 0])],
  ];
  for (const [what, bytes] of broken) assert.throws(() => parseTensors(bytes), what);
  assert.throws(() => readTensors(join(folder, "absent")), { code: "invalid_request" });
  assert.throws(() => writeTensors(join(folder, "absent", "x"), new Map()), { code: "invalid_request" });
});
