import assert from "node:assert/strict";
import { test } from "node:test";
import {
  alibiSlopes,
  alibiSteps,
  type RopeScaling,
  relativeBiasSteps,
  rope,
  ropeSteps,
  sdpa,
  sinusoidalSteps,
  type Tensor,
} from "../src/index.ts";
import { frequenciesOf, scaledFrequencies } from "../src/rope_scaling.ts";
import { assertClose, assertFails, assertSame, f32, f64, int64, Random } from "./helpers.ts";

function row(values: number[]): Tensor<Float64Array> {
  return f64([1, 1, 1, values.length], values);
}

test("the two pairings (RopePairing)", () => {
  const x = row([1, 2, 3, 4]);
  const half = [-1.984111, 1.959901, 2.462378, 4.0198];
  assertClose(rope(x, { offset: 1 }).data, half, 1e-6);
  const interleaved = [-1.14264, 1.922076, 2.959851, 4.0298];
  assertClose(rope(x, { offset: 1, interleaved: true }).data, interleaved, 1e-6);
  const score = (interleaved: boolean) => {
    const [q, k] = [rope(x, { offset: 2, interleaved }), rope(row([4, 3, 2, 1]), { interleaved })];
    return q.data.reduce((sum, value, c) => sum + value * k.data[c]!, 0);
  };
  assertClose([score(false), score(true)], [-3.456429, 1.190051], 1e-6);
});

test("keys are rotated at their own positions, and queries at theirs (RopePosition)", () => {
  const k = rope(f64([1, 1, 3, 2], [1, 0, 1, 0, 1, 0]));
  const output = sdpa(rope(row([1, 0]), { offset: 2 }), k, f64([1, 1, 3, 1], [1, 2, 4]), { scale: 1 });
  assertClose(output.data, [2.937694], 1e-6);
});

test("angles are taken in doubles (AnglePrecision)", () => {
  const x = f32([1, 1, 1, 32], new Float32Array(32));
  const { cos } = ropeSteps(x, { offset: 1857 });
  assertClose([cos.data[1]!], [0.306693], 1e-6);
});

test("channels beyond rotaryDim pass through; positions by token; scores depend on the distance only", () => {
  const random = new Random(50);
  const x = random.tensor("float64", [2, 3, 4, 6]);
  const turned = rope(x, { rotaryDim: 4, offset: 3 });
  for (let at = 0; at < 24; at++) {
    assert.deepEqual(turned.data.slice(at * 6 + 4, at * 6 + 6), x.data.slice(at * 6 + 4, at * 6 + 6));
  }
  const positions = int64([2, 4], [0, 1, 2, 3, 9, 7, 9, -2]);
  const { output, cos } = ropeSteps(x, { positions });
  assert.deepEqual([output.shape, cos.shape], [x.shape, [2, 4, 3]]);
  const second = { data: x.data.subarray(72 + 6, 72 + 12), shape: [1, 1, 1, 6] }; // row 1, head 0, token 1
  assertClose(output.data.subarray(72 + 6, 72 + 12), rope(second, { offset: 7 }).data, 0);
  const weigh = (offset: number) => sdpa(rope(x, { offset }), rope(x, { offset: offset + 5 }), x);
  assertClose(weigh(0).data, weigh(11).data, 1e-12);
});

test("tables take the place of the angles", () => {
  const random = new Random(51);
  const x = random.tensor("float64", [2, 2, 3, 4]);
  const { cos, sin, output } = ropeSteps(x, { base: 100 });
  const table = (t: Tensor<Float64Array>) => f64([3, 2], t.data.subarray(0, 6));
  assertSame(rope(x, { cos: table(cos), sin: table(sin) }), output);
  const [c, s] = [table(cos), table(sin)];
  const swapped = rope(x, { cos: c, sin: s, positions: int64([2, 3], [2, 2, 2, 0, 0, 0]) });
  assertClose(swapped.data.subarray(24), x.data.subarray(24), 0); // position 0 turns nothing
  assertFails(() => rope(x, { cos: c, sin: s, offset: 1 }), "invalid_config");
  assertFails(() => rope(x, { cos: c, sin: s, base: 100 }), "invalid_config");
  assertFails(() => rope(x, { cos: c, sin: s, scaling: { type: "linear", factor: 2 } }), "invalid_config");
  assertFails(() => rope(x, { cos: c }), "invalid_config");
  assertFails(() => rope(x, { cos: c, sin: f64([3, 1], [0, 0, 0]) }), "shape_mismatch");
  assertFails(() => rope(x, { cos: f32([3, 2], c.data) as never, sin: s }), "dtype_mismatch");
});

