/** What holds for caches of every kind. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { allOrNothing, type Cache, KVCache, loadCache, saveCache } from "../src/index.ts";
import {
  ALL_KINDS,
  assertUnchanged,
  cross,
  draw,
  KINDS,
  latent,
  type Make,
  ONE,
  push,
  SIZES,
  values,
} from "./caches.ts";
import { assertClose, assertFails, assertSame, int64, positions, Random } from "./helpers.ts";

const CAUSAL = { mask: { causal: true } };

/** What the queries of a chunk see: each append, then its attend. */
function replay<T extends "float32" | "float64">(
  cache: Cache<T>,
  { k, v, q }: ReturnType<typeof draw<T>>,
  nextChunk: () => number,
): { output: number[][]; lse: number[][] } {
  const T = k.shape[2]!;
  const rows: { output: number[][]; lse: number[][] } = { output: [], lse: [] };
  for (let from = 0; from < T; ) {
    const to = Math.min(T, from + nextChunk());
    cache.append(positions(k, from, to), positions(v, from, to));
    const { output, lse } = cache.attendSteps(positions(q, from, to), CAUSAL);
    for (let t = 0; t < to - from; t++) {
      rows.output.push([...positions(output, t, t + 1).data]);
      const one = { data: lse.data, shape: [...lse.shape, 1] } as unknown as typeof output;
      rows.lse.push([...positions(one, t, t + 1).data]);
    }
    from = to;
  }
  return rows;
}

test("one by one, in chunks, and all at once are the same bits, and again after reset", () => {
  for (const [name, make] of Object.entries(KINDS)) {
    for (const dtype of ["float32", "float64"] as const) {
      const random = new Random(40);
      const drawn = draw(random, dtype, 2, 13);
      const cache = make(2, dtype);
      const whole = replay(cache, drawn, () => 13);
      cache.reset();
      assert.deepEqual(
        replay(cache, drawn, () => 1),
        whole,
        name,
      );
      for (let round = 0; round < 3; round++) {
        cache.reset();
        assert.deepEqual(cache.lengths, [0, 0]);
        assert.deepEqual(
          replay(cache, drawn, () => random.integer(1, 7)),
          whole,
          `${name} ${dtype}`,
        );
      }
    }
  }
});

test("a fork and its origin do not see each other", () => {
  for (const [name, make] of Object.entries(ALL_KINDS)) {
    const random = new Random(41);
    const [origin, alone] = [make(2, "float32"), make(2, "float32")];
    const [first, second] = [draw(random, "float32", 2, 5), draw(random, "float32", 2, 4)];
    for (const cache of [origin, alone]) cache.append(first.k, first.v, [5, 2]);
    const fork = origin.fork();
    const before = saveCache(origin);
    fork.append(second.k, second.v, [1, 4]);
    fork.reorder([1, 1]);
    fork.truncate(fork.lengths.map((n) => n - 2));
    fork.reset();
    fork.append(second.k, second.v);
    assert.deepEqual(saveCache(origin), before);
    const kept = origin.fork();
    origin.append(second.k, second.v, [4, 3]);
    assert.deepEqual(saveCache(kept), before);
    alone.append(second.k, second.v, [4, 3]);
    assertSame(origin.attend(first.q, CAUSAL), alone.attend(first.q, CAUSAL));
    assert.deepEqual(saveCache(origin), saveCache(alone), name);
  }
});

test("a row does not depend on the others, and reorder moves it whole", () => {
  for (const [name, make] of Object.entries(ALL_KINDS)) {
    const random = new Random(42);
    const [cache, alone] = [make(3, "float64"), make(1, "float64")];
    const row = <A>(x: A, b: number): A => {
      const { data, shape } = x as { data: Float64Array; shape: number[] };
      const size = data.length / shape[0]!;
      return { data: data.slice(b * size, (b + 1) * size), shape: [1, ...shape.slice(1)] } as A;
    };
    const lengths = [
      [4, 1, 3],
      [2, 5, 0],
      [5, 5, 5],
    ];
    for (const [n, counts] of lengths.entries()) {
      const { k, v } = draw(random, "float64", 3, 5);
      const source = n === 2 ? 0 : 1; // after the reorder, row 0 is what row 1 was
      cache.append(k, v, counts);
      alone.append(row(k, source), row(v, source), [counts[source]!]);
      if (n === 1) cache.reorder([1, 1, 2]);
    }
    const { q } = draw(random, "float64", 3, 2);
    assertSame(row(cache.attend(q, CAUSAL), 0), alone.attend(row(q, 0), CAUSAL));
    assert.equal(cache.lengths[0], alone.lengths[0], name);
  }
});

