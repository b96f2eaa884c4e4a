/** Blocks and whole transformers, put together from their parts. */

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  type Block,
  block,
  feedForward,
  layerNorm,
  MultiHeadAttention,
  rmsNorm,
  type Tensor,
  type Transformer,
  transformer,
  transformerSteps,
} from "../src/index.ts";
import { assertClose, assertFails, assertSame, f32, f64, int64, Random } from "./helpers.ts";

type Doubles = Tensor<Float64Array>;

const [B, T, Tk, C, Cc, F, V] = [2, 4, 3, 6, 5, 8, 9];
const random = new Random(100);
const draw = (...shape: number[]) => random.tensor("float64", shape);

function attention(width: number, more: object = {}): MultiHeadAttention<Float64Array> {
  const weights = { wQ: draw(8, C), wK: draw(4, width), wV: draw(4, width), wO: draw(C, 8) };
  return new MultiHeadAttention({ ...weights, numHeads: 4, numKvHeads: 2, ...more });
}

function norm(kind: "layer" | "rms" = "layer") {
  return { kind, weight: draw(C), bias: kind === "layer" ? draw(C) : null };
}

function blockOf(changes: object = {}): Block<Float64Array> {
  const ff = { w1: draw(F, C), b1: draw(F), w2: draw(C, F), b2: draw(C), activation: "gelu" };
  return { attention: attention(C), ff, norm1: norm(), norm2: norm(), ...changes } as Block<Float64Array>;
}

function plus(x: Doubles, y: Doubles): Doubles {
  return f64(
    [...x.shape],
    x.data.map((value, n) => value + y.data[n]!),
  );
}

test("pre-norm and post-norm by hand", () => {
  const x = draw(B, T, C);
  const options = { causal: true, kvLengths: [4, 2] };
  const mask = { causal: true, kvLengths: [4, 2] };
  const layers = blockOf();
  const { norm1: n1, norm2: n2 } = layers;
  const y = plus(x, layers.attention.forward(layerNorm(x, n1.weight, n1.bias), null, { mask }));
  const pre = plus(y, feedForward(layerNorm(y, n2.weight, n2.bias), layers.ff));
  assertClose(block(x, layers, options).data, pre.data, 1e-12);
  const z = layerNorm(plus(x, layers.attention.forward(x, null, { mask })), n1.weight, n1.bias);
  const post = layerNorm(plus(z, feedForward(z, layers.ff)), n2.weight, n2.bias);
  assertClose(block(x, { ...layers, normFirst: false }, options).data, post.data, 1e-12);
});

test("cross-attention between the two, RMS norms, and SwiGLU", () => {
  const [x, context] = [draw(B, T, C), draw(B, Tk, Cc)];
  const ff = { w1: draw(F, C), w2: draw(C, F), w3: draw(F, C), activation: "swiglu" } as const;
  const [norm1, norm2, norm3] = [norm("rms"), { ...norm("rms"), eps: 0.1 }, norm("rms")];
  const layers = blockOf({ cross: attention(Cc), ff, norm1, norm2, norm3 });
  const y = plus(x, layers.attention.forward(rmsNorm(x, norm1.weight)));
  const mask = { kvLengths: [3, 1] };
  const z = plus(y, layers.cross!.forward(rmsNorm(y, norm2.weight, 0.1), context, { mask }));
  const expected = plus(z, feedForward(rmsNorm(z, norm3.weight), ff));
  assertClose(block(x, layers, { context, contextLengths: [3, 1] }).data, expected.data, 1e-12);
});

test("padding of x and of the context does not change the rows that are real", () => {
  const layers = blockOf({ cross: attention(Cc), norm3: norm() });
  const [x, context] = [draw(1, T, C), draw(1, Tk, Cc)];
  const options = { causal: true, kvLengths: [2], contextLengths: [1] };
  const whole = block(x, layers, { context, ...options });
  x.data.fill(NaN, 2 * C);
  context.data.fill(NaN, Cc);
  assertClose(
    block(x, layers, { context, ...options }).data.subarray(0, 2 * C),
    whole.data.subarray(0, 2 * C),
    0,
  );
  assert.deepEqual(block(f64([0, 2, C], []), blockOf()).shape, [0, 2, C]);
  assert.deepEqual(block(f64([2, 0, C], []), blockOf()).shape, [2, 0, C]);
});

function modelOf(changes: object = {}): Transformer<Float64Array> {
  return { embedding: draw(V, C), layers: [blockOf(), blockOf()], ...changes };
}

