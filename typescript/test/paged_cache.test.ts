import assert from "node:assert/strict";
import { test } from "node:test";
import { allOrNothing, KVCache, loadCache, PagedCache, PagePool, saveCache } from "../src/index.ts";
import { assertUnchanged, draw, mean, ONE, paged, push, SIZES, values } from "./caches.ts";
import { assertClose, assertFails, assertSame, f32, int64, positions, Random } from "./helpers.ts";

function one(numPages: number, pageSize = 4): PagedCache {
  return new PagedCache({ pool: new PagePool({ numPages, pageSize, numKvHeads: 1, headDim: 1 }), batch: 1 });
}

function pages(cache: PagedCache<"float32" | "float64">): number[] {
  const { used, shared, free } = cache.stats().pages!;
  return [used, shared, free];
}

test("a fork copies a page that is half full before it writes", () => {
  const a = one(8);
  push(a, 1, 2);
  const b = a.fork();
  assert.deepEqual(pages(a), [1, 1, 7]);
  push(a, 10);
  push(b, 20);
  assertClose([mean(a), mean(b)], [13 / 3, 23 / 3]);
  assert.deepEqual(pages(a), [2, 0, 6]);
  a.drop();
  assertClose([mean(b)], [23 / 3]);
  assert.deepEqual(pages(b), [1, 0, 7]);
});

test("a page that is used again has nothing of what it held", () => {
  const cache = one(1);
  push(cache, 7, 7, 7, 7);
  cache.reset();
  assert.deepEqual(pages(cache), [0, 0, 1]);
  push(cache, 3);
  assert.deepEqual([...cache.read().v.data], [3]);
});

test("what does not count is written nowhere", () => {
  const pool = new PagePool({ numPages: 2, pageSize: 4, numKvHeads: 1, headDim: 1 });
  const cache = new PagedCache({ pool, batch: 2 });
  const x = f32([2, 1, 2, 1], [1, 2, NaN, NaN]);
  cache.append(x, x, [2, 0]);
  assert.deepEqual([pool.counts.used, cache.lengths], [1, [2, 0]]);
  cache.append(x, x, [0, 0], { padding: "left" });
  assert.deepEqual([...cache.read().k.data], [1, 2, 0, 0]);
});

test("a pool without a free page refuses the whole append, copies included", () => {
  const cache = one(2, 2);
  push(cache, 1, 2, 3);
  const fork = cache.fork();
  for (const more of [[4, 5], [4]]) {
    assertUnchanged(fork, () => assertFails(() => push(fork, ...more), "capacity_exceeded"));
  }
  fork.drop();
  push(cache, 4);
  assertUnchanged(cache, () => assertFails(() => push(cache, 5), "capacity_exceeded"));
  cache.truncate([2]);
  assert.deepEqual(pages(cache), [1, 0, 1]);
  assertUnchanged(cache, () =>
    assertFails(
      () =>
        allOrNothing(cache, () => {
          push(cache, 9);
          return cache.attend(values(0), { softcap: 0 });
        }),
      "invalid_config",
    ),
  );
  push(cache, 8);
  assertClose([mean(cache)], [11 / 3]);
  const none = one(0);
  push(none);
  assertFails(() => push(none, 1), "capacity_exceeded");
});

test("two rows that share a page need one copy for two writers", () => {
  const pool = new PagePool({ numPages: 2, pageSize: 4, numKvHeads: 1, headDim: 1 });
  const cache = new PagedCache({ pool, batch: 2 });
  const x = (a: number, b: number) => f32([2, 1, 1, 1], [a, b]);
  cache.append(x(1, 1), x(1, 1), [1, 0]);
  cache.reorder([0, 0]);
  assert.deepEqual(pool.counts, { used: 1, shared: 1, free: 1 });
  cache.append(x(2, 3), x(2, 3));
  assert.deepEqual(pool.counts, { used: 2, shared: 0, free: 0 });
  assert.deepEqual([...cache.read().v.data], [1, 2, 1, 3]);
});

test("any trace is that of a contiguous cache, bit for bit, and every page comes back", () => {
  for (let seed = 60; seed < 80; seed++) {
    const random = new Random(seed);
    const rope = seed % 2 === 0 ? {} : null;
    const cache = paged(2, "float32", 200, rope);
    const pairs = [{ cache, plain: new KVCache({ ...SIZES, batch: 2, rope }) }];
    for (let step = 0; step < 30; step++) {
      const at = random.integer(0, pairs.length - 1);
      const both = Object.values(pairs[at]!);
      const kind = random.integer(0, 6);
      const T = random.integer(0, 5);
      const { k, v, q } = draw(random, "float32", 2, T);
      const counts = [random.integer(0, T), random.integer(0, T)];
      const cut = both[0]!.lengths.map((n) => random.integer(Math.max(0, n - 4), n));
      const index = [random.integer(0, 1), random.integer(0, 1)];
      for (const one of both) {
        if (kind <= 2) one.append(k, v, counts);
        if (kind === 3) one.truncate(cut);
        if (kind === 4) one.reorder(index);
        if (kind === 5 && T === 0) one.reset();
      }
      if (kind === 6 && pairs.length < 4) {
        pairs.push({ cache: pairs[at]!.cache.fork(), plain: pairs[at]!.plain.fork() });
      }
      for (const pair of pairs) {
        assert.deepEqual(pair.cache.read(), pair.plain.read());
        if (q.data.length > 0) assertSame(pair.cache.attend(q), pair.plain.attend(q));
      }
    }
    for (const pair of pairs) pair.cache.drop();
    assert.deepEqual(cache.pool.counts, { used: 0, shared: 0, free: 200 });
  }
});