test("padding on the left is the same as on the right, and what it has is never looked at", () => {
  for (const make of Object.values(ALL_KINDS)) {
    const random = new Random(43);
    const [right, left] = [make(2, "float32"), make(2, "float32")];
    const { k, v, q } = draw(random, "float32", 2, 4);
    const moved = [k, v].map((x) => {
      const [, , T, n] = x.shape as [number, number, number, number];
      const data = new Float32Array(x.data.length).fill(NaN);
      for (let block = 0; block < 4; block++) {
        const count = block < 2 ? 3 : 1; // of row 0, of row 1
        const from = block * T * n;
        data.set(x.data.subarray(from, from + count * n), from + (T - count) * n);
      }
      return { data, shape: x.shape };
    });
    right.append(k, v, [3, 1]);
    left.append(moved[0]!, moved[1]!, int64([2], [3, 1]), { padding: "left" });
    assert.deepEqual(saveCache(left), saveCache(right));
    assertSame(left.attend(q, CAUSAL), right.attend(q, CAUSAL));
    assertUnchanged(left, () =>
      assertFails(() => left.append(k, v, null, { padding: "top" as never }), "invalid_config"),
    );
  }
});

test("a failed call changes nothing", () => {
  const others: Record<string, Make> = { latent, cross };
  for (const [name, make] of Object.entries({ ...ALL_KINDS, ...others })) {
    const random = new Random(44);
    const cache = make(2, "float32");
    const isLatent = name === "latent";
    const good = (T: number) =>
      isLatent
        ? ([random.tensor("float32", [2, T, 3]), random.tensor("float32", [2, T, 2])] as const)
        : ([random.tensor("float32", [2, 2, T, 4]), random.tensor("float32", [2, 2, T, 3])] as const);
    const width = isLatent ? 5 : 4;
    cache.append(...good(3), [3, 2]);
    const [k, v] = good(2);
    const wide = random.tensor("float64", [2, 4, 1, width]);
    const q = random.tensor("float32", [2, 4, 1, width]);
    const fails = (code: string, call: () => unknown) =>
      assertUnchanged(cache, () => assertFails(call, code, /expected .+, got .+/));
    fails(name === "cross" ? "invalid_config" : "shape_mismatch", () => cache.append(v, k));
    if (name !== "cross") {
      fails("dtype_mismatch", () => cache.append(wide as never, v));
      fails("shape_mismatch", () => cache.append(k, v, [1]));
      fails("invalid_config", () => cache.append(k, v, [1, 3]));
      if (name !== "paged") {
        fails("invalid_config", () => cache.append(k, v, null, { tokens: int64([2, 2], [1, 2, 3, 4]) }));
      }
      fails("shape_mismatch", () => cache.truncate([1]));
      fails("invalid_config", () => cache.truncate([3, 3]));
      fails("shape_mismatch", () =>
        allOrNothing(cache, () => {
          cache.append(k, v);
          return cache.attend(random.tensor("float32", [2, 4, 1, 7]));
        }),
      );
    }
    fails("dtype_mismatch", () => cache.attend(wide as never));
    fails("shape_mismatch", () => cache.attend(random.tensor("float32", [1, 4, 1, width])));
    if (!isLatent) fails("shape_mismatch", () => cache.attend(random.tensor("float32", [2, 3, 1, width])));
    fails("invalid_config", () => cache.attend(q, { softcap: 0 }));
    fails("invalid_config", () => cache.attend(q, { mask: { kvLengths: [1, 1] } }));
    fails("shape_mismatch", () => cache.reorder([0]));
    fails("invalid_config", () => cache.reorder([0, 2]));
    fails("invalid_config", () => cache.reorder([0, -1]));
    fails("invalid_config", () => cache.reorder([0, 0.5]));
  }
});

