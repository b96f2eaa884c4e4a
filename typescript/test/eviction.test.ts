import assert from "node:assert/strict";
import { test } from "node:test";
import { slotsThatStay } from "../src/eviction.ts";
import { type Cache, KiviCache, KVCache, type Policy, QuantisedCache, sdpa } from "../src/index.ts";
import { assertUnchanged, draw, ONE, perHead, push, SIZES, values } from "./caches.ts";
import { assertClose, assertFails, assertSame, bool, f32, f64, Random } from "./helpers.ts";

const CAUSAL = { mask: { causal: true } };

/** Slots that stay of these scores. */
function stay(
  scores: number[],
  budget: number,
  more: { sinks?: number; recent?: number; pool?: number } = {},
) {
  return slotsThatStay(scores, { budget, sinks: 0, recent: 0, pool: 1, ...more });
}

test("the highest scores stay, in the order in which they stand", () => {
  const scores = [5, 1, 4, 2, 3];
  assert.deepEqual(
    [0, 1, 2, 3, 4, 5, 6].map((budget) => stay(scores, budget)),
    [[], [0], [0, 2], [0, 2, 4], [0, 2, 3, 4], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]],
  );
});

test("of equal scores the first stay, and NaN is below every number", () => {
  assert.deepEqual(stay([1, 1, 1, 1], 2), [0, 1]);
  assert.deepEqual(stay([1, 2, 1, 2, 1], 3), [0, 1, 3]);
  assert.deepEqual(stay([-0, 0, -0], 1), [0]);
  assert.deepEqual(stay([NaN, -Infinity, NaN, 0], 2), [1, 3]);
  assert.deepEqual(stay([NaN, NaN, NaN], 2), [0, 1]);
  assert.deepEqual(stay([NaN, 1, NaN], 2), [0, 1]);
});

test("the first and the last slots do not compete", () => {
  const scores = [0, 9, 1, 8, 2, 0];
  assert.deepEqual(stay(scores, 3, { sinks: 1 }), [0, 1, 3]);
  assert.deepEqual(stay(scores, 3, { recent: 1 }), [1, 3, 5]);
  assert.deepEqual(stay(scores, 4, { sinks: 1, recent: 2 }), [0, 1, 4, 5]);
  assert.deepEqual(stay(scores, 3, { sinks: 1, recent: 2 }), [0, 4, 5]);
  assert.deepEqual(stay(scores, 0, { sinks: 1, recent: 2 }), []);
});

test("a pool lifts the neighbours, but not across those that do not compete", () => {
  const scores = [0, 0, 0, 7, 1, 2, 9];
  assert.deepEqual(stay(scores, 4, { recent: 1 }), [3, 4, 5, 6]);
  assert.deepEqual(stay(scores, 4, { recent: 1, pool: 3 }), [2, 3, 4, 6]);
  assert.deepEqual(stay([9, 0, 1, 0, 2], 2, { sinks: 1, pool: 3 }), [0, 3]);
  assert.deepEqual(stay([1, NaN, 0, 0], 2, { pool: 3 }), [0, 1]);
  assert.deepEqual(stay([1, 2, 3], 1, { pool: 2 ** 61 + 1 }), [0]);
});

/** A cache of one head with keys of 0 and values 1, 2, 4, 8: an attend gives means of what is held. */
function fourValues(): KVCache {
  const cache = new KVCache({ ...ONE, track: true });
  cache.append(values(0, 0, 0, 0), values(1, 2, 4, 8));
  return cache;
}

test("a window keeps the first and the newest (StreamingLLM)", () => {
  const cache = fourValues();
  cache.evictBy({ type: "window", budget: 3, sinks: 1 });
  assert.deepEqual(cache.read().positions, [[0, 2, 3]]);
  assertClose(cache.attend(values(0)).data, [13 / 3]);
  cache.evictBy({ type: "window", budget: 1 });
  assertClose(cache.attend(values(0)).data, [8]);
  cache.evictBy({ type: "window", budget: 0, sinks: 5 });
  assertClose(cache.attend(values(0)).data, [0]);
  push(cache, 16);
  assert.deepEqual(cache.read().positions, [[4]]);
  assertClose(cache.attend(values(0)).data, [16]);
});

test("heavy hitters are those that were given most since they came (H2O)", () => {
  const cache = fourValues();
  const ask = (...keep: number[]) => cache.attend(values(0), { mask: { keep: bool([4], keep) } });
  ask(0, 1, 1, 0);
  ask(0, 0, 1, 1);
  ask(0, 0, 0, 1);
  assertClose(cache.read().tracked!.data, [0, 0.5, 1, 1.5]);
  cache.evictBy({ type: "heavy_hitters", budget: 2 });
  assert.deepEqual(cache.read().positions, [[2, 3]]);
  const other = fourValues();
  other.evictBy({ type: "heavy_hitters", budget: 2 }); // nothing was asked yet
  assert.deepEqual(other.read().positions, [[0, 1]]);
});

