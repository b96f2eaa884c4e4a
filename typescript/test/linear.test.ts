/** Attention with a state: three ways to the same result, and the gated rules. */

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  type GatedRule,
  gatedLinear,
  linearAttention,
  linearChunked,
  linearRecurrent,
  type Tensor,
} from "../src/index.ts";
import { as, assertClose, assertFails, f32, f64, positions, Random } from "./helpers.ts";

type Doubles = Tensor<Float64Array>;

test("by hand: features 1 and 3", () => {
  const q = f64([1, 1, 1, 1], [0]);
  const { output, state, norm } = linearAttention(q, f64([1, 1, 2, 1], [0, 2]), f64([1, 1, 2, 1], [8, 4]));
  assert.deepEqual([output.data[0], state.data[0], norm.data[0]], [5, 20, 4]);
});

test("parallel, recurrent and chunked agree, with groups, a past and any chunk", () => {
  const random = new Random(70);
  const draw = (...shape: number[]) => random.tensor("float64", shape);
  for (const [Tq, Tk, causal] of [
    ...[
      [7, 7, true],
      [7, 7, false],
      [0, 0, true],
      [1, 1, true],
      [3, 5, false],
      [0, 4, false],
      [4, 0, false],
    ],
  ] as [number, number, boolean][]) {
    for (const past of [
      null,
      { state: draw(2, 2, 3, 5), norm: as("float64", [2, 2, 3], new Array(12).fill(9)) },
    ]) {
      const [q, k, v] = [draw(2, 4, Tq, 3), draw(2, 2, Tk, 3), draw(2, 2, Tk, 5)];
      const expected = linearAttention(q, k, v, { causal, past });
      const others = [
        linearRecurrent(q, k, v, { causal, past }),
        ...[1, 2, 3, 64].map((chunk) => linearChunked(q, k, v, { causal, past, chunk })),
      ];
      for (const other of others) {
        assertClose(other.output.data, expected.output.data, 1e-12);
        assertClose(other.state.data, expected.state.data, 1e-12);
        assertClose(other.norm.data, expected.norm.data, 1e-12);
        assert.deepEqual(other.output.shape, [2, 4, Tq, 5]);
      }
    }
  }
});

test("a sequence in two pieces is the whole, by the state", () => {
  const random = new Random(71);
  const [q, k, v] = [1, 2, 3].map(() => random.tensor("float64", [1, 2, 6, 3])) as [
    Doubles,
    Doubles,
    Doubles,
  ];
  for (const attend of [linearAttention, linearRecurrent, linearChunked] as (typeof linearAttention)[]) {
    const whole = attend(q, k, v, { causal: true });
    const cut = (from: number, to: number) =>
      [q, k, v].map((x) => positions(x, from, to)) as [Doubles, Doubles, Doubles];
    const first = attend(...cut(0, 4), { causal: true });
    const second = attend(...cut(4, 6), { causal: true, past: first });
    assertClose(first.output.data, positions(whole.output, 0, 4).data, 1e-12);
    assertClose(second.output.data, positions(whole.output, 4, 6).data, 1e-12);
    assertClose(second.state.data, whole.state.data, 1e-12);
  }
});

test("what is not visible is not read; a denominator of 0 gives 0", () => {
  const q = f64([1, 1, 2, 1], [1, 1]);
  const k = f64([1, 1, 2, 1], [0, NaN]);
  for (const attend of [linearAttention, linearRecurrent, linearChunked] as (typeof linearAttention)[]) {
    const { output } = attend(q, k, f64([1, 1, 2, 1], [5, NaN]), { causal: true });
    assertClose(output.data, [5, NaN], 0);
    const far = f64([1, 1, 1, 1], [-1e4]); // a feature that is 0
    assert.equal(attend(far, far, f64([1, 1, 1, 1], [3])).output.data[0], 0);
    const none = f64([1, 1, 0, 1], []);
    assert.deepEqual([...attend(q, none, none).output.data], [0, 0]);
  }
});

/** The rules token by token, with matrices as lists. */
function slowly(
  q: Doubles,
  k: Doubles,
  v: Doubles,
  decay: ((t: number, c: number) => number) | null,
  beta: ((t: number) => number) | null,
): { output: number[]; state: number[][] } {
  const [T, D, Dv] = [q.shape[2]!, q.shape[3]!, v.shape[3]!];
  let S = Array.from({ length: D }, () => new Array<number>(Dv).fill(0));
  const output: number[] = [];
  for (let t = 0; t < T; t++) {
    if (decay !== null) S = S.map((row, c) => row.map((s) => s * Math.exp(decay(t, c))));
    const held = (n: number) => S.reduce((sum, row, c) => sum + row[n]! * k.data[t * D + c]!, 0);
    const u = Array.from({ length: Dv }, (_, n) => {
      const value = v.data[t * Dv + n]!;
      return beta === null ? value : beta(t) * (value - held(n));
    });
    S = S.map((row, c) => row.map((s, n) => s + k.data[t * D + c]! * u[n]!));
    for (let n = 0; n < Dv; n++) {
      output.push(S.reduce((sum, row, c) => sum + (row[n]! * q.data[t * D + c]!) / Math.sqrt(D), 0));
    }
  }
  return { output, state: S };
}

