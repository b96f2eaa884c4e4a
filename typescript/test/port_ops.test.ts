/** The ops of the port by their requests: what is claimed, what is read, and the code of each bad one. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { codeOf } from "../port/errors.ts";
import { OPS, prepare } from "../port/ops.ts";
import { type Stored, store, type Tensors } from "../port/safetensors.ts";
import { cast, type Tensor, type TensorArray, Unsupported } from "../src/index.ts";
import { assertClose, bool, f32, f64, int64, Random } from "./helpers.ts";

type Inputs = Record<string, Tensor<TensorArray>>;

const random = new Random(130);
const draw = (...shape: number[]) => random.tensor("float64", shape);

function run(op: string, inputs: Inputs, more: object = {}): Tensors {
  const tensors = new Map(Object.entries(inputs).map(([name, x]) => [name, store(x)]));
  const call = prepare({ op, ...more }, tensors);
  return call.outputs(call.evaluate());
}

function numbers(tensors: Tensors, name: string): Float64Array {
  const x = tensors.get(name)!;
  if (x.dtype === "I64" || x.dtype === "BOOL") return Float64Array.from(x.data as Uint8Array, Number);
  return cast(x as Stored & Tensor<Float64Array>, "float64").data;
}

/** A good request of every op; `more` has its config and all outputs. */
const GOOD: Record<string, [Inputs, { config?: Record<string, unknown>; want: string[] }]> = {
  softmax: [{ x: draw(2, 3) }, { want: ["output", "lse"] }],
  sdpa: [
    { q: draw(1, 2, 3, 2), k: draw(1, 1, 4, 2), v: draw(1, 1, 4, 3), sinks: draw(2) },
    {
      config: { dropout: { p: 0.5, seed: 1 } },
      want: ["output", "weights", "lse", "scores", "capped", "biased"],
    },
  ],
  mha: [
    { x: draw(1, 3, 4), w_qkv: draw(16, 4), w_o: draw(4, 8), q_norm: draw(4), head_mask: bool([2], [1, 0]) },
    {
      config: { num_heads: 2, num_kv_heads: 1, packing: "heads", rope: { rotary_dim: 2 }, qk_norm_eps: 1e-5 },
      want: ["output", "weights", "lse", "mean_weights"],
    },
  ],
  kv_cache: [{}, { config: { batch: 1, num_kv_heads: 1, head_dim: 1, steps: [] }, want: [] }],
  mla: [
    {
      ...{ x: draw(1, 3, 4), w_q: draw(8, 4), w_dkv: draw(3, 4), kv_norm: draw(3), w_kr: draw(2, 4) },
      ...{ w_uk: draw(4, 3), w_uv: draw(6, 3), w_o: draw(4, 6) },
    },
    { config: { num_heads: 2, causal: true }, want: ["output", "weights", "lse", "latent", "rope_key"] },
  ],
  merge: [
    { a_output: draw(2, 3), a_lse: draw(2), b_output: draw(2, 3), b_lse: draw(2) },
    { want: ["output", "lse"] },
  ],
  varlen: [
    {
      ...{ q: draw(3, 2, 2), k: draw(4, 1, 2), v: draw(4, 1, 3), q_offset: int64([2], [0, 1]) },
      ...{ cu_seqlens_q: int64([3], [0, 1, 3]), cu_seqlens_k: int64([3], [0, 2, 4]) },
    },
    { config: { causal: true }, want: ["output", "lse"] },
  ],
  scoring: [
    { q: draw(1, 2, 3), k: draw(1, 4, 2), v: draw(1, 4, 2), w: draw(3, 2), kv_lengths: int64([1], [3]) },
    { config: { form: "general" }, want: ["output", "weights", "scores"] },
  ],
  dropout: [{ x: draw(3, 3) }, { config: { p: 0.5, seed: 3, offset: 2 }, want: ["output", "keep"] }],
  cast: [{ x: draw(3) }, { config: { to: "bf16" }, want: ["output"] }],
  sinusoidal: [
    { x: draw(1, 2, 4), positions: int64([1, 2], [4, 5]) },
    { config: { halves: true, base: 100 }, want: ["output", "table"] },
  ],
  rope: [
    { x: draw(1, 2, 3, 4) },
    {
      config: {
        rotary_dim: 2,
        scaling: { type: "longrope", short_factor: [1], long_factor: [2], original_length: 2 },
      },
      want: ["output", "cos", "sin"],
    },
  ],
  alibi: [{ scores: draw(1, 3, 2, 2) }, { config: { q_offset: 1 }, want: ["output", "slopes", "bias"] }],
  relative_bias: [
    { scores: draw(1, 3, 2, 2), table: draw(4, 3) },
    { config: { bidirectional: false, max_distance: 9 }, want: ["output", "buckets"] },
  ],
  linear_attention: [
    {
      ...{ q: draw(1, 2, 3, 2), k: draw(1, 1, 3, 2), v: draw(1, 1, 3, 2) },
      ...{ state: draw(1, 1, 2, 2), norm: f64([1, 1, 2], [9, 9]) },
    },
    { config: { causal: true }, want: ["output", "state", "norm"] },
  ],
  gated_linear: [
    { q: draw(1, 1, 3, 2), k: draw(1, 1, 3, 2), v: draw(1, 1, 3, 2), beta: draw(1, 1, 3, 1) },
    { config: { rule: "delta", scale: 1 }, want: ["output", "state"] },
  ],
  sparse: [
    { q: draw(1, 2, 3, 2), k: draw(1, 1, 3, 2), v: draw(1, 1, 3, 2), block_mask: bool([2, 2], [1, 0, 1, 1]) },
    {
      config: { pattern: { type: "blocks", block: 2 }, causal: true },
      want: ["output", "lse", "mask", "visited"],
    },
  ],
  structured: [
    { h: draw(1, 3, 2), w_1: draw(4, 2), w_2: draw(2, 4) },
    { want: ["output", "weights", "penalty"] },
  ],
  layer_norm: [{ x: draw(2, 3), weight: draw(3), bias: draw(3) }, { want: ["output", "mean", "inv_std"] }],
  rms_norm: [
    { x: draw(2, 3), weight: draw(3) },
    { config: { eps: 0.1 }, want: ["output"] },
  ],
  gelu: [{ x: draw(3) }, { config: { approximate: "tanh" }, want: ["output"] }],
  swiglu: [
    { a: draw(3), b: draw(3) },
    { config: { alpha: 1.702 }, want: ["output"] },
  ],
  block: [
    { x: draw(1, 3, 4), context: draw(1, 2, 3), ...blockTensors(""), ...crossTensors() },
    { config: { num_heads: 2, activation: "swiglu", norm: "rms", rope: {} }, want: ["output"] },
  ],
  transformer: [
    {
      tokens: int64([1, 3], [0, 4, 2]),
      embedding: draw(5, 4),
      segments: int64([1, 3], [0, 1, 1]),
      segment_embedding: draw(2, 4),
      "final_norm.weight": draw(4),
      ...blockTensors("layers.0."),
      ...blockTensors("layers.1."),
    },
    {
      config: { num_layers: 2, num_heads: 2, activation: "swiglu", causal: true },
      want: ["output", "logits"],
    },
  ],
  cache_write: [
    { cache: draw(2, 3, 1), update: draw(2, 2, 1), write_indices: int64([2], [2, 0]) },
    { config: { circular: true }, want: ["output"] },
  ],
};

