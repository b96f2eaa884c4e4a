import assert from "node:assert/strict";
import { test } from "node:test";
import {
  type Cache,
  KiviCache,
  KVCache,
  loadCache,
  MultiHeadAttention,
  QuantisedCache,
  saveCache,
} from "../src/index.ts";
import { assertUnchanged, draw, ONE, perHead, push, SIZES, values } from "./caches.ts";
import { assertClose, assertFails, Random } from "./helpers.ts";

const CAUSAL = { mask: { causal: true } };

type Tracking = Cache<"float32"> & {
  evict(positions: number[]): void;
  shift(by: number, from: number): void;
};

function tracked(cache: Cache<"float32">): number[] {
  return [...(cache.read() as { tracked?: { data: Float64Array } }).tracked!.data];
}

const SIZE = { ...ONE, track: true };
const MAKE: Readonly<Record<string, () => Tracking>> = {
  contiguous: () => new KVCache(SIZE),
  quantised: () => new QuantisedCache({ ...SIZE, format: "f16" }),
  kivi: () => new KiviCache({ ...SIZE, format: "int8", keyGroups: 2 }),
};

test("the weights of every attend are added up, whoever asks, and go where their slots go", () => {
  for (const [name, make] of Object.entries(MAKE)) {
    const cache = make();
    cache.append(values(0, 0), values(1, 2));
    cache.attend(values(0, 0), CAUSAL); // 1 and 1/2, 1/2
    assertClose(tracked(cache), [1.5, 0.5]);
    cache.append(values(0, 0), values(4, 8));
    assertClose(tracked(cache), [1.5, 0.5, 0, 0]);
    cache.attend(values(0), CAUSAL);
    assertClose(tracked(cache), [1.75, 0.75, 0.25, 0.25]);
    const fork = cache.fork() as Tracking;
    fork.attend(values(0));
    cache.evict([1]);
    assertClose(tracked(cache), [1.75, 0.25, 0.25], 1e-6);
    cache.shift(5, 2);
    assertClose(tracked(cache), [1.75, 0.25, 0.25]);
    assertClose(tracked(fork), [2, 1, 0.5, 0.5]);
    const other = make();
    loadCache(other, saveCache(cache));
    assert.deepEqual(tracked(other), tracked(cache), name);
    other.truncate([2]);
    push(other, 3);
    assertClose(tracked(other), [1.75, 0.25, 0]);
    other.reset();
    assert.deepEqual(tracked(other), []);
    push(other, 3);
    assert.deepEqual(tracked(other), [0]);
  }
});

test("each KV head has its own sums, over the query heads that read it, and rows take theirs along", () => {
  const random = new Random(210);
  for (const cache of [
    new KVCache({ ...SIZES, batch: 2, track: true, dtype: "float64" }),
    perHead(2, "float64", { track: true }),
  ]) {
    const { k, v, q } = draw(random, "float64", 2, 4);
    cache.append(k, v, [4, 2]);
    const { weights } = cache.attendSteps(q, { ...CAUSAL, dropout: { p: 0.5, seed: 3 } });
    const expected = Array.from({ length: 2 * 2 * 4 }, (_, at) => {
      const [b, h, j] = [Math.floor(at / 8), Math.floor(at / 4) % 2, at % 4];
      let sum = 0;
      for (let g = 0; g < 2; g++) {
        for (let i = 0; i < 4; i++) sum += weights.data[((b * 4 + 2 * h + g) * 4 + i) * 4 + j]!;
      }
      return sum;
    });
    assertClose(cache.read().tracked!.data, expected, 1e-12);
    assert.deepEqual(cache.read().tracked!.shape, [2, 2, 4]);
    cache.reorder([1, 1]);
    const second = [...expected.slice(8, 10), ...expected.slice(12, 14)];
    assertClose(cache.read().tracked!.data, [...second, ...second], 1e-12);
  }
});

test("sums do not lose what a half type would round", () => {
  const cache = new KVCache({ ...ONE, dtype: "float16", track: true });
  const zero = { data: new Float16Array(3), shape: [1, 1, 3, 1] };
  cache.append(zero, zero);
  cache.attend({ data: new Float16Array(1), shape: [1, 1, 1, 1] });
  assert.deepEqual([...cache.read().tracked!.data], new Array(3).fill(Math.fround(1 / 3)));
});

test("an attend that fails, or is taken back, gives nothing", () => {
  const random = new Random(211);
  const cache = new KVCache({ ...SIZES, batch: 1, track: true });
  const { k, v, q } = draw(random, "float32", 1, 3);
  cache.append(k, v);
  cache.attend(q);
  assertUnchanged(cache, () => assertFails(() => cache.attend(q, { softcap: 0 }), "invalid_config"));
  const layer = new MultiHeadAttention({
    ...{ numHeads: 4, numKvHeads: 2 },
    ...{ wQ: random.tensor("float32", [16, 6]), wK: random.tensor("float32", [8, 6]) },
    ...{ wV: random.tensor("float32", [6, 6]), wO: random.tensor("float32", [5, 12]) },
  });
  const x = random.tensor("float32", [1, 1, 6]);
  const before = cache.read().tracked!.data;
  assertUnchanged(cache, () => assertFails(() => layer.decode(x, cache, { scale: NaN }), "invalid_config"));
  layer.decode(x, cache);
  const after = cache.read().tracked!.data; // (1, 2, 4)
  const given = [...after].map(
    (sum, at) => sum - (at % 4 === 3 ? 0 : before[Math.floor(at / 4) * 3 + (at % 4)]!),
  );
  assertClose(
    [given.slice(0, 4), given.slice(4)].map((head) => head.reduce((sum, w) => sum + w, 0)),
    [2, 2],
  );
});

test("what is tracked weighs nothing, and what is not is not there", () => {
  const [with_, without] = [new KVCache({ ...ONE, track: true }), new KVCache(ONE)];
  for (const cache of [with_, without]) push(cache, 1, 2);
  assert.deepEqual(with_.stats(), without.stats());
  assert.equal("tracked" in without.read(), false);
  for (const [cache, file] of [
    [with_, saveCache(without)],
    [without, saveCache(with_)],
  ] as const) {
    assertUnchanged(cache, () => assertFails(() => loadCache(cache, file), "invalid_config"));
  }
  for (const track of [1, "true", NaN]) {
    assertFails(() => new KVCache({ ...ONE, track: track as never }), "invalid_config");
  }
});
