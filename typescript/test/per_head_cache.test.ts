import assert from "node:assert/strict";
import { test } from "node:test";
import {
  KVCache,
  loadCache,
  MultiHeadAttention,
  PerHeadCache,
  type Policy,
  saveCache,
  type Tensor,
} from "../src/index.ts";
import { parseFile } from "../src/safetensors.ts";
import { assertUnchanged, draw, perHead, SIZES } from "./caches.ts";
import { assertClose, assertFails, assertSame, f32, int64, positions, Random } from "./helpers.ts";

const CAUSAL = { mask: { causal: true } };

/** Two KV heads of D = 1 whose values are 1, 2, 4, 8 and 16, 32, 64, 128, and keys of these numbers. */
function twoHeads(keys: number[] = new Array(8).fill(0)): PerHeadCache {
  const cache = new PerHeadCache({ batch: 1, numKvHeads: 2, headDim: 1 });
  cache.append(f32([1, 2, 4, 1], keys), f32([1, 2, 4, 1], [1, 2, 4, 8, 16, 32, 64, 128]));
  return cache;
}

/** What a query of 0 sees in each head. */
function means(cache: PerHeadCache): number[] {
  return [...cache.attend(f32([1, 2, 1, 1], [0, 0])).data];
}

test("every head keeps its own slots, and as many as its budget says", () => {
  const keys = [9, 1, 2, 9, 1, 9, 9, 2];
  const same = twoHeads(keys);
  same.evictBy({ type: "key_norm", budget: 2 });
  assert.deepEqual(same.read().positions, [
    [1, 2],
    [0, 3],
  ]);
  assertClose(means(same), [3, 72]);
  const other = twoHeads(keys);
  other.evictBy({ type: "key_norm", budget: [1, 3] });
  assert.deepEqual(
    [other.lengths, other.read().positions],
    [
      [1, 3],
      [[1], [0, 1, 3]],
    ],
  );
  assertClose(means(other), [2, 176 / 3], 1e-5);
  assert.deepEqual(other.read().k.data, Float32Array.of(1, 0, 0, 1, 9, 2)); // zero beyond a head's slots
});

test("a head that holds nothing gives 0, and does not change the others", () => {
  const cache = twoHeads();
  const whole = means(cache)[1]!;
  cache.evictBy({ type: "window", budget: [0, 4] });
  assert.deepEqual(means(cache), [0, whole]);
  const { lse } = cache.attendSteps(f32([1, 2, 1, 1], [0, 0]));
  assert.deepEqual([...lse.data], [-Infinity, Math.fround(Math.log(4))]);
  const one = f32([1, 2, 1, 1], [0, 0]);
  cache.append(one, f32([1, 2, 1, 1], [5, 256]));
  assert.deepEqual(cache.read().positions, [[4], [0, 1, 2, 3, 4]]);
  assertClose(means(cache), [5, 496 / 5], 1e-5);
});