function blockTensors(prefix: string): Inputs {
  const tensors: Inputs = {
    ...{ "attention.w_q": draw(4, 4), "attention.w_k": draw(4, 4), "attention.w_v": draw(4, 4) },
    ...{ "attention.w_o": draw(4, 4), "norm_1.weight": draw(4), "norm_2.weight": draw(4) },
    ...{ "ff.w_1": draw(6, 4), "ff.w_2": draw(4, 6), "ff.w_3": draw(6, 4) },
  };
  return Object.fromEntries(Object.entries(tensors).map(([name, x]) => [`${prefix}${name}`, x]));
}

function crossTensors(): Inputs {
  const weights = { "cross.w_q": draw(4, 4), "cross.w_k": draw(4, 3), "cross.w_v": draw(4, 3) };
  return { ...weights, "cross.w_o": draw(4, 4), "norm_3.weight": draw(4) };
}

test("every op that is claimed answers all its outputs, in every variant and type", () => {
  assert.deepEqual(new Set(Object.keys(GOOD)), new Set(Object.keys(OPS)));
  for (const [op, [inputs, { config, want }]] of Object.entries(GOOD)) {
    const plain = run(op, inputs, { config, want });
    assert.deepEqual([...plain.keys()], want, op);
    const { variants, complete } = OPS[op]!;
    // The partial ones say no to the dropout in the request; the cases and test/wasm.test.ts are theirs.
    for (const variant of variants.slice(0, 1).concat(complete ?? [])) {
      const given = variant === "flash" || variant === "split" ? ["output", "lse"] : want;
      const answer = run(op, inputs, { config, want: given, variant });
      for (const name of given) assertClose(numbers(answer, name), numbers(plain, name), 1e-11);
    }
    for (const dtype of ["float32", "float16", "bfloat16"] as const) {
      const cases = Object.entries(inputs).map(([name, x]) => {
        const wide = dtype !== "float32" && name.endsWith("_lse") ? "float32" : dtype;
        return [name, x.data instanceof Float64Array ? cast(x as Tensor<Float64Array>, wide) : x];
      });
      const answer = run(op, Object.fromEntries(cases), { config, want });
      const type = { float32: "F32", float16: "F16", bfloat16: "BF16" }[dtype];
      for (const [name, x] of answer) {
        if (op === "cast" || ["I64", "BOOL"].includes(x.dtype)) continue;
        assert.equal(x.dtype, name === "lse" ? "F32" : type, `${op}: ${name}`);
      }
    }
  }
});

