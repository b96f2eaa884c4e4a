import assert from "node:assert/strict";
import { test } from "node:test";
import {
  KiviCache,
  type KiviCacheOptions,
  KVCache,
  loadCache,
  QuantisedCache,
  quantise,
  restore,
  rope,
  saveCache,
  type Tensor,
} from "../src/index.ts";
import { formatTensors, parseFile, type Stored } from "../src/safetensors.ts";
import { assertUnchanged, draw, ONE, push, SIZES, values } from "./caches.ts";
import { assertFails, assertSame, f32, f64, positions, Random } from "./helpers.ts";

const CAUSAL = { mask: { causal: true } };

function kivi(more: Partial<KiviCacheOptions> = {}): KiviCache {
  return new KiviCache({ ...SIZES, batch: 1, format: "int8", keyGroups: 2, ...more });
}

/** (1, H, T, n) to (1, H, n, T). */
function swapped(x: Tensor<Float32Array>): Tensor<Float32Array> {
  const [, H, T, n] = x.shape as [number, number, number, number];
  const data = x.data.slice();
  for (let at = 0; at < data.length; at++) {
    const [h, t, c] = [Math.floor(at / (T * n)), Math.floor(at / n) % T, at % n];
    data[(h * n + c) * T + t] = x.data[at]!;
  }
  return { data, shape: [1, H, n, T] };
}

test("by hand: a channel has a scale of its own, and the tail is as it came", () => {
  const cache = new KiviCache({ batch: 1, numKvHeads: 1, headDim: 2, format: "int8", keyGroups: 2 });
  const x = f32([1, 1, 3, 2], [1000, 1, -500, 0.5, 3, 0.1]);
  cache.append(x, x);
  const { k, kCodes, kScale, kTail, kZero } = cache.read();
  assert.deepEqual([kCodes.data, kCodes.shape], [Int8Array.of(127, 127, -64, 64, 0, 0), [1, 1, 3, 2]]); // -63.5, 63.5
  assert.deepEqual([kScale.data, kScale.shape], [Float32Array.of(1000 / 127, 1 / 127), [1, 1, 1, 2]]);
  assert.deepEqual([kTail.data, kTail.shape], [Float32Array.of(3, 0.1), [1, 1, 1, 2]]);
  assert.equal(kZero, undefined);
  assert.deepEqual([...k.data.slice(4)], [3, Math.fround(0.1)]);
  const byToken = new QuantisedCache({ batch: 1, numKvHeads: 1, headDim: 2, format: "int8" });
  byToken.append(x, x);
  const off = (keys: Tensor<Float32Array>) => Math.abs(keys.data[3]! - 0.5);
  assert.ok(off(k) < 1 / 127 && off(byToken.read().k) > 0.4); // the small channel is lost beside the large one
});

test("codes are those of quantise along the slots, after the turn; values are those by token", () => {
  for (const format of ["int8", "int4"] as const) {
    for (const zeroPoint of [false, true]) {
      for (const keyGroups of [1, 2, 3, 4]) {
        const random = new Random(220 + keyGroups);
        const cache = kivi({ format, zeroPoint, keyGroups, group: 2, rope: { base: 50 } });
        const { k, v } = draw(random, "float32", 1, 7);
        cache.append(k, v);
        const held = cache.read();
        const turnedK = rope(k, { base: 50 });
        const whole = Math.floor(7 / keyGroups);
        assert.deepEqual(held.kScale.shape, [1, 2, whole, 4]);
        assertSame(held.kTail, positions(turnedK, whole * keyGroups, 7));
        const expected = Array.from({ length: whole }, (_, g) => {
          const group = positions(turnedK, g * keyGroups, (g + 1) * keyGroups);
          const codes = quantise(swapped(group), { format, zeroPoint });
          assertSame(positions(held.k, g * keyGroups, (g + 1) * keyGroups), swapped(restore(codes)));
          return codes;
        });
        const scales = (name: "scale" | "zero") =>
          [0, 1].flatMap((h) => expected.flatMap((codes) => [...codes[name]!.data.slice(4 * h, 4 * h + 4)]));
        assert.deepEqual([...held.kScale.data], scales("scale"));
        if (zeroPoint) assert.deepEqual([...held.kZero!.data], scales("zero"));
        const byToken = quantise(v, { format, zeroPoint, group: 2 });
        assert.deepEqual([held.vCodes, held.vScale], [byToken.codes, byToken.scale]);
      }
    }
  }
});

test("packed codes are two channels a byte, token by token", () => {
  const cache = new KiviCache({ batch: 1, numKvHeads: 1, headDim: 3, format: "int4", keyGroups: 2 });
  const x = f32([1, 1, 2, 3], [7, -7, 1, 3, 7, -7]);
  cache.append(x, x);
  const { kCodes } = cache.read(); // 7, -7, 1 and 3, 7, -7
  assert.deepEqual([kCodes.data, kCodes.shape], [Uint8Array.of(0x97, 0x01, 0x73, 0x09), [1, 1, 2, 2]]);
});