test("whole pages of the same tokens after the same tokens become one", () => {
  const pool = new PagePool({ ...SIZES, numPages: 20, pageSize: 3 });
  const cache = new PagedCache({ pool, batch: 2 });
  const { k, v, q } = draw(new Random(81), "float32", 1, 8);
  const twice = (x: typeof k) => ({
    data: Float32Array.of(...x.data, ...x.data),
    shape: [2, ...x.shape.slice(1)],
  });
  const tokens = (...ids: number[]) => int64([2, ids.length / 2], ids);
  cache.append(twice(k), twice(v), null, {
    tokens: tokens(1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 9, 7, 8), // different from token 5 on
  });
  assert.deepEqual(pool.counts, { used: 5, shared: 1, free: 15 });
  cache.truncate([4, 4]);
  assert.deepEqual(pool.counts, { used: 3, shared: 1, free: 17 });
  const plain = new KVCache({ ...SIZES, batch: 2 });
  plain.append(twice(k), twice(v), [4, 4]);
  assertSame(
    cache.attend(twice(q), { mask: { causal: true } }),
    plain.attend(twice(q), { mask: { causal: true } }),
  );

  const later = new PagedCache({ pool, batch: 1 });
  later.append(k, v, [3]); // nobody says what they are
  later.append(positions(k, 3, 6), positions(v, 3, 6), null, { tokens: int64([1, 3], [4, 5, 6]) });
  assert.equal(pool.counts.used, 5);
  later.reset();
  later.append(positions(k, 0, 2), positions(v, 0, 2), null, { tokens: int64([1, 2], [1, 2]) });
  later.append(positions(k, 2, 3), positions(v, 2, 3), null, { tokens: int64([1, 1], [3]) });
  assert.deepEqual(pool.counts, { used: 3, shared: 1, free: 17 });
  later.reset();
  later.append(k, v, [3], { tokens: int64([1, 8], [1, 2, 4, 0, 0, 0, 0, 0]) });
  assert.equal(pool.counts.used, 4); // the same bits of another token
  later.reset();
  const other = { data: k.data.map((x) => -x), shape: k.shape };
  later.append(other, v, [3], { tokens: int64([1, 8], [1, 2, 3, 0, 0, 0, 0, 0]) });
  assert.equal(pool.counts.used, 4); // other bits of the same token
});

test("a pool serves caches of its sizes only", () => {
  const bad = (options: object) => () =>
    new PagePool({ ...ONE, numPages: 1, pageSize: 1, ...options } as never);
  const huge = [{ numPages: 1e300 }, { pageSize: 2 ** 53, numPages: 2 }]; // more numbers than a double counts
  for (const options of [{ numPages: -1 }, { pageSize: 0 }, { numPages: 0.5 }, { headDim: 0 }, ...huge]) {
    assertFails(bad(options), "invalid_config");
  }
  const cache = paged(2, "float32");
  const { k, v } = draw(new Random(82), "float32", 2, 2);
  const fails = (code: string, tokens: never) =>
    assertUnchanged(cache, () => assertFails(() => cache.append(k, v, null, { tokens }), code));
  fails("shape_mismatch", int64([2, 3], [1, 2, 3, 4, 5, 6]) as never);
  fails("dtype_mismatch", f32([2, 2], [1, 2, 3, 4]) as never);
});

test("a page without memory for it fails the append whole", () => {
  const pool = new PagePool({ numPages: 4, pageSize: 2, numKvHeads: 1, headDim: 1 });
  const cache = new PagedCache({ pool, batch: 1 });
  push(cache, 1);
  const fork = cache.fork();
  const file = saveCache(cache);
  const take = pool.take.bind(pool);
  let left = 0;
  pool.take = () => {
    if (left-- > 0) return take();
    return new PagePool({ numPages: 1, pageSize: 2 ** 50, numKvHeads: 1, headDim: 1 }).take();
  };
  for (const before of [0, 1]) {
    left = before;
    assertUnchanged(fork, () => assertFails(() => push(fork, 2, 3), "invalid_config"));
    assert.deepEqual(pages(fork), [1, 1, 3]);
  }
  cache.reset();
  left = 0;
  assertUnchanged(fork, () => assertFails(() => loadCache(fork, file), "invalid_config"));
  left = 2;
  push(fork, 2, 3);
  assert.deepEqual([...fork.read().v.data], [1, 2, 3]);
});
