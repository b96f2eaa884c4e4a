import assert from "node:assert/strict";
import { test } from "node:test";
import { KVCache, type Mask, sdpa, sdpaSteps, type Tensor } from "../src/index.ts";
import { ONE, push, values } from "./caches.ts";
import { assertClose, assertFails, assertSame, bool, f32, f64, int64, positions, Random } from "./helpers.ts";

function single(capacity: number | null = null): KVCache {
  return new KVCache({ ...ONE, capacity });
}

/** The means that Tq queries of 0 see. */
function means(cache: KVCache, Tq: number, mask: Mask = { causal: true }): number[] {
  return [...cache.attend(values(...new Array(Tq).fill(0)), { mask }).data];
}

test("causal aligns the last query with the last position (ChunkedPrefill)", () => {
  const cache = single();
  push(cache, 1, 2, 4);
  assertClose(means(cache, 3), [1, 1.5, 7 / 3]);
  push(cache, 8, 16);
  assertClose(means(cache, 2), [3.75, 6.2]);
  assertClose(means(cache, 2, { causal: true, qOffset: 0 }), [1, 1.5]);
  assertClose(means(cache, 2, { causal: true, qOffset: int64([1], [1]) }), [1.5, 7 / 3]);
  assertClose(means(cache, 7), [0, 0, 1, 1.5, 7 / 3, 3.75, 6.2]);
});

test("a window keeps its keys one by one", () => {
  const cache = single();
  const seen = [1, 2, 4, 8].map((x) => {
    push(cache, x);
    return means(cache, 1, { window: [2, 0] })[0]!;
  });
  assertClose(seen, [1, 1.5, 7 / 3, 14 / 3]);
});

test("truncate takes back the draft that was refused, and nothing else (Rollback)", () => {
  const cache = single();
  push(cache, 1, 2, 4);
  push(cache, 100, 200);
  cache.truncate([4]);
  assert.equal(cache.length, 4);
  push(cache, 8);
  assertClose(means(cache, 1), [23]);
});

test("after reset a cache is as new (StaleReset)", () => {
  const cache = single();
  push(cache, 1, 2, 4);
  cache.reset();
  assert.deepEqual([cache.length, cache.lengths], [0, [0]]);
  assertClose(means(cache, 1), [0]);
  push(cache, 5);
  assertClose(means(cache, 1), [5]);
});

test("chunks in any split give the rows of the whole, bit for bit, and again after reset", () => {
  for (const dtype of ["float32", "float64"] as const) {
    const random = new Random(30);
    for (let round = 0; round < 40; round++) {
      const [B, Hkv, G] = [random.integer(1, 3), random.integer(1, 2), random.integer(1, 3)];
      const [T, D, Dv] = [random.integer(1, 20), random.integer(1, 9), random.integer(1, 9)];
      const q = random.tensor(dtype, [B, Hkv * G, T, D]);
      const k = random.tensor(dtype, [B, Hkv, T, D]);
      const v = random.tensor(dtype, [B, Hkv, T, Dv]);
      const window = random.next() < 0.5 ? ([random.integer(0, 5), null] as const) : null;
      const mask = { causal: true, window };
      const whole = sdpaSteps(q, k, v, { mask, softcap: 3 });
      const capacity = random.next() < 0.5 ? T : null;
      const cache = new KVCache({ batch: B, numKvHeads: Hkv, headDim: D, valueDim: Dv, capacity, dtype });
      for (let replay = 0; replay < 2; replay++) {
        for (let from = 0; from < T; ) {
          const to = Math.min(T, from + random.integer(replay, 6)); // at first with empty chunks
          cache.append(positions(k, from, to), positions(v, from, to));
          const part = cache.attend(positions(q, from, to), { mask, softcap: 3 });
          assertSame(part, positions(whole.output, from, to));
          from = to;
        }
        cache.reset();
      }
    }
  }
});

