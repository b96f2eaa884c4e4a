import assert from "node:assert/strict";
import { test } from "node:test";
import { linear, mergeHeads, splitHeads } from "../src/heads.ts";
import {
  type MlaOptions,
  type MultiHeadLatentAttention,
  mla,
  mlaAbsorbed,
  mlaSteps,
  rmsNorm,
  rope,
  sdpa,
} from "../src/index.ts";
import { assertClose, assertFails, assertSame, f32, f64, int64, Random } from "./helpers.ts";

const [H, C, Rq, R, Dn, Dr, Dv, Cout] = [3, 5, 4, 6, 2, 4, 3, 7];
const random = new Random(95);
const draw = (...shape: number[]) => random.tensor("float64", shape);

type Layer = MultiHeadLatentAttention<Float64Array>;

function layerOf(changes: object = {}): Layer {
  const wide = { wDq: draw(Rq, C), qNorm: draw(Rq), wQ: draw(H * (Dn + Dr), Rq), kvNorm: draw(R) };
  const rest = { wDkv: draw(R, C), wKr: draw(Dr, C), wUk: draw(H * Dn, R), wUv: draw(H * Dv, R) };
  return { numHeads: H, ...wide, ...rest, wO: draw(Cout, H * Dv), ...changes };
}

test("absorbed is the same as expanded, with every option", () => {
  const layers: Layer[] = [
    layerOf(),
    layerOf({ wDq: null, qNorm: null, wQ: draw(H * (Dn + Dr), C), kvNorm: null }),
    layerOf({ rope: { interleaved: true, base: 100, rotaryDim: 2, offset: 5 }, eps: 0.1 }),
    layerOf({ qNorm: null }),
  ];
  const calls: MlaOptions[] = [
    {},
    { causal: true },
    { kvLengths: [4, 1], scale: 0.3 },
    { kvLengths: int64([2], [0, 3]) },
  ];
  for (const layer of layers) {
    for (const options of calls) {
      const x = draw(2, 4, C);
      const [plain, absorbed] = [mlaSteps(x, layer, options), mlaAbsorbed(x, layer, options)];
      for (const name of ["output", "weights", "lse", "latent", "ropeKey"] as const) {
        assert.deepEqual(absorbed[name].shape, plain[name].shape, name);
        assertClose(absorbed[name].data, plain[name].data, 1e-11);
      }
      assert.deepEqual(plain.output.shape, [2, 4, Cout]);
      assert.deepEqual(
        [plain.latent.shape, plain.ropeKey.shape],
        [
          [2, 4, R],
          [2, 4, Dr],
        ],
      );
    }
  }
});

test("the parts put together by hand", () => {
  const layer = layerOf({
    numHeads: 1,
    wQ: draw(Dn + Dr, Rq),
    wUk: draw(Dn, R),
    wUv: draw(Dv, R),
    wO: draw(Cout, Dv),
  });
  const x = draw(1, 3, C);
  const latent = rmsNorm(linear(x, layer.wDkv), layer.kvNorm, 1e-6);
  const ropeKey = rope(splitHeads(linear(x, layer.wKr), 1));
  const q = splitHeads(linear(rmsNorm(linear(x, layer.wDq!), layer.qNorm, 1e-6), layer.wQ), 1);
  const beside = (a: typeof q, b: typeof q) =>
    f64(
      [1, 1, 3, Dn + Dr],
      [0, 1, 2].flatMap((t) => [
        ...a.data.slice(t * Dn, (t + 1) * Dn),
        ...b.data.slice(t * Dr, (t + 1) * Dr),
      ]),
    );
  const part = (from: number, to: number) =>
    f64(
      [1, 1, 3, to - from],
      [0, 1, 2].flatMap((t) => [...q.data.slice(t * (Dn + Dr) + from, t * (Dn + Dr) + to)]),
    );
  const Q = beside(part(0, Dn), rope(part(Dn, Dn + Dr)));
  const K = beside(splitHeads(linear(latent, layer.wUk), 1), ropeKey);
  const heads = sdpa(Q, K, splitHeads(linear(latent, layer.wUv), 1), { mask: { causal: true } });
  const steps = mlaSteps(x, layer, { causal: true });
  assertClose(steps.output.data, linear(mergeHeads(heads), layer.wO).data, 1e-12);
  assertClose(steps.latent.data, latent.data, 0);
  assertClose(steps.ropeKey.data, ropeKey.data, 0);
});

test("padding does not change the rows that are real", () => {
  const layer = layerOf();
  const x = draw(1, 5, C);
  const output = mla(x, layer, { causal: true });
  x.data.fill(NaN, 3 * C);
  for (const padded of [
    mla(x, layer, { kvLengths: [3], causal: true }),
    mlaAbsorbed(x, layer, { kvLengths: [3], causal: true }).output,
  ]) {
    assertClose(padded.data.subarray(0, 3 * Cout), output.data.subarray(0, 3 * Cout), 1e-11);
  }
});

test("sizes of 0", () => {
  const layer = layerOf();
  for (const shape of [
    [0, 3],
    [2, 0],
  ]) {
    const x = f64([...shape, C], []);
    for (const steps of [mlaSteps(x, layer), mlaAbsorbed(x, layer)]) {
      assertSame(steps.output, f64([...shape, Cout], []));
      assert.deepEqual(steps.weights.shape, [shape[0], H, shape[1], shape[1]]);
    }
  }
});

test("bad calls", () => {
  const x = draw(2, 4, C);
  const fails = (code: string, changes: object, options: object = {}) => {
    const layer = layerOf(changes);
    assertFails(() => mla(x, layer, options), code, /^mla: \w+: expected .+, got .+$/);
    assertFails(() => mlaAbsorbed(x, layer, options), code, /^mla_absorbed: \w+: expected .+, got .+$/);
  };
  fails("invalid_config", { numHeads: 0 });
  fails("invalid_config", { wDq: null, wQ: draw(H * (Dn + Dr), C) }); // a qNorm without its latent
  fails("invalid_config", { eps: -1 });
  fails("invalid_config", { rope: { scaling: { type: "other" } } });
  fails("invalid_config", { rope: 3 });
  fails("invalid_config", {}, { scale: "1" });
  fails("invalid_config", {}, { kvLengths: [5, 1] });
  fails("shape_mismatch", { wQ: draw(H * (Dn + Dr), C) });
  fails("shape_mismatch", { wQ: draw(H * (Dn + Dr + 1), Rq) });
  fails("shape_mismatch", { wKr: draw(3, C), wQ: draw(H * (Dn + 3), Rq) }); // odd, and no rotaryDim
  fails("shape_mismatch", { wUk: draw(H * Dn + 1, R) });
  fails("shape_mismatch", { wO: draw(Cout, H * Dv + 1) });
  fails("shape_mismatch", { kvNorm: draw(R + 1) });
  fails("dtype_mismatch", { kvNorm: f32([R], new Float32Array(R)) });
  assertFails(() => mla(draw(4, C), layerOf()), "shape_mismatch");
});