test("it is a contiguous cache with a row for every head, and like a contiguous one while all heads hold the same", () => {
  const random = new Random(230);
  for (let round = 0; round < 20; round++) {
    const more = { rope: round % 2 === 0 ? null : { base: 30 }, track: true };
    const [cache, alike] = [
      perHead(2, "float64", more),
      new KVCache({ ...SIZES, ...more, batch: 2, dtype: "float64" }),
    ];
    const byRow = new KVCache({ ...SIZES, ...more, batch: 4, numKvHeads: 1, dtype: "float64" });
    const rows = <A extends Float64Array>({ data, shape }: Tensor<A>): Tensor<A> => ({
      data,
      shape: [4, shape[1]! / 2, shape[2]!, shape[3]!],
    });
    const counts = [random.integer(0, 6), random.integer(1, 6)];
    const { k, v, q } = draw(random, "float64", 2, 6);
    for (const one of [cache, alike]) one.append(k, v, counts);
    byRow.append(rows(k), rows(v), [counts[0]!, counts[0]!, counts[1]!, counts[1]!]);
    const bias = random.tensor("float64", [1, 4, 6, cache.length]);
    const keep = random.mask([2, 1, 1, cache.length]);
    const mask = { causal: true, keep, qOffset: int64([2], [random.integer(0, 3), 2]) };
    const options = { mask, bias, softcap: 2, dropout: { p: 0.3, seed: 5 } };
    assertSame(cache.attend(q, options), alike.attend(q, options));
    const [got, want] = [cache.attendSteps(q, options), alike.attendSteps(q, options)];
    assertSame(got.weights, want.weights);
    assertSame(got.lse, want.lse);
    assert.deepEqual(cache.read().tracked, alike.read().tracked);
    const policy: Policy<Float64Array> = [
      { type: "snapkv", budget: 3, q: positions(q, 0, 2), pool: 3 } as const,
      { type: "key_norm", budget: 2, sinks: 1 } as const,
      { type: "window", budget: 2 } as const,
    ][round % 3]!;
    cache.evictBy(policy);
    byRow.evictBy(policy.type === "snapkv" ? { ...policy, q: rows(policy.q) } : policy);
    assert.deepEqual([cache.lengths, cache.read().positions], [byRow.lengths, byRow.read().positions]);
    assertSame(rows(cache.attend(q, CAUSAL)), byRow.attend(rows(q), CAUSAL));
    if (policy.type === "window") {
      alike.evictBy(policy); // by a window all heads choose the same
      assertSame(cache.attend(q, CAUSAL), alike.attend(q, CAUSAL));
      assertSame(cache.read().k, alike.read().k);
    }
  }
});

test("rows move with all their heads, and positions are those of every head", () => {
  const random = new Random(231);
  const cache = perHead(2, "float32", { rope: {}, track: true });
  const { k, v, q } = draw(random, "float32", 2, 5);
  cache.append(k, v, [5, 3]);
  cache.evictBy({ type: "key_norm", budget: [2, 4] });
  const before = cache.read();
  assert.deepEqual(cache.lengths, [2, 4, 2, 3]);
  const [fork, file] = [cache.fork(), saveCache(cache)];
  fork.reorder([1, 0]);
  assert.deepEqual(
    fork.read().positions,
    [2, 3, 0, 1].map((at) => before.positions[at]),
  );
  fork.evict([0, 1, 2, 3, 4]);
  assert.deepEqual(fork.lengths, [0, 0, 0, 0]);
  assert.deepEqual(saveCache(cache), file);
  cache.shift(3, 0);
  assert.deepEqual(
    cache.read().positions,
    before.positions.map((places) => places.map((j) => j + 3)),
  );
  cache.attend(q);
  assertUnchanged(cache, () => assertFails(() => cache.truncate([1, 1]), "invalid_config"));
  assertUnchanged(cache, () => assertFails(() => cache.shift(-9, 0), "invalid_config"));
  for (const [code, call] of [
    ["shape_mismatch", () => cache.append(v, k)],
    ["shape_mismatch", () => cache.append(k, v, [1])],
    ["invalid_config", () => cache.append(k, v, [6, 0])],
    ["invalid_config", () => cache.append(k, v, null, { tokens: int64([2, 5], new Array(10).fill(1)) })],
    ["shape_mismatch", () => cache.attend(positions(v, 0, 1))],
    ["shape_mismatch", () => cache.attend(q, { bias: f32([9], new Float32Array(9)) })],
    ["shape_mismatch", () => cache.reorder([0, 1, 0, 1])],
    ["invalid_config", () => cache.reorder([2, 0])],
  ] as const) {
    assertUnchanged(cache, () => assertFails(call, code));
  }
});

