import assert from "node:assert/strict";
import { test } from "node:test";
import { KVCache, narrow, type QuantFormat, QuantisedCache, quantise, rope } from "../src/index.ts";
import { assertUnchanged, draw, FORMATS, ONE, push, SIZES } from "./caches.ts";
import { assertClose, assertFails, assertSame, f32, Random } from "./helpers.ts";

const CAUSAL = { mask: { causal: true } };

test("it is a contiguous cache of the restored numbers, bit for bit", () => {
  for (const format of FORMATS) {
    for (const dtype of ["float32", "float64"] as const) {
      const random = new Random(91);
      const cache = new QuantisedCache({ ...SIZES, batch: 2, dtype, format, capacity: 9 });
      const plain = new KVCache({ ...SIZES, batch: 2, dtype });
      for (const counts of [
        [5, 2],
        [0, 4],
        [3, 1],
      ]) {
        const { k, v } = draw(random, dtype, 2, 5);
        cache.append(k, v, counts);
      }
      const { k, v } = cache.read();
      plain.append(k, v, cache.lengths);
      const { q } = draw(random, dtype, 2, 3);
      assertSame(cache.attend(q, CAUSAL), plain.attend(q, CAUSAL));
      for (const one of [cache, plain]) {
        one.truncate([7, 3]);
        one.evict([0, 4]);
        one.reorder([1, 0]);
      }
      assertSame(cache.attend(q, CAUSAL), plain.attend(q, CAUSAL));
      assert.deepEqual(cache.read().positions, plain.read().positions);
    }
  }
});

test("codes and scales are those of quantise, group by group, after the turn", () => {
  const random = new Random(92);
  const { k, v } = draw(random, "float32", 1, 3);
  const options = { format: "int4", group: 3, zeroPoint: true } as const;
  const cache = new QuantisedCache({ ...SIZES, batch: 1, ...options, rope: { base: 50 } });
  cache.append(k, v);
  const held = cache.read();
  const [keys, values] = [quantise(rope(k, { base: 50 }), options), quantise(v, options)];
  assert.deepEqual([held.kCodes, held.kScale, held.kZero], [keys.codes, keys.scale, keys.zero]);
  assert.deepEqual([held.vCodes, held.vScale, held.vZero], [values.codes, values.scale, values.zero]);
  assert.deepEqual(
    [held.kCodes.shape, held.kScale!.shape],
    [
      [1, 2, 3, 2],
      [1, 2, 3, 2],
    ],
  );
});

test("halves are attended to in float32, and read rounded once", () => {
  const random = new Random(93);
  const { k, v, q } = draw(random, "float16", 1, 4);
  const cache = new QuantisedCache({ ...SIZES, batch: 1, dtype: "float16", format: "int8" });
  cache.append(k, v);
  const wide = new QuantisedCache({ ...SIZES, batch: 1, format: "int8" });
  wide.append(narrow(k as never, "float32"), narrow(v as never, "float32"));
  const expected = wide.attend(narrow(q as never, "float32"), CAUSAL);
  assertSame(cache.attend(q, CAUSAL), narrow(expected, "float16"));
  assertSame(cache.read().k, narrow(wide.read().k, "float16"));
});

test("a shift restores, turns and quantises again; without a way to go nothing is rounded", () => {
  const random = new Random(94);
  const make = () => new QuantisedCache({ ...SIZES, batch: 1, format: "int8", rope: {} });
  const { k, v } = draw(random, "float32", 1, 4);
  const cache = make();
  cache.append(k, v);
  assertUnchanged(cache, () => cache.shift(0, 0));
  const before = cache.read();
  cache.shift(5, 2);
  const after = cache.read();
  assert.deepEqual(after.positions, [[0, 1, 7, 8]]);
  assert.deepEqual([after.vCodes, after.vScale], [before.vCodes, before.vScale]);
  const places = { data: BigInt64Array.of(0n, 0n, 5n, 5n), shape: [1, 4] };
  const turnedAgain = quantise(rope(before.k, { positions: places }), { format: "int8" });
  assert.deepEqual(after.kCodes.data.slice(8, 16), turnedAgain.codes.data.slice(8, 16));
  assert.deepEqual(after.kCodes.data.slice(0, 8), before.kCodes.data.slice(0, 8));
});

test("bytes of a token", () => {
  const bytes = (format: QuantFormat, more: object = {}) => {
    const cache = new QuantisedCache({ batch: 1, numKvHeads: 2, headDim: 64, format, ...more });
    const x = f32([1, 2, 3, 64], new Float32Array(384).fill(1));
    cache.append(x, x, [2]);
    return cache.stats().bytes / 2;
  };
  const plain = 2 * 2 * 64 * 4; // float32
  assert.deepEqual(
    [bytes("f16"), bytes("fp8_e4m3"), bytes("int8"), bytes("int8", { zeroPoint: true })],
    [512, 256, 256 + 16, 256 + 32],
  );
  assert.equal(bytes("int4", { group: 32 }), 128 + 32);
  assert.ok(bytes("int8") <= 0.27 * plain && bytes("int4") <= 0.16 * plain);
});

test("numbers that are not finite: kept by the floats, refused by the integers, ignored as padding", () => {
  for (const format of FORMATS) {
    const cache = new QuantisedCache({ ...ONE, format });
    push(cache, 1);
    const x = f32([1, 1, 2, 1], [2, NaN]);
    if (format === "int8" || format === "int4") {
      assertUnchanged(cache, () => assertFails(() => cache.append(x, x), "invalid_config"));
      cache.append(x, x, [1]);
      assertClose(cache.read().k.data, [1, 2]);
    } else {
      cache.append(x, x);
      assertClose(cache.read().k.data, [1, 2, NaN]);
    }
  }
  const full = new QuantisedCache({ ...ONE, format: "int8", capacity: 1 });
  assertUnchanged(full, () => assertFails(() => push(full, 1, 2), "capacity_exceeded"));
  assertFails(() => new QuantisedCache({ ...ONE, format: "f16", zeroPoint: true }), "invalid_config");
});