test("it is a contiguous cache of the restored numbers, bit for bit", () => {
  for (const dtype of ["float32", "float64"] as const) {
    for (const keyGroups of [1, 3, 9]) {
      const random = new Random(221);
      const options = { ...SIZES, batch: 2, dtype, rope: { base: 9 }, ropeAt: "attend" } as const;
      const cache = new KiviCache({ ...options, format: "int4", keyGroups, zeroPoint: true });
      const plain = new KVCache(options);
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
    }
  }
});

test("one by one, in chunks, and all at once end in the same codes", () => {
  const random = new Random(222);
  const { k, v } = draw(random, "float32", 2, 11);
  const make = () => new KiviCache({ ...SIZES, batch: 2, format: "int4", keyGroups: 3, rope: {} });
  const whole = make();
  whole.append(k, v);
  for (const size of [1, 2, 4]) {
    const cache = make();
    for (let from = 0; from < 11; from += size) {
      const to = Math.min(11, from + size);
      cache.append(positions(k, from, to), positions(v, from, to));
    }
    assert.deepEqual(saveCache(cache), saveCache(whole));
  }
});

test("what a truncate, an evict or a shift changes is restored, and quantised where a group is full", () => {
  const random = new Random(223);
  const { k, v } = draw(random, "float32", 1, 8);
  const filled = (more: Partial<KiviCacheOptions> = {}) => {
    const cache = kivi({ keyGroups: 3, ...more });
    cache.append(k, v); // two groups, and a tail of 2
    return cache;
  };
  const before = filled().read();

  const cut = filled();
  cut.truncate([5]);
  assertSame(cut.read().kTail, positions(before.k, 3, 5)); // restored numbers wait
  assert.deepEqual(cut.read().kScale.data.slice(0, 4), before.kScale.data.slice(0, 4));
  const whole = filled();
  whole.truncate([6]);
  assertSame(whole.read().k, positions(before.k, 0, 6));
  assert.deepEqual([whole.read().kTail.shape, whole.read().kScale], [[1, 2, 0, 4], before.kScale]);
  assertUnchanged(whole, () => whole.truncate([6]));

  const gone = filled();
  gone.evict([4]);
  const stay = positions(before.k, 5, 8); // with 3 in front: a group of 3, 5, 6, and 7 waits
  const group = [0, 1].flatMap((h) => [
    ...before.k.data.slice((h * 8 + 3) * 4, (h * 8 + 4) * 4),
    ...stay.data.slice(h * 12, h * 12 + 8),
  ]);
  const again = restore(quantise(swapped(f32([1, 2, 3, 4], group)), { format: "int8" }));
  assertSame(positions(gone.read().k, 3, 6), swapped(again));
  assertSame(positions(gone.read().k, 0, 3), positions(before.k, 0, 3));
  assertSame(gone.read().kTail, positions(before.k, 7, 8));
  assertUnchanged(gone, () => gone.evict([77]));
  gone.evict([7]);
  assertSame(positions(gone.read().k, 3, 6), swapped(again)); // the tail alone

  const moved = filled({ rope: { base: 9 } });
  const was = moved.read();
  moved.shift(2, 4);
  const now = moved.read();
  assert.deepEqual(now.positions, [[0, 1, 2, 3, 6, 7, 8, 9]]);
  assertSame(positions(now.k, 0, 3), positions(was.k, 0, 3));
  const at = { data: BigInt64Array.of(0n, 2n, 2n), shape: [1, 3] };
  const turnedK = rope(positions(was.k, 3, 6), { base: 9, positions: at });
  assertSame(positions(now.k, 3, 6), swapped(restore(quantise(swapped(turnedK), { format: "int8" }))));
  const late = filled({ rope: { base: 9 }, ropeAt: "attend" });
  late.shift(2, 4);
  assertSame(late.read().k, before.k);
  assertUnchanged(moved, () => moved.shift(0, 0));
});

test("groups before the first change keep their bits, which would not survive another rounding", () => {
  const group = f32([1, 1, 1, 3], [0.5201810598373413, 0.2734357416629791, 1.2287554740905762]);
  const options = { format: "int4", zeroPoint: true } as const;
  const once = restore(quantise(group, options));
  assert.notDeepEqual(restore(quantise(once, options)), once);
  const cache = new KiviCache({ ...ONE, ...options, keyGroups: 3, rope: null });
  cache.append(values(...group.data, 1, 2, 3, 4), values(0, 0, 0, 0, 0, 0, 0));
  for (const change of [
    () => cache.evict([4]),
    () => cache.evict([6]),
    () => cache.truncate([4]),
    () => cache.evictBy({ type: "window", budget: 3, sinks: 3 }),
  ]) {
    change();
    assert.deepEqual(positions(cache.read().k, 0, 3).data, once.data);
  }
});