test("its file says which slots every head holds", () => {
  const random = new Random(232);
  const cache = perHead(2, "float16", { track: true });
  const { k, v, q } = draw(random, "float16", 2, 5);
  cache.append(k, v, [5, 4]);
  cache.attend(q);
  cache.evictBy({ type: "heavy_hitters", budget: [2, 3] });
  const file = saveCache(cache);
  const { tensors, metadata } = parseFile(file);
  assert.deepEqual([metadata.kind, metadata.track], ["per_head", "true"]);
  assert.deepEqual(
    ["lengths", "next", "positions", "k", "v", "tracked"].map((name) => tensors.get(name)!.shape),
    [
      [2, 2],
      [2, 2],
      [2, 2, 3],
      [2, 2, 3, 4],
      [2, 2, 3, 3],
      [2, 2, 3],
    ],
  );
  const other = perHead(2, "float16", { track: true });
  loadCache(other, file);
  for (const one of [cache, other]) one.append(k, v, [1, 0]);
  assertSame(other.attend(q, CAUSAL), cache.attend(q, CAUSAL));
  assert.deepEqual(saveCache(other), saveCache(cache));
  for (const wrong of [
    new KVCache({ ...SIZES, batch: 2, dtype: "float16", track: true }),
    new KVCache({ ...SIZES, batch: 4, numKvHeads: 1, dtype: "float16", track: true }),
    perHead(2, "float16"),
    perHead(1, "float16", { track: true }),
  ]) {
    assertUnchanged(wrong, () => assertFails(() => loadCache(wrong, file), "invalid_config", /^load: /));
  }
  const small = perHead(2, "float16", { track: true, capacity: 2 });
  assertUnchanged(small, () => assertFails(() => loadCache(small, file), "capacity_exceeded", /^load: /));
});

test("a layer decodes into it as into a contiguous cache", () => {
  const random = new Random(233);
  const mha = new MultiHeadAttention({
    ...{ numHeads: 4, numKvHeads: 2, rope: { base: 40 } },
    ...{ wQ: random.tensor("float16", [16, 6]), wK: random.tensor("float16", [8, 6]) },
    ...{ wV: random.tensor("float16", [6, 6]), wO: random.tensor("float16", [5, 12]) },
  });
  const options = { rope: { base: 40 }, ropeAt: "attend", track: true } as const;
  const [cache, alike] = [
    perHead(2, "float16", options),
    new KVCache({ ...SIZES, ...options, batch: 2, dtype: "float16" }),
  ];
  for (let step = 0; step < 3; step++) {
    const x = random.tensor("float16", [2, 2, 6]);
    assertSame(mha.decode(x, cache), mha.decode(x, alike));
  }
  assert.deepEqual(cache.read().tracked, alike.read().tracked);
  const bias = random.tensor("float32", [1, 7]);
  assertUnchanged(cache, () =>
    assertFails(
      () => mha.decode(random.tensor("float16", [2, 1, 6]), cache, { bias: bias as never }),
      "dtype_mismatch",
    ),
  );
});

test("sizes of 0 and 1", () => {
  const none = perHead(0, "float32");
  none.append(f32([0, 2, 3, 4], []), f32([0, 2, 3, 3], []));
  assert.deepEqual(none.attend(f32([0, 4, 2, 4], [])).shape, [0, 4, 2, 3]);
  none.evictBy({ type: "key_norm", budget: [0, 1] });
  const empty = perHead(1, "float32");
  empty.evictBy({ type: "window", budget: 1 });
  assert.deepEqual(empty.read().k.shape, [1, 2, 0, 4]);
  assert.deepEqual(empty.attend(f32([1, 2, 1, 4], new Float32Array(8))).data, new Float32Array(6));
  for (const change of [
    { batch: -1 },
    { numKvHeads: 0 },
    { headDim: 0 },
    { capacity: -1 },
    { valueDim: 0.5 },
    { track: 1 as never },
    { ropeAt: "attend" as const },
  ]) {
    assertFails(
      () => new PerHeadCache({ ...SIZES, batch: 1, ...change }),
      "invalid_config",
      /^per_head_cache: \w+: expected .+, got .+$/,
    );
  }
});