test("each scaling by hand", () => {
  const frequencies = (scaling: RopeScaling, length: number, R: number = 4) =>
    scaledFrequencies(frequenciesOf(10000, R), scaling, 10000, length);
  assertClose(frequencies({ type: "linear", factor: 4 }, 9).frequencies, [0.25, 0.0025], 1e-15);
  const dynamic = { type: "dynamic", factor: 2, originalLength: 8 } as const;
  assertClose(frequencies(dynamic, 8).frequencies, [1, 0.01], 1e-15);
  assertClose(frequencies(dynamic, 16).frequencies, [1, 1 / Math.sqrt(10000 * 9)], 1e-15); // (4 - 1)^2
  assertClose(frequencies({ ...dynamic, length: 16 }, 3).frequencies, [1, 1 / 300], 1e-15);
  assertClose(frequencies(dynamic, 16, 2).frequencies, [1], 0);
  const yarn = { type: "yarn", factor: 4, originalLength: 4096 } as const;
  const stretched = frequencies(yarn, 1, 128);
  assert.equal(stretched.frequencies[0], 1); // turns often: stays
  assertClose([stretched.frequencies[63]! * 4], [10000 ** (-126 / 128)], 1e-18); // hardly turns: all of it
  assertClose([stretched.attentionFactor], [0.1 * Math.log(4) + 1], 1e-15);
  assert.equal(frequencies({ ...yarn, attentionFactor: 2 }, 1).attentionFactor, 2);
  assert.equal(frequencies({ ...yarn, factor: 0.5 }, 1).attentionFactor, 1);
  const llama = { type: "llama3", factor: 8, originalLength: 8192 } as const;
  const { frequencies: f } = scaledFrequencies(frequenciesOf(500000, 128), llama, 500000, 1);
  const before = Array.from({ length: 64 }, (_, i) => 500000 ** (-i / 64));
  assert.equal(f[0], 1);
  assertClose([f[63]!], [before[63]! / 8], 1e-20);
  f.forEach((f_i, i) => {
    assert.ok(f_i <= before[i]! && f_i >= before[i]! / 8 && (i === 0 || f_i < f[i - 1]!));
  });
  const long = { type: "longrope", shortFactor: [1, 2], longFactor: [4, 5], originalLength: 16 } as const;
  assertClose(frequencies(long, 16).frequencies, [1, 0.005], 1e-15);
  assertClose(frequencies(long, 17).frequencies, [0.25, 0.002], 1e-15);
  assertClose([frequencies({ ...long, factor: 4 }, 1).attentionFactor], [Math.sqrt(1.5)], 1e-15);
  assert.equal(frequencies(long, 1).attentionFactor, 1);
});

test("a scaling by length looks at the row alone, and its factor is on cosine and sine", () => {
  const x = new Random(52).tensor("float64", [2, 1, 2, 4]);
  const scaling = { type: "dynamic", factor: 2, originalLength: 8 } as const;
  const positions = int64([2, 2], [0, 1, 0, 30]);
  const { output } = ropeSteps(x, { scaling, positions });
  const alone = rope({ data: x.data.subarray(0, 8), shape: [1, 1, 2, 4] });
  assertClose(output.data.subarray(0, 8), alone.data, 0);
  const yarn = { type: "yarn", factor: 4, originalLength: 8 } as const;
  const { cos, sin } = ropeSteps(x, { scaling: yarn });
  assertClose([cos.data[0]! ** 2 + sin.data[0]! ** 2], [(0.1 * Math.log(4) + 1) ** 2], 1e-12);
});

test("sinusoidal: a sine and a cosine for each pair, in turns or in halves", () => {
  const x = f64([1, 2, 4], [0, 0, 0, 0, 1, 1, 1, 1]);
  const table = [0, 1, 0, 1, Math.sin(1), Math.cos(1), Math.sin(0.01), Math.cos(0.01)];
  const got = sinusoidalSteps(x);
  assertClose(got.table.data, table, 1e-15);
  assertClose(
    got.output.data,
    table.map((value, n) => value + x.data[n]!),
    1e-15,
  );
  const halves = sinusoidalSteps(x, { halves: true, positions: int64([1, 2], [1, 0]), base: 10000 });
  assertClose(halves.table.data, [table[4]!, table[6]!, table[5]!, table[7]!, 0, 0, 1, 1], 1e-15);
  assert.deepEqual(sinusoidalSteps(f64([1, 0, 2], [])).table.shape, [1, 0, 2]);
});

test("ALiBi slopes, also for head counts that are no power of two (AlibiSlopes)", () => {
  assertClose(alibiSlopes(1), [2 ** -8], 0);
  assertClose(alibiSlopes(4), [2 ** -2, 2 ** -4, 2 ** -6, 2 ** -8], 0);
  assertClose(alibiSlopes(3), [2 ** -4, 2 ** -8, 2 ** -2], 0);
  assertClose(alibiSlopes(6), [2 ** -2, 2 ** -4, 2 ** -6, 2 ** -8, 2 ** -1, 2 ** -3], 0);
  assert.deepEqual(alibiSlopes(0), []);
  const { output, bias } = alibiSteps(f64([2, 1, 1, 3], [0, 0, -Infinity, 1, 1, 1]), 1);
  assertClose(
    bias.data.map((x) => x * 256),
    [-1, 0, -1].map((x) => x + 0),
    0.0001,
  );
  assert.deepEqual([output.data[2], output.data[3]], [-Infinity, 1 - 1 / 256]);
});

