/** Half types at the edge of every op: widened, computed in float32, and rounded once. */

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  alibiSteps,
  type Block,
  block,
  dropoutSteps,
  type FloatArray,
  flash,
  gatedLinear,
  gelu,
  type IntTensor,
  layerNormSteps,
  linearAttention,
  linearChunked,
  linearRecurrent,
  MultiHeadAttention,
  merge,
  mlaAbsorbed,
  mlaSteps,
  narrow,
  relativeBiasSteps,
  rmsNorm,
  ropeSteps,
  scoringSteps,
  sdpaSteps,
  sinusoidalSteps,
  softmaxLse,
  sparseSteps,
  splitKv,
  structuredSteps,
  swiglu,
  type Tensor,
  transformerSteps,
  varlen,
  widen,
} from "../src/index.ts";
import { dtypeOf } from "../src/tensor.ts";
import { assertFails, int64, Random } from "./helpers.ts";

type Any = Tensor<FloatArray>;
type Draw = (...shape: number[]) => Any;
type Result = Readonly<Record<string, Any>>;

/** Each op with inputs that `draw` makes, in the same order every time. */
const OPS: Readonly<Record<string, (draw: Draw) => object>> = {
  softmax: (draw) => softmaxLse(draw(2, 3)),
  sdpa: (draw) => {
    const options = { bias: draw(3, 4), sinks: draw(2), dropout: { p: 0.3, seed: 1 } };
    return sdpaSteps(draw(1, 2, 3, 2), draw(1, 1, 4, 2), draw(1, 1, 4, 2), options);
  },
  flash: (draw) => flash(draw(1, 2, 3, 2), draw(1, 1, 4, 2), draw(1, 1, 4, 2), { bias: draw(3, 4) }),
  split: (draw) => splitKv(draw(1, 2, 3, 2), draw(1, 1, 4, 2), draw(1, 1, 4, 2), { sinks: draw(2) }),
  varlen: (draw) => varlen(draw(3, 2, 2), draw(4, 1, 2), draw(4, 1, 2), [0, 1, 3], [0, 2, 4]),
  merge: (draw) => {
    const lse = { data: Float32Array.of(0.3, -1), shape: [2] };
    return merge(draw(2, 3), lse, draw(2, 3), lse);
  },
  mha: (draw) => {
    const weights = {
      wQ: draw(4, 3),
      wK: draw(4, 3),
      wV: draw(4, 3),
      wO: draw(3, 4),
      bO: draw(3),
      qNorm: draw(2),
    };
    return new MultiHeadAttention({ ...weights, numHeads: 2, rope: {} }).steps(draw(1, 3, 3));
  },
  mla: (draw) => mlaSteps(draw(1, 3, 3), latent(draw)),
  absorbed: (draw) => mlaAbsorbed(draw(1, 3, 3), latent(draw)),
  scoring: (draw) => scoringSteps("general", draw(1, 2, 3), draw(1, 4, 2), draw(1, 4, 2), { w: draw(3, 2) }),
  structured: (draw) => structuredSteps(draw(1, 4, 3), draw(2, 3), draw(2, 2)),
  linear: (draw) => linearAttention(draw(1, 2, 3, 2), draw(1, 1, 3, 2), draw(1, 1, 3, 2), { causal: true }),
  recurrent: (draw) => linearRecurrent(draw(1, 1, 3, 2), draw(1, 1, 3, 2), draw(1, 1, 3, 2)),
  chunked: (draw) =>
    linearChunked(draw(1, 1, 3, 2), draw(1, 1, 3, 2), draw(1, 1, 3, 2), { causal: true, chunk: 2 }),
  gated: (draw) => {
    const options = { rule: "gated_delta", decay: draw(1, 1, 3, 2), beta: draw(1, 1, 3, 1) } as const;
    return gatedLinear(draw(1, 1, 3, 2), draw(1, 1, 3, 2), draw(1, 1, 3, 2), {
      ...options,
      past: draw(1, 1, 2, 2),
    });
  },
  sparse: (draw) =>
    sparseSteps(draw(1, 1, 4, 2), draw(1, 1, 4, 2), draw(1, 1, 4, 2), { type: "strided", stride: 2 }),
  rope: (draw) => ropeSteps(draw(1, 2, 3, 4), { offset: 300 }),
  sinusoidal: (draw) => sinusoidalSteps(draw(1, 3, 4), { offset: 300 }),
  alibi: (draw) => alibiSteps(draw(1, 3, 2, 4)),
  relative_bias: (draw) => relativeBiasSteps(draw(1, 2, 3, 3), draw(8, 2)),
  dropout: (draw) => dropoutSteps(draw(3, 3), { p: 0.3, seed: 2 }),
  layer_norm: (draw) => layerNormSteps(draw(2, 3), draw(3), draw(3)),
  rms_norm: (draw) => ({ output: rmsNorm(draw(2, 3), draw(3)) }),
  gelu: (draw) => ({ output: gelu(draw(7)) }),
  swiglu: (draw) => ({ output: swiglu(draw(7), draw(7)) }),
  block: (draw) => ({ output: block(draw(1, 3, 4), layers(draw)) }),
  transformer: (draw) => {
    const model = { embedding: draw(5, 4), layers: [layers(draw)] };
    return transformerSteps(int64([1, 3], [0, 4, 2]), model);
  },
};

