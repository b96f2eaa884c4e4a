import assert from "node:assert/strict";
import { test } from "node:test";
import { besideHeads } from "../src/heads.ts";
import { CrossCache, KVCache, LatentCache, loadCache, saveCache, sdpa } from "../src/index.ts";
import { assertUnchanged, cross, draw, latent, ONE, push, SIZES, values } from "./caches.ts";
import { assertClose, assertFails, assertSame, f32, positions, Random } from "./helpers.ts";

const CAUSAL = { mask: { causal: true } };

test("a latent cache is a contiguous one with one head, whose values are in its keys", () => {
  const random = new Random(95);
  const cache = latent(2, "float64");
  const plain = new KVCache({ batch: 2, numKvHeads: 1, headDim: 5, valueDim: 3, dtype: "float64" });
  for (const counts of [[4, 1], null, [0, 2]]) {
    const [c, key] = [random.tensor("float64", [2, 4, 3]), random.tensor("float64", [2, 4, 2])];
    const head = ({ data, shape: [B, T, n] }: typeof c) => ({ data, shape: [B!, 1, T!, n!] });
    cache.append(c, key, counts);
    plain.append(besideHeads(head(c), head(key)), head(c), counts);
    const q = random.tensor("float64", [2, 6, 3, 5]);
    assertSame(cache.attend(q, CAUSAL), plain.attend(q, CAUSAL));
  }
  for (const one of [cache, plain]) one.truncate([5, 3]);
  for (const one of [cache, plain]) one.reorder([1, 1]);
  const { latent: c, ropeKey, lengths } = cache.read();
  assert.deepEqual(
    [c.shape, ropeKey.shape, lengths],
    [
      [2, 3, 3],
      [2, 3, 2],
      [3, 3],
    ],
  );
  assert.deepEqual([...c.data], [...plain.values().data]);
  assert.equal(cache.stats().bytes, plain.lengths[0]! * 2 * 5 * 8);
  cache.reset();
  assert.deepEqual(cache.lengths, [0, 0]);
});

test("a latent cache without a rotary key, and one that is full", () => {
  const cache = new LatentCache({ batch: 1, latentDim: 1, ropeDim: 0, capacity: 2 });
  cache.append(f32([1, 2, 1], [3, 6]), f32([1, 2, 0], []));
  assertClose(cache.attend(values(0)).data, [4.5]);
  assertUnchanged(cache, () =>
    assertFails(() => cache.append(f32([1, 1, 1], [1]), f32([1, 1, 0], [])), "capacity_exceeded"),
  );
  for (const options of [{ latentDim: 0 }, { ropeDim: -1 }, { capacity: 0.5 }, { batch: -1 }]) {
    assertFails(() => new LatentCache({ batch: 1, latentDim: 1, ropeDim: 0, ...options }), "invalid_config");
  }
});

test("a cross cache is written once, and read whole", () => {
  const { k, v, q } = draw(new Random(96), "float32", 2, 5);
  const cache = cross(2, "float32");
  cache.append(k, v, [5, 3]);
  const few = positions(q, 0, 2);
  assertSame(cache.attend(few), sdpa(few, k, v, { mask: { kvLengths: [5, 3] } }));
  const fails = (call: () => unknown) => assertUnchanged(cache, () => assertFails(call, "invalid_config"));
  fails(() => cache.append(k, v));
  fails(() => cache.append(positions(k, 0, 0), positions(v, 0, 0)));
  fails(() => cache.attend(few, CAUSAL));
  fails(() => cache.attend(few, { mask: { window: [null, null] } }));
  fails(() => cache.truncate([1, 1]));
  assertSame(cache.attend(few, { mask: { causal: false } }), cache.attend(few));
  cache.reorder([1, 0]);
  assert.deepEqual(cache.lengths, [3, 5]);
  const fork = cache.fork();
  assertFails(() => fork.append(k, v), "invalid_config");
  cache.reset();
  cache.append(k, v);
  assert.deepEqual(
    [cache.lengths, fork.lengths],
    [
      [5, 5],
      [3, 5],
    ],
  );
});

test("a cross cache that was loaded is written", () => {
  const cache = new CrossCache(ONE);
  push(cache, 1, 2);
  const other = new CrossCache(ONE);
  loadCache(other, saveCache(cache));
  assertClose(other.attend(values(0)).data, [1.5]);
  assertFails(() => push(other, 1), "invalid_config");
  assertFails(() => loadCache(new KVCache({ ...SIZES, batch: 1 }), saveCache(cache)), "invalid_config");
});