test("buckets of T5", () => {
  const table = f64([32, 1], new Float64Array(32));
  const bucketsAt = (distance: number, bidirectional: boolean) => {
    const scores = f64([1, 1, 1, 1], [0]);
    return Number(relativeBiasSteps(scores, table, { qOffset: -distance, bidirectional }).buckets.data[0]);
  };
  const far = [0, 1, 7, 8, 11, 12, 16, 23, 64, 90, 91, 127, 128, 1000];
  assert.deepEqual(
    far.map((d) => bucketsAt(-d, true)),
    [0, 1, 7, 8, 8, 9, 10, 11, 14, 14, 15, 15, 15, 15],
  );
  assert.deepEqual(
    [1, 8, 1000].map((d) => bucketsAt(d, true)),
    [17, 24, 31],
  );
  assert.deepEqual(
    [5, 0, -15, -16, -128].map((d) => bucketsAt(d, false)),
    [0, 0, 15, 16, 31],
  );
});

test("relative bias adds the row of the bucket to every head", () => {
  const random = new Random(53);
  const [scores, table] = [random.tensor("float64", [2, 3, 4, 5]), random.tensor("float64", [8, 3])];
  const { output, buckets } = relativeBiasSteps(scores, table, { qOffset: 1, maxDistance: 20 });
  output.data.forEach((y, at) => {
    const h = Math.floor(at / 20) % 3;
    assert.equal(y, scores.data[at]! + table.data[Number(buckets.data[at % 20]) * 3 + h]!);
  });
});

test("bad calls", () => {
  const x = f64([1, 1, 2, 4], [1, 2, 3, 4, 5, 6, 7, 8]);
  const odd = f64([1, 1, 1, 3], [1, 2, 3]);
  const fails = (code: string, ...calls: (() => unknown)[]) => {
    for (const call of calls) assertFails(call, code);
  };
  fails(
    "shape_mismatch",
    () => rope(odd),
    () => rope(f64([1, 2], [1, 2])),
  );
  assert.doesNotThrow(() => rope(odd, { rotaryDim: 2 }));
  fails("shape_mismatch", () => rope(x, { positions: int64([2], [0, 1]) }));
  fails("dtype_mismatch", () => rope(x, { positions: f64([1, 2], [0, 1]) as never }));
  for (const options of [
    ...[{ base: 0 }, { base: "x" }, { interleaved: 1 }, { rotaryDim: 3 }, { rotaryDim: 6 }, { rotaryDim: 0 }],
    ...[{ offset: 0.5 }, { offset: 1, positions: int64([1, 2], [0, 1]) }, { scaling: 2 }, { scaling: {} }],
    ...[
      { scaling: { type: "ntk" } },
      { scaling: { type: "linear" } },
      { scaling: { type: "linear", factor: 0 } },
    ],
    ...[
      { scaling: { type: "dynamic", factor: 2 } },
      { scaling: { type: "yarn", factor: NaN, originalLength: 8 } },
    ],
    { scaling: { type: "yarn", factor: 2, originalLength: 8, truncate: 1 } },
    { scaling: { type: "llama3", factor: 2, originalLength: 8, lowFreqFactor: 4 } },
    { scaling: { type: "longrope", shortFactor: [1], longFactor: [1, 1], originalLength: 8 } },
    { scaling: { type: "longrope", shortFactor: [1, 0], longFactor: [1, 1], originalLength: 8 } },
  ]) {
    fails("invalid_config", () => rope(x, options as never));
  }
  fails("shape_mismatch", () => sinusoidalSteps(f64([1, 1, 3], [1, 2, 3])));
  fails("invalid_config", () => sinusoidalSteps(f64([1, 1, 2], [1, 2]), { halves: 1 as never }));
  fails("invalid_config", () => alibiSteps(x, 0.5));
  fails("shape_mismatch", () => alibiSteps(f64([1], [1])));
  const buckets = (rows: number) => f64([rows, 1], new Float64Array(rows));
  fails(
    "shape_mismatch",
    () => relativeBiasSteps(x, buckets(5)),
    () => relativeBiasSteps(x, buckets(2)),
  );
  fails("shape_mismatch", () => relativeBiasSteps(x, buckets(1), { bidirectional: false }));
  fails("invalid_config", () => relativeBiasSteps(x, buckets(8), { maxDistance: 2 }));
  fails("invalid_config", () => relativeBiasSteps(x, buckets(1024)));
});