test("save, then load elsewhere, goes on to the same results", () => {
  for (const [name, make] of Object.entries(ALL_KINDS)) {
    for (const dtype of ["float32", "float64", "float16", "bfloat16"] as const) {
      const random = new Random(45);
      const cache = make(2, dtype);
      const [first, second] = [draw(random, dtype, 2, 6), draw(random, dtype, 2, 3)];
      cache.append(first.k, first.v, [6, 1]);
      const other = make(2, dtype);
      other.append(second.k, second.v);
      loadCache(other, saveCache(cache));
      assert.deepEqual(saveCache(other), saveCache(cache), name);
      for (const one of [cache, other]) one.append(second.k, second.v, [1, 3]);
      assertSame(other.attend(second.q, CAUSAL), cache.attend(second.q, CAUSAL));
      assert.deepEqual(other.read(), cache.read());
    }
  }
});

test("evict leaves a gap, and shift closes it", () => {
  const cache = new KVCache(ONE);
  push(cache, 1, 2, 4, 8);
  cache.evict([1, 2, 77]);
  assert.deepEqual(cache.read().positions, [[0, 3]]);
  assertClose(cache.attend(values(0), CAUSAL).data, [4.5]);
  assertClose(cache.attend(values(0), { mask: { causal: true, qOffset: 2 } }).data, [1]); // 8 stands at 3
  push(cache, 16);
  assert.deepEqual(cache.read().positions, [[0, 3, 4]]);
  const unchanged = (by: number, from: number) =>
    assertUnchanged(cache, () => assertFails(() => cache.shift(by, from), "invalid_config"));
  for (const [by, from] of [
    [-3, 1], // onto 0
    [-4, 1], // past it
    [-1, 0], // below 0
    [1e300, 1], // further than a double counts
    [4, 0.5],
    [0.5, 0],
  ]) {
    unchanged(by!, from!);
  }
  assertUnchanged(cache, () => cache.shift(-6, 9)); // not even the next token moves
  cache.shift(-2, 1);
  assert.deepEqual([cache.read().positions, cache.next], [[[0, 1, 2]], [3]]);
  cache.truncate([1]);
  assert.deepEqual(cache.next, [1]);
  assertUnchanged(cache, () => assertFails(() => cache.evict("1" as never), "invalid_config"));
});

test("turned keys, moved by a shift, are those of their new positions; shifts add up (RopePosition)", () => {
  const random = new Random(46);
  const rope = { base: 50, scaling: { type: "yarn", factor: 4, originalLength: 16 } } as const;
  const make = () => new KVCache({ ...SIZES, batch: 1, dtype: "float64", rope });
  const { k, v, q } = draw(random, "float64", 1, 5);
  const [moved, there] = [make(), make()];
  moved.append(k, v);
  moved.shift(7, 0);
  moved.shift(-3, 0);
  there.append(k, v);
  there.reset();
  there.append(random.tensor("float64", [1, 2, 4, 4]), random.tensor("float64", [1, 2, 4, 3]));
  there.evict([0, 1, 2, 3]);
  there.append(k, v);
  assert.deepEqual(moved.read().positions, there.read().positions);
  assertClose(moved.keys().data, there.keys().data, 1e-12);
  assertClose(moved.attend(q, CAUSAL).data, there.attend(q, CAUSAL).data, 1e-12);
});

test("a shift by 0 turns nothing, whatever the key is", () => {
  const cache = new KVCache({ batch: 1, numKvHeads: 1, headDim: 2, dtype: "float64", rope: {} });
  const k = { data: Float64Array.of(-0, Infinity), shape: [1, 1, 1, 2] };
  cache.append(k, k);
  assertUnchanged(cache, () => cache.shift(0, 0));
});

test("queries and keys turn at their positions (RopePosition)", () => {
  const cache = new KVCache({ batch: 1, numKvHeads: 1, headDim: 2, valueDim: 1, dtype: "float64", rope: {} });
  const unit = { data: Float64Array.of(1, 0), shape: [1, 1, 1, 2] };
  for (const x of [1, 2, 4]) cache.append(unit, { data: Float64Array.of(x), shape: [1, 1, 1, 1] });
  assertClose(cache.attend(unit, { scale: 1 }).data, [2.937694], 1e-6);
  for (const rope of [
    { offset: 1 },
    { rotaryDim: 3 },
    { scaling: { type: "dynamic", factor: 2, originalLength: 8 } },
  ]) {
    assertFails(() => new KVCache({ ...SIZES, batch: 1, rope: rope as never }), "invalid_config");
  }
});