function latent(draw: Draw) {
  const weights = {
    wQ: draw(8, 3),
    wDkv: draw(3, 3),
    wKr: draw(2, 3),
    wUk: draw(4, 3),
    wUv: draw(4, 3),
    wO: draw(3, 4),
  };
  return { ...weights, kvNorm: draw(3), numHeads: 2 };
}

function layers(draw: Draw): Block {
  const attention = new MultiHeadAttention({
    ...{ wQ: draw(4, 4), wK: draw(4, 4), wV: draw(4, 4), wO: draw(4, 4) },
    numHeads: 2,
  });
  const norm = { kind: "layer", weight: draw(4) } as const;
  return { attention, ff: { w1: draw(6, 4), w2: draw(4, 6), activation: "gelu" }, norm1: norm, norm2: norm };
}

for (const dtype of ["float16", "bfloat16"] as const) {
  for (const [name, op] of Object.entries(OPS)) {
    test(`${name} in ${dtype} is that in float32, rounded once, with the lse as it is`, () => {
      const [random, again] = [new Random(120), new Random(120)];
      const half = op((...shape) => random.tensor(dtype, shape)) as Result;
      const wide = op((...shape) => widen(again.tensor(dtype, shape))) as Result;
      assert.deepEqual(Object.keys(half), Object.keys(wide));
      for (const [part, x] of Object.entries(wide)) {
        const rounds = dtypeOf(x) === "float32" && part !== "lse";
        assert.deepEqual(half[part], rounds ? narrow(x as Tensor<Float32Array>, dtype) : x, part);
      }
    });
  }
}

test("all float inputs of a call have one type", () => {
  for (const [name, op] of Object.entries(OPS)) {
    for (const [first, others] of [
      ["float16", "float32"],
      ["float32", "float16"],
      ["bfloat16", "float16"],
    ] as const) {
      const random = new Random(121);
      let drawn = 0;
      const draw: Draw = (...shape) => random.tensor(drawn++ === 0 ? first : others, shape);
      const alone = new Set(["softmax", "rope", "sinusoidal", "alibi", "dropout", "gelu"]).has(name);
      if (!alone) assertFails(() => op(draw), "dtype_mismatch", /^[\w.]+: [\w.]+: expected \w+, got \w+$/);
    }
  }
});

test("masks, lengths and positions stay what they are beside halves", () => {
  const random = new Random(122);
  const [q, k] = [random.tensor("float16", [1, 1, 2, 2]), random.tensor("float16", [1, 1, 3, 2])];
  const keep = { data: Uint8Array.of(1, 0, 1), shape: [3] };
  const lengths: IntTensor = int64([1], [2]);
  const { weights } = sdpaSteps(q, k, k, { mask: { keep, kvLengths: lengths, qOffset: [1], causal: true } });
  assert.deepEqual([...weights.data], [1, 0, 0, 1, 0, 0]);
});
