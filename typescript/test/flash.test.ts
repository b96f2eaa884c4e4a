/** Attention in another order: by tiles, by parts of the keys, merged, and without padding. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { flash, merge, type SdpaOptions, sdpaSteps, splitKv, type Tensor, varlen } from "../src/index.ts";
import { as, assertClose, assertFails, assertSame, bool, f32, f64, int64, Random } from "./helpers.ts";

/** Output and lse as sdpa has them, by both rungs, with tiles and parts of several sizes. */
function agree(
  q: Tensor<Float64Array>,
  k: Tensor<Float64Array>,
  v: Tensor<Float64Array>,
  options: SdpaOptions<Float64Array>,
): void {
  const expected = sdpaSteps(q, k, v, options);
  const results = [
    ...[{}, { blockQ: 1, blockK: 1 }, { blockQ: 2, blockK: 3 }, { blockQ: 64, blockK: 2 }].map((blocks) =>
      flash(q, k, v, { ...options, ...blocks }),
    ),
    ...[1, 2, 4, 9].map((splits) => splitKv(q, k, v, { ...options, splits })),
  ];
  for (const { output, lse } of results) {
    assert.deepEqual([output.shape, lse.shape], [expected.output.shape, expected.lse.shape]);
    assertClose(output.data, expected.output.data, 1e-12);
    assertClose(lse.data, expected.lse.data, 1e-12);
  }
}

test("flash and split are sdpa, whatever the options", () => {
  const random = new Random(60);
  for (let round = 0; round < 40; round++) {
    const [B, Hkv, G] = [random.integer(0, 2), random.integer(1, 2), random.integer(1, 3)];
    const [Tq, Tk, D, Dv] = [
      random.integer(0, 5),
      random.integer(0, 9),
      random.integer(1, 4),
      random.integer(0, 3),
    ];
    const draw = (shape: number[]) => random.tensor("float64", shape);
    const maybe = <T>(value: T): T | null => (random.next() < 0.4 ? value : null);
    agree(draw([B, Hkv * G, Tq, D]), draw([B, Hkv, Tk, D]), draw([B, Hkv, Tk, Dv]), {
      mask: {
        causal: random.next() < 0.4,
        window: maybe([random.integer(0, 3), null] as const),
        kvLengths: maybe(Array.from({ length: B }, () => random.integer(0, Tk))),
        qOffset: maybe(random.integer(-3, 6)),
        keep: maybe(random.mask([Tq, Tk])),
      },
      bias: maybe(draw([Tq, 1])),
      scale: maybe(0),
      softcap: maybe(1.5),
      sinks: maybe(draw([Hkv * G])),
      dropout: maybe({ p: 0.5, seed: round }),
    });
  }
});

test("NaN, infinities, rows without keys, and sinks that are no numbers", () => {
  const random = new Random(61);
  const [q, k, v] = [1, 2, 3].map(() => random.tensor("float64", [1, 2, 6, 2])) as [never, never, never];
  for (const poison of [NaN, Infinity, -Infinity]) {
    const spoiled = f64([1, 2, 6, 2], (k as Tensor<Float64Array>).data);
    spoiled.data[4] = poison;
    agree(q, spoiled, v, {});
    agree(q, spoiled, v, { mask: { causal: true } });
    agree(q, k, spoiled, { mask: { keep: bool([6], [1, 1, 0, 1, 1, 1]) } }); // hidden in head 0
    agree(q, k, v, { sinks: f64([2], [poison, 0]), mask: { causal: true, qOffset: -2 } });
  }
});

test("large and very negative scores (Overflow)", () => {
  const q = f64([1, 1, 1, 1], [1]);
  const v = f64([1, 1, 2, 1], [3, 6]);
  for (const base of [-1e5, 1e5]) {
    const k = f64([1, 1, 2, 1], [base, base + Math.LN2]);
    assertClose(flash(q, k, v, { scale: 1, blockK: 1 }).output.data, [5], 1e-10);
    assertClose(splitKv(q, k, v, { scale: 1 }).output.data, [5], 1e-10);
  }
});

test("merging with natural logarithms (LseNatural)", () => {
  const state = (output: number, lse: number) => [f64([1], [output]), f64([], [lse])] as const;
  const { output, lse } = merge(...state(0, 0), ...state(4, Math.log(3)));
  assertClose(output.data, [3], 1e-15);
  assertClose(lse.data, [Math.log(4)], 1e-15);
});

test("an empty state changes no bit of the other, and is not read", () => {
  const [empty, none] = [f32([3, 1], [NaN, Infinity, 7]), f32([3], [-Infinity, -Infinity, -Infinity])];
  const [output, lse] = [f32([3, 1], [0.1, -0, NaN]), f32([3], [0.3, -1e30, 5])];
  for (const merged of [merge(empty, none, output, lse), merge(output, lse, empty, none)]) {
    assertSame(merged.output, output);
    assertSame(merged.lse, lse);
  }
  const two = merge(empty, none, empty, none);
  assertSame(two.output, f32([3, 1], [0, 0, 0]));
  assertSame(two.lse, none);
});

