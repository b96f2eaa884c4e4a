import assert from "node:assert/strict";
import { test } from "node:test";
import { MultiHeadAttention, sdpa, type Tensor } from "../src/index.ts";
import { zeros } from "../src/tensor.ts";
import { assertClose, assertFails, assertSame, bool, f32, f64, Random } from "./helpers.ts";

function identity(n: number): Tensor<Float64Array> {
  return f64(
    [n, n],
    Float64Array.from({ length: n * n }, (_, at) => Number(at % (n + 1) === 0)),
  );
}

test("heads are consecutive blocks of channels, merged side by side (HeadReshape)", () => {
  // One visible key per query, so that each head gives the values of its own position back.
  const x = f64([1, 2, 4], [1, 2, 5, 6, 3, 4, 7, 8]);
  const layer = new MultiHeadAttention({
    wQ: identity(4),
    wK: identity(4),
    wV: identity(4),
    wO: identity(4),
    numHeads: 2,
  });
  const { output, weights } = layer.steps(x, null, { mask: { keep: bool([2, 2], [1, 0, 0, 1]) } });
  assertClose(output.data, x.data, 0);
  assertClose(weights.data, [1, 0, 0, 1, 1, 0, 0, 1], 0);
});

test("a projection is x Wᵀ + b, weights being (out, in)", () => {
  const layer = new MultiHeadAttention({
    wQ: f64([1, 2], [0, 0]),
    wK: f64([1, 2], [0, 0]),
    wV: f64([3, 2], [1, 0, 0, 1, 1, 1]),
    bV: f64([3], [100, 200, 300]),
    wO: f64([2, 3], [1, 0, 0, 0, 1, 1]),
    bO: f64([2], [0.5, 0.25]),
    numHeads: 1,
  });
  const output = layer.forward(f64([1, 2, 2], [1, 2, 3, 6])); // mean row (2, 4): v = (102, 204, 306)
  assert.deepEqual(output, f64([1, 2, 2], [102.5, 510.25, 102.5, 510.25]));
});

test("the parts put together by hand: context, GQA, Dv != D, biases, options", () => {
  const random = new Random(20);
  const draw = (shape: number[]) => random.tensor("float64", shape);
  const [B, Hq, Hkv, D, Dv, C, Cc, Cout, Tq, Tk] = [2, 4, 2, 3, 5, 6, 7, 2, 3, 4];
  const [wQ, wK, wV, wO] = [
    draw([Hq * D, C]),
    draw([Hkv * D, Cc]),
    draw([Hkv * Dv, Cc]),
    draw([Cout, Hq * Dv]),
  ];
  const [bQ, bK, bV, bO] = [draw([Hq * D]), draw([Hkv * D]), draw([Hkv * Dv]), draw([Cout])];
  const layer = new MultiHeadAttention({ wQ, wK, wV, wO, bQ, bK, bV, bO, numHeads: Hq, numKvHeads: Hkv });
  const [x, context] = [draw([B, Tq, C]), draw([B, Tk, Cc])];
  const options = { mask: { causal: true, qOffset: 1 }, bias: draw([Hq, Tq, Tk]), scale: 0.3, softcap: 2 };

  /** One head's projection, (B, H, T, n), element by element. */
  const heads = (source: Tensor, w: Tensor, b: Tensor, H: number): Tensor<Float64Array> => {
    const [T, width, n] = [source.shape[1]!, source.shape[2]!, w.shape[0]! / H];
    const out = zeros("float64", [B, H, T, n]);
    for (let at = 0; at < out.data.length; at++) {
      const [row, h, t, c] = [
        Math.floor(at / (H * T * n)),
        Math.floor(at / (T * n)) % H,
        Math.floor(at / n) % T,
        at % n,
      ];
      out.data[at] = b.data[h * n + c]!;
      for (let m = 0; m < width; m++) {
        out.data[at]! += source.data[(row * T + t) * width + m]! * w.data[(h * n + c) * width + m]!;
      }
    }
    return out;
  };
  const attended = sdpa(
    heads(x, wQ, bQ, Hq),
    heads(context, wK, bK, Hkv),
    heads(context, wV, bV, Hkv),
    options,
  );
  const expected = zeros("float64", [B, Tq, Cout]);
  for (let at = 0; at < expected.data.length; at++) {
    const [b, t, o] = [Math.floor(at / (Tq * Cout)), Math.floor(at / Cout) % Tq, at % Cout];
    expected.data[at] = bO.data[o]!;
    for (let h = 0; h < Hq; h++) {
      for (let c = 0; c < Dv; c++) {
        expected.data[at]! +=
          attended.data[((b * Hq + h) * Tq + t) * Dv + c]! * wO.data[(o * Hq + h) * Dv + c]!;
      }
    }
  }
  const { output, weights, lse } = layer.steps(x, context, options);
  assert.deepEqual(output.shape, [B, Tq, Cout]);
  assert.deepEqual(weights.shape, [B, Hq, Tq, Tk]);
  assert.deepEqual(lse.shape, [B, Hq, Tq]);
  assertClose(output.data, expected.data, 1e-12);
  assertSame(layer.forward(x, context, options), output);
});