test("rungs that are partial name what they do not do", () => {
  const [inputs, { config }] = GOOD.sdpa!;
  const single = Object.fromEntries(
    Object.entries(inputs).map(([name, x]) => [name, cast(x as Tensor<Float64Array>, "float32")]),
  );
  for (const variant of ["blocked", "wasm", "threads"]) {
    const refused = (tensors: Inputs, more: object, feature: string) =>
      assert.throws(() => run("sdpa", tensors, { variant, ...more }), { code: "unsupported", feature });
    refused(single, { config }, "dropout");
    refused(single, { want: ["weights"] }, "want.weights");
    if (variant !== "blocked") refused(inputs, {}, "dtype.f64");
    const want = ["output", "lse"];
    const answer = run("sdpa", single, { variant, want });
    const plain = run("sdpa", single, { want });
    for (const name of want) assertClose(numbers(answer, name), numbers(plain, name), 1e-6);
  }
});

test("variants that are held to all features are named", () => {
  const complete = Object.entries(OPS).filter(([, claims]) => claims.complete !== undefined);
  assert.deepEqual(
    Object.fromEntries(complete.map(([op, { variants, complete }]) => [op, [variants, complete]])),
    {
      sdpa: [
        ["naive", "flash", "split", "blocked", "wasm", "threads"],
        ["flash", "split"],
      ],
      mla: [["naive", "absorbed"], ["absorbed"]],
      linear_attention: [
        ["naive", "recurrent", "chunked"],
        ["recurrent", "chunked"],
      ],
    },
  );
});

test("null means absent", () => {
  for (const [op, fields] of Object.entries({
    ...{
      rope: ["base", "interleaved", "offset"],
      sinusoidal: ["offset"],
      alibi: ["q_offset"],
      gelu: ["approximate"],
    },
    ...{
      layer_norm: ["eps"],
      swiglu: ["alpha"],
      dropout: ["offset"],
      sparse: ["scale"],
    },
    ...{
      relative_bias: ["bidirectional", "max_distance"],
      mha: ["packing", "qk_norm_eps"],
      mla: ["eps", "rope"],
    },
    ...{
      block: ["norm", "norm_first", "eps", "rope"],
      gated_linear: ["scale"],
      linear_attention: ["causal"],
    },
  })) {
    const [inputs, { config }] = GOOD[op]!;
    const absent = Object.fromEntries(
      Object.entries(config ?? {}).filter(([name]) => !fields.includes(name)),
    );
    const nulls = { ...absent, ...Object.fromEntries(fields.map((name) => [name, null])) };
    assertClose(
      numbers(run(op, inputs, { config: nulls }), "output"),
      numbers(run(op, inputs, { config: absent }), "output"),
      0,
    );
  }
});

/** The code of a request that differs from the good one in its config or tensors; null takes one away. */
function codeOfBad(
  op: string,
  config: Record<string, unknown>,
  changes: Record<string, Tensor<TensorArray> | null>,
): string {
  const [inputs, more] = GOOD[op]!;
  const tensors = Object.entries({ ...inputs, ...changes }).filter(([, x]) => x !== null) as [
    string,
    Tensor<TensorArray>,
  ][];
  try {
    run(op, Object.fromEntries(tensors), { config: { ...more.config, ...config } });
  } catch (error) {
    assert.match((error as Error).message, /expected .+, got |is not offered/);
    return error instanceof Unsupported ? `unsupported ${error.feature}` : codeOf(error);
  }
  return "ok";
}

