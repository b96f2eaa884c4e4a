/** Norms, activations, the feed-forward layer, and writing into a cache. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { erf } from "../src/erf.ts";
import { cacheWrite, feedForward, gelu, layerNorm, layerNormSteps, rmsNorm, swiglu } from "../src/index.ts";
import { as, assertClose, assertFails, assertSame, f32, f64, int64, Random } from "./helpers.ts";

test("the error function within a few units of the last place", () => {
  const known = [
    [0, 0],
    [1e-300, 1.1283791670955126e-300],
    [1e-8, 1.1283791670955126e-8],
    [0.1, 0.1124629160182849],
    [0.5, 0.5204998778130465],
    [1, 0.8427007929497149],
    [1.5, 0.9661051464753108],
    [1.9999, 0.9953201979070294],
    [2, 0.9953222650189527],
    [2.0001, 0.9953243313041966],
    [2.5, 0.999593047982555],
    [3, 0.9999779095030014],
    [4, 0.9999999845827421],
    [5, 0.9999999999984626],
    [5.9, 0.9999999999999999],
    [6.5, 1],
    [Infinity, 1],
  ] as const;
  for (const [x, y] of known) {
    assert.ok(Math.abs(erf(x) - y) <= 4 * 2 ** -53 * y, `erf(${x}) = ${erf(x)}`);
    assert.equal(erf(-x), -erf(x)); // the sign of 0 too
  }
  assert.ok(Number.isNaN(erf(NaN)));
  let before = -1;
  for (let x = -7; x < 7; x += 0.01) {
    assert.ok(erf(x) >= before - 1e-16, `erf falls at ${x}`);
    before = erf(x);
  }
});

test("GELU, exact and by tanh; infinities by ordinary arithmetic", () => {
  const x = f64([6], [0, 1, -1, 3, Infinity, -Infinity]);
  assertClose(
    gelu(x).data,
    [0, 0.8413447460685429, -0.15865525393145707, 2.99595030590511, Infinity, NaN],
    1e-15,
  );
  assertClose(gelu(x, "tanh").data.subarray(0, 3), [0, 0.8411919906082768, -0.15880800939172324], 1e-15);
  assert.ok(Number.isNaN(gelu(x, "tanh").data[5]));
});

test("SwiGLU: the gate of a times b", () => {
  const [a, b] = [f64([5], [0, 1, -1000, 1000, NaN]), f64([5], [3, 2, 1, 0.5, 1])];
  assertClose(swiglu(a, b).data, [0, 2 / (1 + Math.exp(-1)), 0, 500, NaN], 1e-12);
  assertClose(swiglu(a, b, 0).data.subarray(0, 4), [0, 1, -500, 250], 0);
});

test("layer norm: mean 0 and variance 1, then weight and bias", () => {
  const x = f64([2, 4], [1, 2, 3, 4, 5, 5, 5, 5]);
  const { output, mean, invStd } = layerNormSteps(x, f64([4], [1, 1, 2, 2]), f64([4], [0, 0, 0, 1]), 0.25);
  const s = 1 / Math.sqrt(1.5);
  assertClose(output.data, [-1.5 * s, -0.5 * s, s, 3 * s + 1, 0, 0, 0, 1], 1e-15);
  assertClose(mean.data, [2.5, 5], 0);
  assertClose(invStd.data, [s, 2], 1e-15);
  const far = f64([2], [1e8, 1e8 + 2]); // a difference of squares would lose this variance
  assertClose(layerNorm(far, null, null, 0).data, [-1, 1], 1e-7);
  assert.deepEqual(layerNorm(f64([0, 3], [])).shape, [0, 3]);
  assertClose(layerNorm(f32([2], [NaN, 1])).data, [NaN, NaN]);
});

test("RMS norm: root mean square 1, then weight", () => {
  const x = f64([2, 2], [3, 4, 0, 0]);
  assertClose(rmsNorm(x, f64([2], [1, 2]), 0.5).data, [3 / Math.sqrt(13), 8 / Math.sqrt(13), 0, 0], 1e-15);
  assertClose(rmsNorm(f64([1], [-7]), null, 0).data, [-1], 1e-15);
});

test("feed-forward with each activation", () => {
  const x = f64([1, 2, 1], [1, -2]);
  const layer = {
    w1: f64([2, 1], [1, -1]),
    b1: f64([2], [0.5, 0]),
    w2: f64([1, 2], [1, 10]),
    b2: f64([1], [3]),
  };
  assertClose(feedForward(x, { ...layer, activation: "relu" }).data, [4.5, 23], 1e-15);
  const inner = f64([4], [1.5, -1, -1.5, 2]);
  for (const [activation, form] of [
    ["gelu", "none"],
    ["gelu_tanh", "tanh"],
  ] as const) {
    const [a, b, c, d] = [...gelu(inner, form).data] as [number, number, number, number];
    assertClose(feedForward(x, { ...layer, activation }).data, [a + 10 * b + 3, c + 10 * d + 3], 1e-14);
  }
  const gated = { ...layer, w3: f64([2, 1], [2, 0]), b3: f64([2], [0, 1]), activation: "swiglu" } as const;
  const [a, b, c, d] = [...swiglu(inner, f64([4], [2, 1, -4, 1])).data] as [number, number, number, number];
  assertClose(feedForward(x, gated).data, [a + 10 * b + 3, c + 10 * d + 3], 1e-14);
  assertClose(feedForward(f64([1], [NaN]), { ...layer, activation: "relu" }).data, [NaN]);
});

test("cache_write: linear and circular, each row at its own index", () => {
  const cache = f64([2, 1, 3, 1], [1, 2, 3, 4, 5, 6]);
  const update = f64([2, 1, 2, 1], [10, 20, 30, 40]);
  assertSame(cacheWrite(cache, update), f64([2, 1, 3, 1], [10, 20, 3, 30, 40, 6]));
  assertSame(cacheWrite(cache, update, int64([2], [1, 0])), f64([2, 1, 3, 1], [1, 10, 20, 30, 40, 6]));
  assertSame(cacheWrite(cache, update, [2, 7], true), f64([2, 1, 3, 1], [20, 2, 10, 4, 30, 40]));
  assert.equal(cache.data[0], 1, "the cache itself stays");
  const far = { data: BigInt64Array.of(2n ** 53n + 1n, 2n ** 63n - 1n), shape: [2] }; // 0 and 1 modulo 3
  assertSame(cacheWrite(cache, update, far, true), f64([2, 1, 3, 1], [10, 20, 3, 4, 30, 40]));
  const random = new Random(90);
  const [deep, rows] = [random.tensor("float16", [2, 3, 2, 4, 5]), random.tensor("float16", [2, 3, 2, 4, 5])];
  assertSame(cacheWrite(deep, rows, [4, 8], true), rows);
  assertSame(cacheWrite(f64([1, 0, 2], []), f64([1, 0, 2], []), [0], true), f64([1, 0, 2], []));
  assertSame(cacheWrite(f64([0, 2, 1], []), f64([0, 1, 1], [])), f64([0, 2, 1], []));
});

test("a cache of halves keeps its codes, NaN and all", () => {
  const [cache, update] = [as("bfloat16", [1, 2, 1], [0.1, -0]), as("bfloat16", [1, 1, 1], [NaN])];
  update.data[0] = 0x7fab; // a payload
  assert.deepEqual([...cacheWrite(cache, update, [1]).data], [cache.data[0], 0x7fab]);
});

test("bad calls", () => {
  const x = f64([1, 2], [1, 2]);
  const fails = (code: string, ...calls: (() => unknown)[]) => {
    for (const call of calls) assertFails(call, code);
  };
  fails(
    "shape_mismatch",
    () => layerNorm(f64([], [1])),
    () => rmsNorm(f64([2, 0], [])),
  );
  fails(
    "shape_mismatch",
    () => layerNorm(x, f64([1], [1])),
    () => layerNorm(x, null, f64([1, 2], [1, 2])),
  );
  fails("dtype_mismatch", () => rmsNorm(x, f32([2], [1, 1]) as never));
  for (const eps of [-1, NaN, Infinity, "1"]) fails("invalid_config", () => rmsNorm(x, null, eps as number));
  fails(
    "invalid_config",
    () => gelu(x, "sigmoid" as never),
    () => swiglu(x, x, NaN),
  );
  fails("shape_mismatch", () => swiglu(x, f64([2, 1], [1, 2])));
  const layer = { w1: f64([3, 2], new Float64Array(6)), w2: f64([2, 3], new Float64Array(6)) };
  fails("invalid_config", () => feedForward(x, { ...layer, activation: "tanh" as never }));
  fails("invalid_config", () => feedForward(x, { ...layer, activation: "swiglu" }));
  fails("invalid_config", () => feedForward(x, { ...layer, w3: layer.w1, activation: "relu" }));
  fails("shape_mismatch", () => feedForward(x, { w1: layer.w2, w2: layer.w1, activation: "relu" }));
  const [cache, update] = [f64([2, 3, 1], new Float64Array(6)), f64([2, 2, 1], new Float64Array(4))];
  fails(
    "capacity_exceeded",
    () => cacheWrite(cache, update, [0, 2]),
    () => cacheWrite(update, cache, [0, 0], true),
  );
  fails(
    "invalid_config",
    () => cacheWrite(cache, update, [0, -1]),
    () => cacheWrite(cache, update, [0, 0], 1 as never),
  );
  fails(
    "shape_mismatch",
    () => cacheWrite(cache, update, [0]),
    () => cacheWrite(cache, f64([2, 2, 2], new Float64Array(8))),
  );
  fails("dtype_mismatch", () => cacheWrite(cache, f32([2, 2, 1], new Float32Array(4)) as never));
  fails("dtype_mismatch", () => cacheWrite(cache, update, f64([2], [0, 0]) as never));
});