test("padding does not change the rows that are real", () => {
  const random = new Random(21);
  const draw = (shape: number[]) => random.tensor("float32", shape);
  const layer = new MultiHeadAttention({
    ...{ wQ: draw([6, 4]), wK: draw([6, 4]), wV: draw([6, 4]), wO: draw([4, 6]) },
    numHeads: 2,
  });
  const short = draw([1, 3, 4]);
  const padded = { data: new Float32Array(20).fill(NaN), shape: [1, 5, 4] };
  padded.data.set(short.data);
  const output = layer.forward(padded, null, { mask: { kvLengths: [3] } });
  assertClose(output.data.subarray(0, 12), layer.forward(short).data, 0);
});

test("sizes of 0", () => {
  const layer = new MultiHeadAttention({
    wQ: identity(2),
    wK: identity(2),
    wV: identity(2),
    wO: identity(2),
    numHeads: 2,
  });
  assert.deepEqual(layer.forward(f64([0, 3, 2], [])).shape, [0, 3, 2]);
  assert.deepEqual(layer.forward(f64([1, 0, 2], [])).shape, [1, 0, 2]);
  assert.deepEqual(layer.forward(f64([1, 1, 2], [1, 2]), f64([1, 0, 2], [])), f64([1, 1, 2], [0, 0]));
});

test("bad calls", () => {
  const good = {
    wQ: zeros("float32", [12, 5]),
    wK: zeros("float32", [6, 5]),
    wV: zeros("float32", [8, 5]),
    wO: zeros("float32", [3, 16]),
    numHeads: 4,
    numKvHeads: 2,
  };
  const call = (changes: object, x: unknown = zeros("float32", [2, 3, 5]), context: unknown = null) => {
    return () =>
      new MultiHeadAttention({ ...good, ...changes }).forward(x as Tensor<Float32Array>, context as null);
  };
  assert.doesNotThrow(call({}));
  const fails = (code: string, ...changes: object[]) => {
    for (const change of changes) assertFails(call(change), code);
  };
  fails("invalid_config", { numHeads: 0 }, { numHeads: -4 }, { numHeads: 1.5 }, { numHeads: "4" });
  fails("invalid_config", { numKvHeads: 0 }, { numKvHeads: 3 }, { numKvHeads: -2 }, { numKvHeads: "2" });
  fails("shape_mismatch", { wQ: zeros("float32", [12, 4]) }, { wK: zeros("float32", [6, 6]) });
  fails("shape_mismatch", { wQ: zeros("float32", [13, 5]) }, { wK: zeros("float32", [7, 5]) });
  fails("shape_mismatch", { wK: zeros("float32", [8, 5]) }, { wV: zeros("float32", [7, 5]) });
  fails("shape_mismatch", { wO: zeros("float32", [3, 15]) }, { wQ: zeros("float32", [12, 5, 1]) });
  fails("shape_mismatch", { wQ: zeros("float32", [0, 5]), wK: zeros("float32", [0, 5]) });
  fails(
    "shape_mismatch",
    { bQ: zeros("float32", [6]) },
    { bO: zeros("float32", [16]) },
    { bK: zeros("float32", [6, 1]) },
  );
  fails("dtype_mismatch", { wQ: zeros("float64", [12, 5]) }, { wO: zeros("float64", [3, 16]) });
  fails("dtype_mismatch", { bV: zeros("float64", [8]) });
  assertFails(call({}, zeros("float32", [3, 5])), "shape_mismatch");
  assertFails(call({}, bool([1, 1, 5], [1, 1, 1, 1, 1])), "dtype_mismatch");
  assertFails(call({}, undefined, zeros("float32", [1, 3, 5])), "shape_mismatch");
  assertFails(call({}, undefined, zeros("float32", [3, 5])), "shape_mismatch");
  assertFails(call({}, undefined, zeros("float64", [2, 3, 5])), "dtype_mismatch");
  assertFails(
    () => new MultiHeadAttention(good).forward(f32([1, 1, 5], [1, 2, 3, 4, 5]), null, { softcap: 0 }),
    "invalid_config",
  );
});