test("each code", () => {
  const cases: [string, string, Record<string, unknown>, Record<string, Tensor<TensorArray> | null>][] = [
    ["invalid_request", "cast", { to: null }, {}],
    ["unsupported cast.i8", "cast", { to: "i8" }, {}],
    ["unsupported cast.float32", "cast", { to: "float32" }, {}],
    ["unsupported cast.toString", "cast", { to: "toString" }, {}],
    ["invalid_config", "cast", { to: 16 }, {}],
    ["invalid_request", "dropout", { seed: null }, {}],
    ["invalid_config", "dropout", { p: "x" }, {}],
    ["invalid_config", "sdpa", { dropout: 0.5 }, {}],
    ["invalid_config", "sdpa", { dropout: { p: 0.5 } }, {}],
    ["invalid_request", "scoring", { form: null }, {}],
    ["invalid_config", "scoring", { form: "cosine" }, {}],
    ["invalid_config", "scoring", { form: "dot" }, {}], // which has no weights
    ["invalid_request", "scoring", {}, { w: null }],
    ["invalid_request", "scoring", { form: "additive" }, {}],
    ["invalid_request", "sparse", { pattern: null }, {}],
    ["invalid_config", "sparse", { pattern: 3 }, {}],
    ["invalid_config", "sparse", { pattern: { type: "blocks" } }, {}],
    ["invalid_request", "sparse", {}, { block_mask: null }],
    ["invalid_config", "sparse", { pattern: { type: "window", left: 1 } }, {}],
    ["invalid_config", "rope", { scaling: 2 }, {}],
    ["invalid_config", "rope", { scaling: { type: "yarn" } }, {}],
    ["invalid_config", "rope", { offset: 0 }, { positions: int64([1, 3], [0, 1, 2]) }],
    ["invalid_request", "rope", {}, { cos: draw(9, 2) }],
    ["invalid_request", "rope", {}, { sin: draw(9, 2) }],
    ["invalid_config", "mha", { rope: 5 }, {}],
    ["invalid_config", "mha", { rope: [] }, {}],
    ["invalid_config", "mla", { rope: [1] }, {}],
    ["invalid_config", "mha", {}, { w_k: draw(4, 4) }],
    ["invalid_config", "mha", {}, { b_q: draw(8) }],
    ["invalid_config", "mha", { rope: null }, { context: draw(1, 2, 4) }],
    ["invalid_request", "mha", {}, { w_qkv: null }],
    ["invalid_request", "mha", { num_heads: null }, {}],
    ["invalid_request", "mla", { num_heads: null }, {}],
    ["invalid_request", "mla", {}, { w_kr: null }],
    ["invalid_request", "linear_attention", {}, { norm: null }],
    ["invalid_request", "linear_attention", {}, { state: null }],
    ["invalid_config", "gated_linear", { rule: "gated" }, {}],
    ["dtype_mismatch", "varlen", {}, { cu_seqlens_q: f64([3], [0, 1, 3]) }],
    ["invalid_config", "varlen", { q_offset: 1 }, {}],
    ["invalid_config", "alibi", { q_offset: [1] }, {}],
    ["dtype_mismatch", "merge", {}, { b_lse: f32([2], [0, 0]) }],
    ["invalid_request", "block", {}, { context: null }],
    ["invalid_request", "block", {}, { "cross.w_q": null }],
    ["invalid_request", "block", {}, { "norm_1.weight": null }],
    ["invalid_config", "block", { norm: "rms" }, { "norm_2.bias": draw(4) }],
    ["invalid_request", "block", {}, { "ff.w_3": null }],
    ["invalid_config", "block", { norm: "batch" }, {}],
    ["invalid_config", "block", { activation: "tanh" }, {}],
    ["invalid_request", "transformer", { num_layers: null }, {}],
    ["invalid_config", "transformer", { num_layers: -1 }, {}],
    ["invalid_request", "transformer", { num_layers: 3 }, {}],
    ["invalid_request", "transformer", {}, { segments: null }],
    ["invalid_request", "transformer", {}, { segment_embedding: null }],
    ["dtype_mismatch", "transformer", {}, { tokens: f64([1, 3], [0, 4, 2]) }],
    ["capacity_exceeded", "cache_write", { circular: false }, {}],
    ["invalid_config", "gelu", { approximate: "sigmoid" }, {}],
    ["ok", "transformer", { num_layers: 2.0 }, {}],
    ["ok", "transformer", {}, { "final_norm.weight": null, "final_norm.bias": draw(4) }],
    ["invalid_request", "transformer", {}, { "layers.1.cross.w_q": draw(4, 4) }],
    ["ok", "dropout", { offset: 1e300 }, {}],
    ["ok", "sdpa", { splits: 1e300 }, {}],
  ];
  for (const [code, op, config, changes] of cases) {
    assert.equal(codeOfBad(op, config, changes), code, JSON.stringify([op, config, Object.keys(changes)]));
  }
});