test("NaN or +inf in an lse makes its row NaN", () => {
  for (const bad of [NaN, Infinity]) {
    for (const other of [-Infinity, 0, Infinity]) {
      const one = f64([1, 2], [1, 2]);
      const merged = merge(one, f64([1], [bad]), one, f64([1], [other]));
      assertClose([...merged.output.data, ...merged.lse.data], [NaN, NaN, NaN]);
    }
  }
});

test("half outputs have an lse in float32", () => {
  const half = as("bfloat16", [1, 1], [2]);
  const { output, lse } = merge(half, f32([1], [0]), half, f32([1], [0]));
  assert.deepEqual(output, half);
  assert.deepEqual(lse, f32([1], [Math.LN2]));
  assertFails(() => merge(half, as("bfloat16", [1], [0]) as never, half, f32([1], [0])), "dtype_mismatch");
});

test("sequences without padding are each an sdpa of their own", () => {
  const random = new Random(62);
  const [Hq, Hkv, D, Dv] = [4, 2, 3, 2];
  const [ends, kEnds] = [
    [0, 3, 3, 4, 8],
    [0, 2, 5, 5, 10],
  ];
  const draw = (N: number, H: number, n: number) => random.tensor("float64", [N, H, n]);
  const [q, k, v] = [draw(8, Hq, D), draw(10, Hkv, D), draw(10, Hkv, Dv)];
  const options = { causal: true, window: [2, null] as const, softcap: 3, scale: 0.7 };
  const offsets = [-1, 0, 4, 2];
  const { output, lse } = varlen(q, k, v, int64([5], ends!), kEnds!, { ...options, qOffset: offsets });
  assert.deepEqual(
    [output.shape, lse.shape],
    [
      [8, Hq, Dv],
      [8, Hq],
    ],
  );
  /** Rows of one sequence, (1, H, T, n). */
  const cut = (x: Tensor<Float64Array>, from: number, to: number) => {
    const [, H, n] = x.shape as [number, number, number];
    const T = to - from;
    const values = Array.from({ length: H * T * n }, (_, at) => {
      const [h, t, c] = [Math.floor(at / (T * n)), Math.floor(at / n) % T, at % n];
      return x.data[((from + t) * H + h) * n + c]!;
    });
    return f64([1, H, T, n], values);
  };
  for (let s = 0; s < 4; s++) {
    const [from, to, kFrom, kTo] = [ends![s]!, ends![s + 1]!, kEnds![s]!, kEnds![s + 1]!];
    const { scale, softcap, causal, window } = options;
    const mask = { causal, window, qOffset: offsets[s]! };
    const alone = sdpaSteps(cut(q, from, to), cut(k, kFrom, kTo), cut(v, kFrom, kTo), {
      mask,
      scale,
      softcap,
    });
    assertSame(cut(output, from, to), alone.output);
    assertSame(cut({ ...lse, shape: [8, Hq, 1] } as typeof q, from, to), {
      ...alone.lse,
      shape: [1, Hq, to - from, 1],
    });
  }
});

test("no sequences, and sequences without anything", () => {
  const none = f64([0, 2, 3], []);
  assert.deepEqual(varlen(none, none, none, [0], [0]).output.shape, [0, 2, 3]);
  assert.deepEqual(varlen(none, none, none, [0, 0], int64([2], [0, 0])).lse.shape, [0, 2]);
  const q = f64([1, 1, 1], [1]);
  const { output, lse } = varlen(q, f64([0, 1, 1], []), f64([0, 1, 1], []), [0, 1], [0, 0]);
  assert.deepEqual([...output.data, ...lse.data], [0, -Infinity]);
});

test("bad calls", () => {
  const q = f64([1, 1, 1, 1], [1]);
  for (const size of [0, -1, 1.5, "2", Infinity]) {
    assertFails(() => flash(q, q, q, { blockQ: size as number }), "invalid_config");
    assertFails(() => flash(q, q, q, { blockK: size as number }), "invalid_config");
    assertFails(() => splitKv(q, q, q, { splits: size as number }), "invalid_config");
  }
  assertFails(() => flash(q, f64([1, 1, 1, 2], [1, 2]), q), "shape_mismatch", /^flash: k: /);
  assertFails(() => splitKv(q, q, f32([1, 1, 1, 1], [1]) as never), "dtype_mismatch", /^split_kv: v: /);
  const rows = f64([2, 1, 1], [1, 2]);
  for (const cu of [
    [0, 1],
    [1, 2],
    [0, 2, 1, 2],
    [0, 0.5, 2],
    [0, 3],
  ]) {
    assertFails(() => varlen(rows, rows, rows, cu, [0, 2]), "invalid_config");
  }
  assertFails(() => varlen(rows, rows, rows, [0, 1, 2], [0, 2]), "shape_mismatch");
  assertFails(() => varlen(rows, rows, rows, [], []), "shape_mismatch");
  assertFails(() => varlen(rows, rows, rows, f64([2], [0, 2]) as never, [0, 2]), "dtype_mismatch");
  assertFails(() => varlen(rows, rows, rows, [0, 2], [0, 2], { qOffset: [1, 2] }), "shape_mismatch");
  assertFails(() => merge(rows, f64([2], [0, 0]), rows, f64([2, 1], [0, 0])), "shape_mismatch");
});