test("snapkv keeps what its queries look at, and is not tracked", () => {
  const cache = new KVCache({ ...ONE, dtype: "float64", track: true });
  const x = f64([1, 1, 4, 1], [1, 3, 2, 0]);
  cache.append(x, x);
  const q = f64([1, 1, 2, 1], [1, 1]);
  cache.evictBy({ type: "snapkv", budget: 2, q });
  assert.deepEqual(cache.read().positions, [[1, 2]]);
  assert.deepEqual([...cache.read().tracked!.data], [0, 0]);
  cache.reset();
  cache.append(x, x);
  cache.evictBy({ type: "snapkv", budget: 2, q, scale: -1 });
  assert.deepEqual(cache.read().positions, [[0, 3]]);
  cache.reset();
  cache.append(x, x);
  cache.evictBy({ type: "snapkv", budget: 2, q, pool: 3 });
  assert.deepEqual(cache.read().positions, [[0, 1]]);
});

test("queries of snapkv see no key behind them", () => {
  const cache = new KVCache({ ...ONE, dtype: "float64" });
  const x = f64([1, 1, 4, 1], [0, 0, 0, 0.01]);
  cache.append(x, x);
  cache.evictBy({ type: "snapkv", budget: 1, q: f64([1, 1, 2, 1], [1, 1]) }); // about 1/3 + 1/4 each, and 1/4
  assert.deepEqual(cache.read().positions, [[0]]);
});

test("the last query of snapkv stands on the last position: causal, and turned as in an attend", () => {
  const random = new Random(200);
  for (const ropeAt of ["append", "attend"] as const) {
    const cache = new KVCache({
      ...SIZES,
      batch: 1,
      dtype: "float64",
      rope: { base: 3 },
      ropeAt,
      track: true,
    });
    const { k, v } = draw(random, "float64", 1, 6);
    const { q } = draw(random, "float64", 1, 3);
    cache.append(k, v);
    const twin = cache.fork();
    twin.attend(q, CAUSAL);
    const weights = twin.read().tracked!.data; // (1, 2, 6)
    const sums = Array.from({ length: 6 }, (_, j) => weights[j]! + weights[6 + j]!);
    const best = Array.from(sums.keys()).sort((i, j) => sums[j]! - sums[i]!);
    cache.evictBy({ type: "snapkv", budget: 3, q });
    assert.deepEqual(cache.read().positions, [best.slice(0, 3).sort((i, j) => i - j)]);
  }
});

test("the shortest keys stay, their squares added up in order", () => {
  const cache = new KVCache({ batch: 1, numKvHeads: 2, headDim: 2, dtype: "float64" });
  const k = f64([1, 2, 3, 2], [3, 0, 1, 1, 0, 0, 0, 0, 2, 1, 0, 4]); // 9 + 0, 2 + 5, 0 + 16
  cache.append(k, k);
  cache.evictBy({ type: "key_norm", budget: 2 });
  assert.deepEqual(cache.read().positions, [[0, 1]]);
  const big = 2 ** 27; // of big² + 1 the 1 is rounded away
  for (const [first, second, kept] of [
    [[big, 1, 1, 1, 1], [1, 1, 1, 1, big], 0], // 2^54 and 2^54 + 4
    [[1, 1, 1, 1, big], [big, 1, 1, 1, 1], 1],
  ] as const) {
    const order = new KVCache({ batch: 1, numKvHeads: 1, headDim: 5, dtype: "float64" });
    const rows = f64([1, 1, 2, 5], [...first, ...second]);
    order.append(rows, rows);
    order.evictBy({ type: "key_norm", budget: 1 });
    assert.deepEqual(order.read().positions, [[kept]]);
  }
});

test("a cache that evicted attends as one whose slots are hidden", () => {
  const random = new Random(201);
  for (let round = 0; round < 30; round++) {
    const rope = round % 2 === 0 ? null : { base: 20 };
    const options = { ...SIZES, batch: 2, dtype: "float64", rope, track: true } as const;
    const make = [() => new KVCache(options), () => new QuantisedCache({ ...options, format: "int8" })][
      round % 3 === 0 ? 1 : 0
    ]!;
    const [cache, whole] = [make(), make()];
    const { k, v } = draw(random, "float64", 2, 7);
    const counts = [random.integer(3, 7), random.integer(0, 7)];
    for (const one of [cache, whole]) one.append(k, v, counts);
    const { q } = draw(random, "float64", 2, 3);
    for (const one of [cache, whole]) one.attend(q, CAUSAL);
    const base = { budget: random.integer(2, 6), sinks: random.integer(0, 1) };
    const recent = random.integer(0, 1);
    const policy: Policy<Float64Array> = [
      { type: "window", ...base } as const,
      { type: "heavy_hitters", ...base, recent } as const,
      { type: "snapkv", ...base, recent, q, pool: 3 } as const,
      { type: "key_norm", ...base, recent } as const,
    ][round % 4]!;
    cache.evictBy(policy);
    const held = cache.read().positions;
    const L = whole.length;
    const keep = bool([2, 1, 1, L], new Uint8Array(2 * L));
    for (const [b, row] of held.entries()) {
      assert.equal(row.length, Math.min(counts[b]!, base.budget));
      for (const j of row) keep.data[b * L + j] = 1;
    }
    const { q: later } = draw(random, "float64", 2, 2);
    assertSame(cache.attend(later, CAUSAL), whole.attend(later, { mask: { causal: true, keep } }));
  }
});