test("rows of their own lengths behave as caches of their own, and junk is never seen", () => {
  const random = new Random(31);
  for (let round = 0; round < 40; round++) {
    const B = random.integer(1, 4);
    const cache = new KVCache({ batch: B, numKvHeads: 2, headDim: 3, dtype: "float64" });
    const alone = Array.from(
      { length: B },
      () => new KVCache({ batch: 1, numKvHeads: 2, headDim: 3, dtype: "float64" }),
    );
    for (let step = 0; step < 5; step++) {
      const T = random.integer(0, 4);
      const counts = Array.from({ length: B }, () => random.integer(0, T));
      const [k, v] = [random.tensor("float64", [B, 2, T, 3]), random.tensor("float64", [B, 2, T, 3])];
      const row = (x: Tensor<Float64Array>, b: number): Tensor<Float64Array> => {
        const size = x.data.length / B;
        return { data: x.data.slice(b * size, (b + 1) * size), shape: [1, ...x.shape.slice(1)] };
      };
      for (let b = 0; b < B; b++) {
        alone[b]!.append(positions(row(k, b), 0, counts[b]!), positions(row(v, b), 0, counts[b]!));
        for (let h = 0; h < 2; h++) {
          const block = (b * 2 + h) * T;
          k.data.fill(NaN, (block + counts[b]!) * 3, (block + T) * 3); // junk beyond what counts
          v.data.fill(NaN, (block + counts[b]!) * 3, (block + T) * 3);
        }
      }
      cache.append(k, v, step % 2 === 0 ? counts : int64([B], counts));
      const q = random.tensor("float64", [B, 4, 2, 3]);
      const mask = { causal: random.next() < 0.5 };
      const together = cache.attendSteps(q, { mask });
      const held = cache.read();
      for (let b = 0; b < B; b++) {
        const expected = alone[b]!.attendSteps(row(q, b), { mask });
        assertSame(row(together.output, b), expected.output);
        assertSame(row(together.lse as typeof q, b), expected.lse);
        const length = alone[b]!.length;
        assertSame(positions(row(held.k, b), 0, length), alone[b]!.read().k);
        assert.ok(positions(row(held.v, b), length, cache.length).data.every((x) => x === 0));
      }
      assert.deepEqual(
        held.lengths,
        alone.map((one) => one.length),
      );
      if (random.next() < 0.3) {
        const kept = cache.lengths.map((n) => random.integer(0, n));
        cache.truncate(kept);
        for (let b = 0; b < B; b++) alone[b]!.truncate([kept[b]!]);
      }
    }
  }
});

test("mask and bias are over the positions held", () => {
  const cache = single();
  push(cache, 1, 2, 4);
  assertClose(means(cache, 1, { keep: bool([3], [1, 0, 1]) }), [2.5]);
  const bias = f32([3], [-Infinity, 0, 0]);
  assertClose(cache.attend(values(0), { bias }).data, [3]);
  assertFails(() => cache.attend(values(0), { bias: f32([4], [0, 0, 0, 0]) }), "shape_mismatch");
});

test("attend is sdpa over what is held", () => {
  const random = new Random(32);
  const cache = new KVCache({ batch: 2, numKvHeads: 2, headDim: 4, valueDim: 3 });
  const [k, v] = [random.tensor("float32", [2, 2, 5, 4]), random.tensor("float32", [2, 2, 5, 3])];
  cache.append(k, v);
  const q = random.tensor("float32", [2, 4, 3, 4]);
  const options = { scale: 0.4, softcap: 1.5, bias: random.tensor("float32", [4, 3, 5]) };
  assertSame(cache.attend(q, options), sdpa(q, k, v, options));
  assertSame(cache.keys(), k);
  assertSame(cache.values(), v);
});

test("what a cache gives away is a copy", () => {
  const cache = single();
  push(cache, 1, 2);
  cache.keys().data.fill(9);
  cache.values().data.fill(9);
  cache.read().v.data.fill(9);
  cache.lengths[0] = 7;
  const input = values(4);
  cache.append(input, input);
  input.data.fill(9);
  assertClose(means(cache, 1), [7 / 3]);
});

test("a capacity is a limit, and a failed append changes nothing", () => {
  const cache = single(3);
  push(cache, 1, 2);
  assertFails(() => push(cache, 3, 4), "capacity_exceeded");
  assert.equal(cache.length, 2);
  assertClose(means(cache, 1), [1.5]);
  cache.append(values(3, NaN), values(3, NaN), [1]);
  assertClose(means(cache, 1), [2]);
  assertFails(() => push(cache, 9), "capacity_exceeded");
  assertFails(() => push(single(0), 1), "capacity_exceeded");
});