test("embeddings are added and normed, then the blocks, a final norm, and the logits", () => {
  const [positionEmbedding, segmentEmbedding, unembedding] = [draw(5, C), draw(2, C), draw(V, C)];
  const [embeddingNorm, finalNorm] = [norm(), norm()];
  const model = modelOf({ positionEmbedding, segmentEmbedding, unembedding, embeddingNorm, finalNorm });
  const [ids, parts] = [
    [3, 0, 8, 8, 1, 2, 3, 4],
    [0, 0, 1, 1, 0, 1, 0, 1],
  ];
  const options = { segments: int64([B, T], parts!), causal: true, kvLengths: [4, 3] };
  let x = f64(
    [B, T, C],
    ids!.flatMap((id, at) =>
      Array.from(
        { length: C },
        (_, c) =>
          model.embedding.data[id * C + c]! +
          positionEmbedding.data[(at % T) * C + c]! +
          segmentEmbedding.data[parts![at]! * C + c]!,
      ),
    ),
  );
  x = layerNorm(x, embeddingNorm.weight, embeddingNorm.bias);
  for (const layer of model.layers) x = block(x, layer, { causal: true, kvLengths: [4, 3] });
  x = layerNorm(x, finalNorm.weight, finalNorm.bias);
  const { output, logits } = transformerSteps(int64([B, T], ids!), model, options);
  assertClose(output.data, x.data, 1e-12);
  assert.deepEqual(logits.shape, [B, T, V]);
  const [row, word] = [5, 7];
  const score = x.data
    .subarray(row * C, (row + 1) * C)
    .reduce((sum, value, c) => sum + value * unembedding.data[word * C + c]!, 0);
  assertClose([logits.data[row * V + word]!], [score], 1e-12);
});

test("logits are by the embedding where there is no unembedding; no layers, no tokens", () => {
  const model = modelOf({ layers: [] });
  const { output, logits } = transformerSteps(int64([1, 1], [4]), model);
  assertSame(output, f64([1, 1, C], model.embedding.data.slice(4 * C, 5 * C)));
  const norm = output.data.reduce((sum, value) => sum + value * value, 0);
  assertClose([logits.data[4]!], [norm], 1e-12);
  assert.deepEqual(transformer(int64([2, 0], []), modelOf()).shape, [2, 0, C]);
  assert.deepEqual(transformer(int64([0, 3], []), modelOf()).shape, [0, 3, C]);
});

test("causal: a token changes nothing before it", () => {
  const model = modelOf({ positionEmbedding: draw(T, C) });
  const first = transformer(int64([1, T], [1, 2, 3, 4]), model, { causal: true });
  const second = transformer(int64([1, T], [1, 2, 3, 8]), model, { causal: true });
  assertClose(second.data.subarray(0, 3 * C), first.data.subarray(0, 3 * C), 0);
  assert.notEqual(second.data.at(-1), first.data.at(-1));
});

test("bad blocks", () => {
  const x = draw(B, T, C);
  const context = draw(B, Tk, Cc);
  const fails = (code: string, changes: object, options: object = {}, input: Doubles = x) => {
    const layers = blockOf(changes);
    assertFails(() => block(input, layers, options as never), code, /^block: [\w.]+: expected .+, got .+$/);
  };
  fails("invalid_config", {}, { context });
  fails("invalid_config", { cross: attention(Cc), norm3: norm() });
  fails("invalid_config", { cross: attention(Cc) }, { context });
  fails("invalid_config", { norm3: norm() });
  fails("invalid_config", {}, { contextLengths: [1, 1] });
  fails("invalid_config", { norm1: { ...norm(), kind: "batch" } });
  fails("invalid_config", { norm2: { ...norm(), kind: "rms" } });
  fails("invalid_config", { normFirst: 1 });
  fails("invalid_config", {}, { causal: 1 });
  fails("invalid_config", {}, { kvLengths: [5, 1] });
  fails("invalid_config", { cross: attention(Cc, { rope: {} }), norm3: norm() }, { context });
  fails("shape_mismatch", {}, {}, draw(T, C));
  fails("shape_mismatch", {}, {}, draw(B, T, C + 1));
  fails("shape_mismatch", { attention: attention(C, { wO: draw(C + 1, 8) }) });
  fails("shape_mismatch", { norm1: { kind: "layer", weight: draw(C + 1) } });
  fails("shape_mismatch", { ff: { w1: draw(F, C), w2: draw(C + 1, F), activation: "relu" } });
  fails("dtype_mismatch", { norm1: { kind: "layer", weight: f32([C], new Float32Array(C)) } });
});

test("bad models and tokens", () => {
  const tokens = int64([1, 2], [0, V - 1]);
  const fails = (code: string, changes: object, options: object = {}, input: unknown = tokens) => {
    const model = modelOf(changes);
    assertFails(
      () => transformer(input as never, model, options as never),
      code,
      /^transformer: [\w.]+: expected .+, got .+$/,
    );
  };
  assert.doesNotThrow(() => transformer(tokens, modelOf()));
  fails("invalid_config", {}, {}, int64([1, 1], [V]));
  fails("invalid_config", {}, {}, int64([1, 1], [-1]));
  fails("invalid_config", { positionEmbedding: draw(1, C) });
  fails("invalid_config", { segmentEmbedding: draw(2, C) });
  fails("invalid_config", {}, { segments: tokens });
  fails("invalid_config", { segmentEmbedding: draw(2, C) }, { segments: int64([1, 2], [0, 2]) });
  fails("invalid_config", { layers: [blockOf({ cross: attention(Cc), norm3: norm() })] });
  fails("invalid_config", {}, { kvLengths: [3] });
  fails("shape_mismatch", {}, {}, int64([2], [0, 1]));
  fails("shape_mismatch", { segmentEmbedding: draw(2, C) }, { segments: int64([2], [0, 1]) });
  fails("shape_mismatch", { positionEmbedding: draw(4, C + 1) });
  fails("shape_mismatch", { unembedding: draw(V + 1, C) });
  fails("dtype_mismatch", {}, {}, f64([1, 1], [0]));
  fails("dtype_mismatch", { unembedding: f32([V, C], new Float32Array(V * C)) });
});
