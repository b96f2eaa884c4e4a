import assert from "node:assert/strict";
import { test } from "node:test";
import { KVCache, type Mask, RotatingCache, saveCache, sdpa, type Tensor } from "../src/index.ts";
import { assertUnchanged, draw, mean, ONE, push, SIZES, values } from "./caches.ts";
import { assertClose, assertFails, assertSame, bool, positions, Random } from "./helpers.ts";

/** The mask of queries that stand at `first`, ... over all T keys of a full cache. */
function windowMask(first: number, Tq: number, T: number, window: number, keep: number): Mask {
  const sees = (p: number, j: number) => j <= p && (p - j < window || j < keep);
  const table = Array.from({ length: Tq * T }, (_, at) => (sees(first + Math.floor(at / T), at % T) ? 1 : 0));
  return { keep: bool([Tq, T], table) };
}

test("nothing is lost when the length becomes the window", () => {
  const cache = new RotatingCache({ ...ONE, window: 3 });
  const seen = [1, 2, 4, 8].map((x) => {
    push(cache, x);
    return mean(cache);
  });
  assertClose(seen, [1, 1.5, 7 / 3, 14 / 3]);
});

test("the first tokens stay", () => {
  const cache = new RotatingCache({ ...ONE, window: 2, keep: 1 });
  for (const x of [1, 2, 4, 8]) push(cache, x);
  assertClose([mean(cache)], [13 / 3]);
  assert.deepEqual(cache.read().positions, [[0, 3]]);
  assert.deepEqual([cache.lengths, cache.read().lengths, cache.stats().positions], [[4], [2], [3]]);
});

test("any chunks, also beyond the window, are a full cache with the mask, bit for bit (ChunkedPrefill)", () => {
  const random = new Random(50);
  for (let round = 0; round < 60; round++) {
    const [window, keep] = [random.integer(1, 6), random.integer(0, 3)];
    const T = [window - 1, window, window + 1, 2 * window, 2 * window + 1, 20][random.integer(0, 5)]!;
    const { k, v, q } = draw(random, "float64", 2, T);
    const rope = random.next() < 0.5 ? {} : null;
    const cache = new RotatingCache({ ...SIZES, batch: 2, dtype: "float64", window, keep, rope });
    const full = new KVCache({ ...SIZES, batch: 2, dtype: "float64", rope });
    for (let from = 0; from < T; ) {
      const to = Math.min(T, from + random.integer(0, 9));
      for (const one of [cache, full]) one.append(positions(k, from, to), positions(v, from, to));
      const part = positions(q, from, to);
      const causal = random.next() < 0.5; // which says nothing new
      const mask = windowMask(from, to - from, to, window, keep);
      assertSame(cache.attend(part, { mask: { causal } }), full.attend(part, { mask }));
      if (to > from) assert.ok(cache.length < window + keep + to - from);
      from = to;
    }
  }
});

test("a rollback within the window is exact, and one beyond it is refused (Rollback)", () => {
  const random = new Random(51);
  for (let round = 0; round < 60; round++) {
    const [window, keep] = [random.integer(1, 5), random.integer(0, 2)];
    const make = () => new RotatingCache({ ...SIZES, batch: 1, dtype: "float64", window, keep });
    const T = random.integer(1, 12);
    const { k, v } = draw(random, "float64", 1, T + 4);
    const cache = make();
    const last = random.integer(0, T); // where the last append began
    for (const [from, to] of [
      [0, last],
      [last, T],
    ] as const) {
      if (to > from) cache.append(positions(k, from, to), positions(v, from, to));
    }
    const n = random.integer(0, T);
    const began = last === T ? 0 : last;
    const lost = (j: number) => j >= keep && j <= began - window;
    const needed = Array.from({ length: n }, (_, j) => j).filter((j) => j >= keep && j > n - window);
    if (needed.some(lost)) {
      assertUnchanged(cache, () => assertFails(() => cache.truncate([n]), "invalid_config"));
      continue;
    }
    cache.truncate([n]);
    assert.deepEqual(cache.lengths, [n]);
    const fresh = make();
    if (n > 0) fresh.append(positions(k, 0, n), positions(v, 0, n));
    for (const one of [cache, fresh]) one.append(positions(k, T, T + 3), positions(v, T, T + 3));
    const { q } = draw(random, "float64", 1, 3);
    assertSame(cache.attend(q), fresh.attend(q));
    assert.deepEqual(cache.read(), fresh.read());
  }
});

test("an append of nothing forgets nothing, row by row", () => {
  const cache = new RotatingCache({ ...SIZES, batch: 2, window: 2 });
  const { k, v, q } = draw(new Random(52), "float32", 2, 4);
  cache.append(k, v);
  assertUnchanged(cache, () => cache.append(k, v, [0, 0]));
  cache.append(positions(k, 0, 1), positions(v, 0, 1), [0, 1]);
  assert.deepEqual(cache.stats().positions, [4, 2]);
  const whole = { data: q.data, shape: q.shape } as Tensor<Float32Array>;
  const early = cache.attend(whole, { mask: { qOffset: [0, 0] } });
  const expected = sdpa(q, k, v, { mask: windowMask(0, 4, 4, 2, 0) });
  assertSame(
    { data: early.data.slice(0, 48), shape: [1, 4, 4, 3] },
    { data: expected.data.slice(0, 48), shape: [1, 4, 4, 3] },
  );
});

test("bad options", () => {
  const bad = (options: object) => () => new RotatingCache({ ...ONE, window: 1, ...options });
  for (const window of [0, -1, 1.5, "2", null]) assertFails(bad({ window }), "invalid_config");
  for (const keep of [-1, 0.5, "2"]) assertFails(bad({ keep }), "invalid_config");
  assertFails(bad({ rope: 5 }), "invalid_config");
  assertFails(bad({ dtype: "int8" }), "dtype_mismatch");
  const cache = new RotatingCache({ ...ONE, window: 3 });
  push(cache, 1, 2, 3, 4, 5);
  const file = saveCache(cache);
  assertFails(() => cache.attend(values(0, 0), { bias: values(1) as never, softcap: -1 }), "invalid_config");
  assert.deepEqual(saveCache(cache), file);
});