test("sizes of 0 and 1", () => {
  const none = new KVCache({ batch: 0, numKvHeads: 1, headDim: 2 });
  none.append(f32([0, 1, 3, 2], []), f32([0, 1, 3, 2], []));
  assert.deepEqual([none.length, none.lengths], [0, []]);
  assert.deepEqual(none.attend(f32([0, 1, 2, 2], [])).shape, [0, 1, 2, 2]);
  none.truncate([]);
  const cache = single();
  push(cache);
  const nothing = f32([1, 1, 0, 1], []);
  assert.deepEqual(cache.read(), { k: nothing, v: nothing, lengths: [0], positions: [[]] });
  assertClose(cache.attendSteps(values(1, 1)).lse.data, [-Infinity, -Infinity]);
  push(cache, 5);
  assertClose(cache.attend(values(1)).data, [5]);
  assert.deepEqual(cache.attend(values()).shape, [1, 1, 0, 1]);
});

test("bad calls change nothing", () => {
  const sizes = { batch: 2, numKvHeads: 1, headDim: 3 };
  const bad = (changes: object) => () => new KVCache({ ...sizes, ...changes });
  for (const change of [
    { batch: -1 },
    { batch: 2 ** 62 },
    { batch: 2 ** 32, headDim: 1 },
    { capacity: 2 ** 50, batch: 1, headDim: 1 }, // more bytes than a processor can address
    { headDim: 2 ** 27, capacity: 2 ** 27 },
    { numKvHeads: 0 },
    { headDim: 0 },
    { valueDim: -1 },
    { capacity: -1 },
  ]) {
    assertFails(bad(change), "invalid_config");
  }
  for (const name of ["batch", "numKvHeads", "headDim", "valueDim", "capacity"]) {
    for (const value of [1.5, NaN, "2", true]) assertFails(bad({ [name]: value }), "invalid_config");
  }
  assertFails(bad({ dtype: "float8" }), "dtype_mismatch");

  const cache = new KVCache({ ...sizes, valueDim: 2 });
  const [k, v] = [
    f32([2, 1, 2, 3], new Float32Array(12).fill(1)),
    f32([2, 1, 2, 2], new Float32Array(8).fill(2)),
  ];
  cache.append(k, v, [2, 1]);
  const before = cache.read();
  const fails = (code: string, call: () => unknown) => {
    assertFails(call, code);
    assert.deepEqual(cache.read(), before);
  };
  fails("shape_mismatch", () => cache.append(f32([1, 1, 2, 3], new Float32Array(6)), v));
  fails("shape_mismatch", () => cache.append(f32([2, 1, 2, 2], new Float32Array(8)), v));
  fails("shape_mismatch", () => cache.append(k, f32([2, 1, 3, 2], new Float32Array(12))));
  fails("shape_mismatch", () => cache.append(k, f32([2, 2, 2], new Float32Array(8))));
  fails("dtype_mismatch", () => cache.append(f64([2, 1, 2, 3], new Float64Array(12)) as never, v));
  fails("dtype_mismatch", () => cache.append(k, f64([2, 1, 2, 2], new Float64Array(8)) as never));
  fails("shape_mismatch", () => cache.append(k, v, [1]));
  fails("invalid_config", () => cache.append(k, v, [1, 3]));
  fails("invalid_config", () => cache.append(k, v, [-1, 1]));
  fails("invalid_config", () => cache.append(k, v, [0.5, 1]));
  fails("dtype_mismatch", () => cache.append(k, v, f32([2], [1, 1]) as never));
  fails("shape_mismatch", () => cache.truncate([1]));
  fails("invalid_config", () => cache.truncate([1, 2]));
  fails("invalid_config", () => cache.truncate([-1, 1]));
  fails("invalid_config", () => cache.truncate([0.5, 1]));
  fails("invalid_config", () => cache.truncate("11" as never));
  fails("shape_mismatch", () => cache.attend(f32([2, 1, 3], new Float32Array(6))));
  fails("shape_mismatch", () => cache.attend(f32([1, 1, 1, 3], [1, 2, 3])));
  fails("shape_mismatch", () => cache.attend(f32([2, 1, 1, 2], [1, 2, 3, 4])));
  fails("dtype_mismatch", () => cache.attend(f64([2, 1, 1, 3], [1, 2, 3, 4, 5, 6]) as never));
  fails("invalid_config", () =>
    cache.attend(f32([2, 1, 1, 3], [1, 2, 3, 4, 5, 6]), { mask: { kvLengths: [1, 1] } }),
  );
});
