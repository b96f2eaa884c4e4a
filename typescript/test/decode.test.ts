import assert from "node:assert/strict";
import { test } from "node:test";
import {
  type FloatDtype,
  KVCache,
  MultiHeadAttention,
  QuantisedCache,
  type Rope,
  type RopeScaling,
  RotatingCache,
  saveCache,
} from "../src/index.ts";
import { assertUnchanged, cross, paged, SIZES } from "./caches.ts";
import { assertFails, assertSame, bool, f32, Random } from "./helpers.ts";

/** Four query heads over caches of SIZES: width 6 to 5. */
function layer<T extends FloatDtype>(random: Random, dtype: T, rope: Rope | null = null) {
  return new MultiHeadAttention({
    ...{ numHeads: 4, numKvHeads: 2, rope },
    ...{ wQ: random.tensor(dtype, [16, 6]), wK: random.tensor(dtype, [8, 6]) },
    ...{ wV: random.tensor(dtype, [6, 6]), bV: random.tensor(dtype, [6]) },
    ...{ wO: random.tensor(dtype, [5, 12]), qNorm: random.tensor(dtype, [4]) },
  });
}

/** Positions `from` to `to` of (1, T, 6). */
function part<A extends Float32Array | Float64Array>(
  x: { data: A; shape: readonly number[] },
  from: number,
  to: number,
) {
  return { data: x.data.slice(from * 6, to * 6) as A, shape: [1, to - from, 6] };
}

test("token by token is forward, whatever holds the past, bit for bit", () => {
  for (const rope of [null, { base: 100 }]) {
    const random = new Random(110);
    const mha = layer(random, "float64", rope);
    const x = random.tensor("float64", [1, 9, 6]);
    const options = { mask: { causal: true }, scale: 0.4 };
    const whole = mha.forward(x, null, options);
    const windowed = mha.forward(x, null, { ...options, mask: { causal: true, window: [3, null] } });
    for (const [cache, expected] of [
      [new KVCache({ ...SIZES, batch: 1, dtype: "float64", rope }), whole],
      [paged(1, "float64", 9, rope), whole],
      [new RotatingCache({ ...SIZES, batch: 1, dtype: "float64", rope, window: 4 }), windowed],
    ] as const) {
      for (const [from, to] of [
        [0, 5],
        [5, 6],
        [6, 6],
        [6, 9],
      ] as const) {
        const y = mha.decode(part(x, from, to), cache, { scale: 0.4 });
        assertSame(y, { data: expected.data.slice(from * 5, to * 5), shape: [1, to - from, 5] });
      }
    }
  }
});

test("half types are rounded where they are held, and at the end", () => {
  const random = new Random(111);
  for (const dtype of ["float16", "bfloat16"] as const) {
    const mha = layer(random, dtype);
    const x = random.tensor(dtype, [2, 3, 6]);
    const cache = new KVCache({ ...SIZES, batch: 2, dtype });
    const y = mha.decode(x, cache, { bias: random.tensor(dtype, [3, 3]) });
    assert.deepEqual([y.shape, y.data.constructor], [[2, 3, 5], x.data.constructor]);
    const quantised = new QuantisedCache({
      ...SIZES,
      batch: 2,
      dtype,
      format: dtype === "float16" ? "f16" : "bf16",
    });
    assert.deepEqual(mha.decode(x, quantised).shape, [2, 3, 5]);
    const plain = new KVCache({ ...SIZES, batch: 2, dtype });
    const again = mha.decode(x, plain);
    assert.deepEqual(saveCache(plain), saveCache(cache));
    assert.notDeepEqual(again.data, y.data);
  }
});

test("a call that fails appends nothing", () => {
  const random = new Random(112);
  const mha = layer(random, "float32");
  const cache = new KVCache({ ...SIZES, batch: 1, capacity: 4 });
  const x = random.tensor("float32", [1, 3, 6]);
  mha.decode(x, cache);
  const fails = (code: string, call: () => unknown) => assertUnchanged(cache, () => assertFails(call, code));
  fails("capacity_exceeded", () => mha.decode(x, cache));
  const one = part(x, 0, 1);
  fails("shape_mismatch", () => mha.decode(random.tensor("float32", [2, 1, 6]), cache));
  fails("shape_mismatch", () => mha.decode(random.tensor("float32", [1, 1, 5]), cache));
  fails("dtype_mismatch", () => mha.decode(random.tensor("float64", [1, 1, 6]) as never, cache));
  fails("invalid_config", () => mha.decode(one, cache, { softcap: -1 }));
  fails("shape_mismatch", () => mha.decode(one, cache, { mask: { keep: bool([3], [1, 1, 1]) } }));
  fails("invalid_config", () => mha.decode(one, cache, { mask: { kvLengths: [1] } }));
  fails("invalid_config", () => layer(random, "float32", { base: 50 }).decode(one, cache));
  const small = new KVCache({ ...SIZES, batch: 1, headDim: 3 });
  assertFails(() => mha.decode(one, small), "shape_mismatch");
  assertFails(() => mha.decode(one, cross(1, "float32")), "invalid_config");
  assert.deepEqual(mha.decode(one, cache, { mask: { keep: bool([4], [1, 1, 1, 1]) } }).shape, [1, 1, 5]);
  const turned = new KVCache({ ...SIZES, batch: 1, rope: { base: 50, interleaved: false } });
  layer(random, "float32", { base: 50, offset: 0 }).decode(f32([1, 0, 6], []), turned);
});

test("a scaling that says its defaults is the one that does not", () => {
  const trained = { factor: 4, originalLength: 8 };
  const factors = { shortFactor: [1, 1], longFactor: [2, 2], length: 9 };
  const [ln4, ln8] = [Math.log(4), Math.log(8)];
  const same: [RopeScaling, defaults: object, other: object][] = [
    [
      { type: "yarn", ...trained },
      { betaFast: 32, betaSlow: 1, attentionFactor: 0.1 * ln4 + 1, truncate: true },
      { truncate: false },
    ],
    [{ type: "llama3", ...trained }, { lowFreqFactor: 1, highFreqFactor: 4 }, { highFreqFactor: 5 }],
    [
      { type: "longrope", ...trained, ...factors },
      { attentionFactor: Math.sqrt(1 + ln4 / ln8) },
      { attentionFactor: 1 },
    ],
    [{ type: "longrope", ...factors, originalLength: 8 }, { factor: 1, attentionFactor: 1 }, { factor: 4 }],
  ];
  for (const [scaling, defaults, other] of same) {
    const cache = new KVCache({ ...SIZES, batch: 1, rope: { scaling } });
    const decode = (more: object) => {
      const mha = layer(new Random(113), "float32", { scaling: { ...scaling, ...more } });
      return mha.decode(f32([1, 0, 6], []), cache);
    };
    decode(defaults);
    assertFails(() => decode(other), "invalid_config");
  }
});