test("what a policy does not have is not looked at", () => {
  const cache = new KVCache(ONE);
  push(cache, 1, 9, 9, 9, 2, 9);
  cache.evictBy({ type: "key_norm", budget: 2, pool: 3, q: 5 } as Policy<Float32Array>);
  assert.deepEqual(cache.read().positions, [[0, 4]]);
});

test("a policy that is none changes nothing", () => {
  const random = new Random(202);
  const { k, v, q } = draw(random, "float32", 2, 5);
  const caches: [Cache<"float32"> & { evictBy(policy: Policy<Float32Array>): void }, boolean][] = [
    [new KVCache({ ...SIZES, batch: 2 }), false],
    [new QuantisedCache({ ...SIZES, batch: 2, format: "int8" }), false],
    [new KiviCache({ ...SIZES, batch: 2, format: "int8", keyGroups: 2 }), false],
    [perHead(2, "float32"), true],
  ];
  for (const [cache, byHead] of caches) {
    cache.append(k, v, [5, 3]);
    const fails = (code: string, policy: object | null | number) =>
      assertUnchanged(cache, () =>
        assertFails(() => cache.evictBy(policy as never), code, /^evict_by: \w+: expected .+, got .+$/),
      );
    for (const none of [null, 5, [], { budget: 2 }, { type: "random", budget: 2 }, { type: "window" }]) {
      fails("invalid_config", none);
    }
    for (const n of [-1, 0.5, NaN, "2", true]) {
      fails("invalid_config", { type: "window", budget: n });
      fails("invalid_config", { type: "key_norm", budget: 4, sinks: n });
      fails("invalid_config", { type: "key_norm", budget: 4, recent: n });
    }
    fails("invalid_config", { type: "window", budget: 2, recent: 0 });
    fails("invalid_config", { type: "key_norm", budget: 2, sinks: 2, recent: 1 });
    fails("invalid_config", { type: "key_norm", budget: 2 ** 62, sinks: 2 ** 62, recent: 1 });
    fails("invalid_config", { type: "heavy_hitters", budget: 2 });
    for (const pool of [0, 2, -1, 1.5, "3"]) fails("invalid_config", { type: "snapkv", budget: 2, q, pool });
    fails("invalid_config", { type: "snapkv", budget: 2, q, scale: Infinity });
    fails("dtype_mismatch", { type: "snapkv", budget: 2, q: draw(random, "float64", 2, 2).q });
    for (const shape of [
      [2, 4, 0, 4],
      [1, 4, 1, 4],
      [2, 3, 1, 4],
      [2, 4, 1, 3],
      [2, 4, 4],
    ]) {
      const size = shape.reduce((product, n) => product * n, 1);
      fails("shape_mismatch", { type: "snapkv", budget: 2, q: f32(shape, new Float32Array(size)) });
    }
    fails(byHead ? "shape_mismatch" : "invalid_config", { type: "window", budget: [1, 2, 3] });
    fails("invalid_config", { type: "window", budget: byHead ? [1, -2] : [1, 2] });
    cache.evictBy({ type: "key_norm", budget: 2, sinks: 1, recent: 1 });
    assert.equal(Math.max(...cache.lengths), 2);
  }
});

test("keys that are moved up are turned no further", () => {
  const random = new Random(203);
  const { k, v, q } = draw(random, "float64", 1, 5);
  const cache = new KVCache({ ...SIZES, batch: 1, dtype: "float64", rope: {} });
  cache.append(k, v);
  cache.evictBy({ type: "window", budget: 3, sinks: 1 });
  cache.shift(-2, 3);
  assert.deepEqual(cache.read().positions, [[0, 1, 2]]);
  const [, , , D] = k.shape as [number, number, number, number];
  const kept = [0, 3, 4];
  const pick = (x: typeof k, n: number) => ({
    data: Float64Array.from(
      [0, 1].flatMap((h) => kept.flatMap((j) => [...x.data.subarray((h * 5 + j) * n, (h * 5 + j + 1) * n)])),
    ),
    shape: [1, 2, 3, n],
  });
  const fresh = new KVCache({ ...SIZES, batch: 1, dtype: "float64", rope: {} });
  fresh.append(pick(k, D), pick(v, 3));
  assertClose(cache.attend(q).data, fresh.attend(q).data, 1e-12);
  assert.notDeepEqual(cache.attend(q).data, sdpa(q, pick(k, D), pick(v, 3)).data);
});