test("rows, forks and beams share no later step", () => {
  const random = new Random(224);
  const cache = new KiviCache({ ...SIZES, batch: 2, format: "int8", keyGroups: 2 });
  const { k, v } = draw(random, "float32", 2, 5);
  cache.append(k, v, [5, 2]);
  const before = saveCache(cache);
  const fork = cache.fork();
  fork.reorder([1, 0]);
  assert.deepEqual(
    [fork.lengths, fork.read().kTail.shape],
    [
      [2, 5],
      [2, 2, 1, 4],
    ],
  );
  fork.evict([0, 3]);
  fork.append(k, v);
  assert.deepEqual(saveCache(cache), before);
  cache.reset();
  assert.deepEqual([cache.stats().bytes, cache.read().kCodes.shape], [0, [2, 2, 0, 4]]);
});

test("numbers that are not finite are refused in the tail already, and a range when its group is full", () => {
  const cache = new KiviCache({ ...ONE, format: "int8", keyGroups: 3, zeroPoint: true });
  push(cache, 1);
  for (const x of [NaN, Infinity, -Infinity]) {
    assertUnchanged(cache, () => assertFails(() => push(cache, x), "invalid_config"));
    cache.append(values(2, x), values(2, x), [1]); // padding is ignored
    cache.truncate([1]);
  }
  cache.append(values(3e38, -3e38), values(0, 0), [1]);
  const full = () => cache.append(values(-3e38), values(0));
  assertUnchanged(cache, () => assertFails(full, "invalid_config"));
  cache.append(values(5), values(0));
  const wide = new KiviCache({ ...ONE, dtype: "float64", format: "int8", keyGroups: 2 });
  const far = f64([1, 1, 1, 1], [1e300]);
  const near = f64([1, 1, 1, 1], [1]);
  assertUnchanged(wide, () => assertFails(() => wide.append(far, near), "invalid_config"));
  for (const bad of [
    { keyGroups: 0 },
    { keyGroups: 1.5 },
    { keyGroups: "2" },
    { format: "f16" },
    { format: "fp8_e4m3" },
  ]) {
    assertFails(() => kivi(bad as never), "invalid_config");
  }
  const bounded = kivi({ capacity: 3, keyGroups: 2 });
  const { k, v } = draw(new Random(1), "float32", 1, 4);
  assertUnchanged(bounded, () => assertFails(() => bounded.append(k, v), "capacity_exceeded"));
});

test("bytes: codes and scales of groups, float32 of the tail", () => {
  const cache = kivi({ keyGroups: 2, zeroPoint: true });
  const { k, v } = draw(new Random(2), "float32", 1, 5);
  cache.append(k, v);
  const keys = 2 * (4 * 4 + 2 * 4 * 8 + 4 * 4); // heads · (codes + scales and zeros + tail)
  const byToken = 2 * 5 * (3 + 8);
  assert.equal(cache.stats().bytes, keys + byToken);
  const many = new KiviCache({ batch: 1, numKvHeads: 1, headDim: 128, format: "int4", keyGroups: 32 });
  const x = f32([1, 1, 64, 128], new Float32Array(64 * 128).fill(1));
  many.append(x, x);
  assert.ok(many.stats().bytes <= 0.16 * 64 * 2 * 128 * 4);
});

test("a file has groups and tails, and one that lacks some is damaged", () => {
  const random = new Random(225);
  const make = () =>
    new KiviCache({ ...SIZES, batch: 2, format: "int4", keyGroups: 3, zeroPoint: true, track: true });
  const cache = make();
  const { k, v, q } = draw(random, "float32", 2, 8);
  cache.append(k, v, [8, 5]);
  cache.attend(q);
  const file = saveCache(cache);
  const { tensors, metadata } = parseFile(file);
  assert.equal(metadata.key_groups, "3");
  assert.deepEqual(
    ["k_codes", "k_scale", "k_zero", "k_tail", "v_codes", "tracked"].map((name) => tensors.get(name)!.shape),
    [
      [2, 2, 8, 2],
      [2, 2, 2, 4],
      [2, 2, 2, 4],
      [2, 2, 2, 4],
      [2, 2, 8, 2],
      [2, 2, 8],
    ],
  );
  const other = make();
  loadCache(other, file);
  for (const one of [cache, other]) one.append(k, v, [1, 2]);
  assert.deepEqual(saveCache(other), saveCache(cache));
  const changed = (name: string, x: Stored) => formatTensors(new Map([...tensors, [name, x]]), metadata);
  for (const name of ["k_scale", "k_zero", "k_tail"]) {
    for (const count of [1, 3]) {
      const wrong = { dtype: "F32", shape: [2, 2, count, 4], data: new Float32Array(16 * count) };
      assertUnchanged(other, () =>
        assertFails(() => loadCache(other, changed(name, wrong)), "invalid_request", /^load: /),
      );
    }
  }
  const plain = new QuantisedCache({ ...SIZES, batch: 2, format: "int4", zeroPoint: true, track: true });
  assertFails(() => loadCache(plain, file), "invalid_config", /^load: /);
});