test("each gated rule against the recurrence written out", () => {
  const random = new Random(72);
  const draw = (...shape: number[]) => random.tensor("float64", shape);
  const [q, k, v] = [draw(1, 1, 5, 3), draw(1, 1, 5, 3), draw(1, 1, 5, 2)];
  const [decay, beta] = [draw(1, 1, 5, 3), draw(1, 1, 5, 1)];
  const one = draw(1, 1, 5, 1);
  const cases: [GatedRule, Doubles | null, Doubles | null][] = [
    ["linear", null, null],
    ["gated", decay, null],
    ["gated", one, null],
    ["delta", null, beta],
    ["gated_delta", decay, beta],
    ["gated_delta", one, beta],
  ];
  for (const [rule, gate, strength] of cases) {
    const n = gate?.shape[3] ?? 1;
    const expected = slowly(
      ...([q, k, v] as const),
      gate && ((t, c) => gate.data[t * n + (n === 1 ? 0 : c)]!),
      strength && ((t) => strength.data[t]!),
    );
    const { output, state } = gatedLinear(q, k, v, { rule, decay: gate, beta: strength });
    assertClose(output.data, expected.output, 1e-12);
    assertClose(state.data, expected.state.flat(), 1e-12);
  }
});

test("groups, a past, a scale, and a beta for all heads", () => {
  const random = new Random(73);
  const draw = (...shape: number[]) => random.tensor("float64", shape);
  const [q, k, v] = [draw(2, 4, 5, 3), draw(2, 2, 5, 3), draw(2, 2, 5, 2)];
  const [decay, beta] = [draw(2, 2, 5, 3), draw(2, 1, 5, 1)];
  const rule = "gated_delta";
  const whole = gatedLinear(q, k, v, { rule, decay, beta, scale: 2 });
  const each = {
    data: Float64Array.from({ length: 20 }, (_, at) => beta.data[Math.floor(at / 10) * 5 + (at % 5)]!),
  };
  const spread = gatedLinear(q, k, v, { rule, decay, beta: { ...each, shape: [2, 2, 5, 1] }, scale: 2 });
  assert.deepEqual(spread, whole);
  const cut = (x: Doubles, from: number, to: number) => positions(x, from, to);
  const piece = (from: number, to: number, past: Doubles | null) =>
    gatedLinear(cut(q, from, to), cut(k, from, to), cut(v, from, to), {
      ...{ rule, past, scale: 2, decay: cut(decay, from, to), beta: cut(beta, from, to) },
    });
  const first = piece(0, 2, null);
  const second = piece(2, 5, first.state);
  assertClose(second.output.data, cut(whole.output, 2, 5).data, 1e-12);
  assertClose(second.state.data, whole.state.data, 1e-12);
  const empty = piece(0, 0, first.state);
  assert.deepEqual(empty.state, first.state);
});

test("the delta rule with beta 1 and unit keys replaces what stood under a key", () => {
  const k = f64([1, 1, 3, 2], [1, 0, 0, 1, 1, 0]);
  const v = f64([1, 1, 3, 1], [5, 7, 11]);
  const beta = f64([1, 1, 3, 1], [1, 1, 1]);
  const { state } = gatedLinear(k, k, v, { rule: "delta", beta });
  assert.deepEqual([...state.data], [11, 7]);
});

test("bad calls", () => {
  const x = f64([1, 1, 2, 2], [1, 2, 3, 4]);
  const [state, norm] = [f64([1, 1, 2, 2], [0, 0, 0, 0]), f64([1, 1, 2], [0, 0])];
  const short = f64([1, 1, 1, 2], [1, 2]);
  for (const attend of [linearAttention, linearRecurrent, linearChunked] as (typeof linearAttention)[]) {
    assertFails(() => attend(x, short, short, { causal: true }), "shape_mismatch");
    assert.doesNotThrow(() => attend(x, short, short));
    assertFails(() => attend(x, x, x, { causal: 1 as never }), "invalid_config");
    assertFails(() => attend(x, x, x, { past: { state } as never }), "invalid_config");
    assertFails(() => attend(x, x, x, { past: { state: norm, norm } }), "shape_mismatch");
    assertFails(
      () => attend(x, x, x, { past: { state, norm: f32([1, 1, 2], [0, 0]) as never } }),
      "dtype_mismatch",
    );
  }
  assertFails(() => linearChunked(x, x, x, { chunk: 0 }), "invalid_config");
  const [decay, beta] = [f64([1, 1, 2, 1], [0, 0]), f64([1, 1, 2, 1], [1, 1])];
  for (const options of [
    ...[
      { rule: "mamba" },
      { decay },
      { beta },
      { rule: "gated" },
      { rule: "delta" },
      { rule: "gated", decay, beta },
    ],
    ...[{ rule: "gated_delta", beta }, { rule: "delta", beta, decay }, { scale: NaN }],
  ]) {
    assertFails(() => gatedLinear(x, x, x, options as never), "invalid_config");
  }
  assertFails(() => gatedLinear(x, x, x, { rule: "gated", decay: norm }), "shape_mismatch");
  assertFails(() => gatedLinear(x, short, short), "shape_mismatch");
  assertFails(() => gatedLinear(x, x, x, { past: norm }), "shape_mismatch");
});
