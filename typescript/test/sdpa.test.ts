/** Cases that a person can check; the names in brackets are the flags of docs/traps.md. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { type Mask, type SdpaOptions, type SdpaSteps, sdpa, sdpaSteps } from "../src/index.ts";
import { assertClose, bool, f32, f64 } from "./helpers.ts";

type Options = SdpaOptions<Float64Array>;

/** D = 1, scale 1, queries equal to 1: the keys are the scores. */
function scoreForm(
  scores: number[],
  values: number[],
  options: Options = {},
  Tq = 1,
): SdpaSteps<Float64Array> {
  const q = f64([1, 1, Tq, 1], new Array(Tq).fill(1));
  const [k, v] = [scores, values].map((x) => f64([1, 1, x.length, 1], x));
  return sdpaSteps(q, k!, v!, { scale: 1, ...options });
}

/** q = 0: the output is the mean of the values that are kept. */
function uniform(values: number[], Tq: number, mask: Mask, options: Options = {}): number[] {
  const v = f64([1, 1, values.length, 1], values);
  const k = f64(v.shape as number[], values.map(Math.sin));
  return [...sdpa(f64([1, 1, Tq, 1], new Float64Array(Tq)), k, v, { mask, ...options }).data];
}

test("ln 2 against 0 weighs 2/3 against 1/3", () => {
  const { output, weights, lse, scores } = scoreForm([0, Math.LN2], [3, 6]);
  assertClose(output.data, [5], 1e-15);
  assertClose(weights.data, [1 / 3, 2 / 3], 1e-15);
  assertClose(lse.data, [Math.log(3)], 1e-15);
  assertClose(scores.data, [0, Math.LN2], 0);
});

test("a row without a visible key is 0, its lse -inf (FullyMaskedRow)", () => {
  const mask = { keep: bool([2, 2], [1, 1, 0, 0]) };
  const { output, weights, lse } = scoreForm([0, Math.LN2], [3, 6], { mask }, 2);
  assertClose(output.data, [5, 0], 1e-15);
  assertClose(weights.data, [1 / 3, 2 / 3, 0, 0], 1e-15);
  assertClose(lse.data, [Math.log(3), -Infinity], 1e-15);
});

test("causal alignment is stated: top-left without an offset (CausalAlignment)", () => {
  assertClose(uniform([1, 2, 4, 8, 16], 5, { causal: true }), [1, 1.5, 7 / 3, 3.75, 6.2], 1e-14);
  assertClose(uniform([1, 2, 4, 8, 16], 2, { causal: true, qOffset: 3 }), [3.75, 6.2], 1e-14);
  assertClose(uniform([1, 2, 4, 8], 2, { causal: true }), [1, 1.5], 1e-14);
  assertClose(uniform([1, 2, 4, 8], 2, { causal: true, qOffset: 2 }), [7 / 3, 3.75], 1e-14);
  assertClose(uniform([1, 3], 4, { causal: true, qOffset: -2 }), [0, 0, 1, 2], 1e-14);
  assertClose(uniform([1, 3], 4, { causal: true }), [1, 2, 2, 2], 1e-14);
});

test("the window counts keys beside the query, with and without causal (WindowOffByOne)", () => {
  assertClose(uniform([1, 2, 4, 8], 4, { window: [1, 0], causal: true }), [1, 1.5, 3, 6], 1e-14);
  assertClose(uniform([1, 2, 4], 3, { window: [1, 0] }), [1, 1.5, 3], 1e-14);
  assertClose(uniform([1, 2, 4, 8], 4, { window: [0, 0] }), [1, 2, 4, 8], 1e-14);
  assertClose(uniform([1, 2, 4], 3, { window: [3, 0] }), [1, 1.5, 7 / 3], 1e-14);
  assertClose(uniform([1, 2, 4], 3, { causal: true, keep: bool([1, 1, 1, 1], [1]) }), [1, 1.5, 7 / 3], 1e-14);
});

test("true in a mask means attend (MaskPolarity)", () => {
  assertClose(uniform([1, 3], 2, { keep: bool([2, 2], [1, 0, 1, 1]) }), [1, 2], 1e-14);
});

test("the softcap comes before the mask, the scale before the softcap (SoftcapOrder)", () => {
  assertClose(
    scoreForm([1, 3], [5, 100], { softcap: 2, mask: { keep: bool([2], [1, 0]) } }).output.data,
    [5],
    0,
  );
  const { output, scores, capped } = scoreForm([8, 0], [3, 6], { scale: 0.5, softcap: 2 });
  assertClose(scores.data, [4, 0], 0);
  assertClose(capped.data, [1.928055, 0], 1e-6);
  assertClose(output.data, [3.380898], 1e-6);
});

test("a bias is added as it is, also 0 and 1, and only -inf hides", () => {
  const bias = (values: number[]) => f64([values.length], values);
  assertClose(uniform([1, 2, 4], 1, {}, { bias: bias([-1, -0.5, 0]) }), [2.826637], 1e-6);
  assertClose(uniform([1, 3], 1, {}, { bias: bias([1, 0]) }), [1.537883], 1e-6);
  assertClose(uniform([1, 3], 1, {}, { bias: bias([-Infinity, 0]) }), [3], 0);
  const finite = scoreForm([0, 0], [3, 6], { bias: bias([-1e30, -1e30]) });
  assertClose(finite.output.data, [4.5], 1e-14);
  const hidden = scoreForm([NaN, Math.LN2, 0], [NaN, 6, 3], { bias: bias([-Infinity, 0, 0]) });
  assertClose(hidden.weights.data, [0, 2 / 3, 1 / 3], 1e-15);
  assertClose(hidden.output.data, [5], 1e-14);
  assertClose(hidden.biased.data, [NaN, Math.LN2, 0], 0);
});

test("consecutive query heads share a KV head (GqaTile)", () => {
  const heads = (Hq: number, values: number[]) =>
    sdpa(f64([1, Hq, 1, 1], new Float64Array(Hq)), f64([1, values.length, 1, 1], values), {
      ...f64([1, values.length, 1, 1], values),
    }).data;
  assertClose(heads(6, [10, 20]), [10, 10, 10, 20, 20, 20], 0);
  assertClose(heads(6, [10, 20, 30]), [10, 10, 20, 20, 30, 30], 0);
});

test("the scale: absent is 1/sqrt(D), 0 is 0; Dv may differ from D (AbsentIsNotZero, ValueDim)", () => {
  const q = f64([1, 1, 1, 4], [1, 1, 1, 1]);
  const k = f64([1, 1, 2, 4], [0, 0, 0, 0, ...new Array(4).fill(Math.LN2 / 2)]);
  const v = f64([1, 1, 2, 3], [3, 0, 1, 6, 3, 1]);
  assert.deepEqual(sdpa(q, k, v).shape, [1, 1, 1, 3]);
  assertClose(sdpa(q, k, v).data, [5, 2, 1], 1e-14);
  assertClose(sdpa(q, k, v, { scale: null }).data, [5, 2, 1], 1e-14);
  assertClose(sdpa(q, k, v, { scale: 0 }).data, [4.5, 1.5, 1], 1e-14);
  assertClose(sdpa(q, k, v, { scale: 1 }).data, [5.4, 2.4, 1], 1e-14);
});

test("huge scores: scaled before they are summed, shifted before exp (Overflow)", () => {
  assertClose(scoreForm([Infinity, 0], [3, 6]).output.data, [NaN], 0);
  assertClose(scoreForm([Infinity, 0], [3, 6]).weights.data, [NaN, NaN], 0);
  assertClose(scoreForm([-1e5, -1e5 + Math.LN2], [3, 6]).output.data, [5], 1e-10);
  const large = f32([1, 1, 1, 64], new Float32Array(64).fill(3e18));
  const k = f32([1, 1, 2, 64], [...large.data, ...new Float32Array(64)]);
  const { output, scores } = sdpaSteps(large, k, f32([1, 1, 2, 1], [3, 6]));
  assertClose(output.data, [3], 0);
  assertClose(scores.data, [7.2e37, 0], 1e31);
  const wide = f64([1, 1, 1, 64], new Float64Array(64).fill(4e153)); // unscaled the sum is 1e309
  const { scores: fits } = sdpaSteps(wide, wide, f64([1, 1, 1, 1], [3]));
  assert.ok(Number.isFinite(fits.data[0]));
  const one = f64([1, 1, 1, 1], [1e160]); // unscaled even one product is 1e320
  assertClose(sdpaSteps(one, one, one, { scale: 1e-160 }).scores.data, [1e160], 1e146);
});

test("NaN and Inf: hidden ones change nothing, visible ones spread", () => {
  const mask = { keep: bool([2, 2], [1, 0, 1, 1]) };
  for (const bad of [NaN, Infinity, -Infinity]) {
    const value = scoreForm([0, 0], [3, bad], { mask }, 2);
    assertClose(value.output.data, [3, bad], 0);
    assertClose(value.weights.data, [1, 0, 0.5, 0.5], 0);
  }
  const key = scoreForm([0, NaN, 0], [3, 6, 9], { mask: { keep: bool([2, 3], [1, 0, 1, 1, 1, 0]) } }, 2);
  assertClose(key.output.data, [6, NaN], 0);
  assertClose(key.weights.data, [0.5, 0, 0.5, NaN, NaN, 0], 0);
  assertClose(key.lse.data, [Math.LN2, NaN], 1e-15);
});

test("a visible weight that underflows to 0 still meets its value: 0 · inf is NaN", () => {
  const { output, weights } = scoreForm([0, -1e4], [3, Infinity]);
  assertClose(weights.data, [1, 0], 0);
  assertClose(output.data, [NaN], 0);
  assertClose(scoreForm([0, -Infinity], [3, Infinity]).output.data, [3], 0); // hidden by its score
});

test("an infinite score that the softcap makes finite is an ordinary score", () => {
  assertClose(scoreForm([Infinity, -Infinity], [3, 6], { softcap: Math.LN2 / 2 }).output.data, [4], 1e-14);
});

test("a sink joins the denominator and the lse, and carries no value", () => {
  const { output, weights, lse } = scoreForm([0, Math.LN2], [3, 6], { sinks: f64([1], [0]) });
  assertClose(weights.data, [1 / 4, 1 / 2], 1e-15);
  assertClose(output.data, [3.75], 1e-15);
  assertClose(lse.data, [Math.log(4)], 1e-15);
  const empty = scoreForm([0], [3], { sinks: f64([1], [0.7]), mask: { keep: bool([1], [0]) } });
  assertClose([...empty.output.data, ...empty.weights.data, ...empty.lse.data], [0, 0, 0.7], 0);
  const large = scoreForm([0], [3], { sinks: f64([1], [1e5]) });
  assertClose([...large.output.data, ...large.lse.data], [0, 1e5], 0);
  assertClose(scoreForm([0], [3], { sinks: f64([1], [-Infinity]) }).output.data, [3], 0);
});

test("the last channel counts at every size", () => {
  for (const D of [1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33]) {
    const q = f64([1, 1, 1, D], new Float64Array(D).fill(1));
    const k = f64([1, 1, 1, D], [...new Array(D - 1).fill(1), 10]);
    assertClose(sdpaSteps(q, k, k, { scale: 1 }).scores.data, [D + 9], 0);
    assertClose(sdpa(q, k, k, { scale: 1 }).data, k.data, 0);
  }
});

test("sizes of 0 have the right shapes", () => {
  const call = (B: number, Tq: number, Tk: number, Dv = 3) =>
    sdpaSteps(
      f32([B, 2, Tq, 4], new Float32Array(B * 2 * Tq * 4)),
      f32([B, 2, Tk, 4], new Float32Array(B * 2 * Tk * 4)),
      f32([B, 2, Tk, Dv], new Float32Array(B * 2 * Tk * Dv)),
    );
  const noKeys = call(1, 2, 0);
  assert.deepEqual(noKeys.output, f32([1, 2, 2, 3], new Float32Array(12)));
  assert.deepEqual(noKeys.weights.shape, [1, 2, 2, 0]);
  assertClose(noKeys.lse.data, new Array(4).fill(-Infinity), 0);
  assert.deepEqual(call(1, 0, 5).output.shape, [1, 2, 0, 3]);
  assert.deepEqual(call(1, 0, 5).lse.shape, [1, 2, 0]);
  assert.deepEqual(call(0, 2, 5).weights.shape, [0, 2, 2, 5]);
  assert.deepEqual(call(1, 2, 5, 0).output.shape, [1, 2, 2, 0]);
  const none = f32([1, 0, 2, 4], []);
  assert.deepEqual(sdpa(none, none, none).shape, [1, 0, 2, 4]);
});

test("lengths per row, one of them 0", () => {
  const v = f64([2, 1, 2, 1], [7, 7, 1, 3]);
  const { output, lse } = sdpaSteps(f64([2, 1, 1, 1], [0, 0]), v, v, { mask: { kvLengths: [0, 2] } });
  assertClose(output.data, [0, 2], 0);
  assertClose(lse.data, [-Infinity, Math.LN2], 1e-15);
});

test("subnormal values stay", () => {
  const v = f32([1, 1, 2, 1], [1e-40, 1e-40]);
  assertClose(sdpa(f32([1, 1, 1, 1], [0]), v, v).data, v.data.subarray(1), 0);
});

test("without softcap and bias the steps before the mask are the scores", () => {
  const { scores, capped, biased } = scoreForm([1, 2], [3, 4], { mask: { keep: bool([2], [0, 1]) } });
  assertClose(scores.data, [1, 2], 0);
  assert.equal(capped, scores);
  assert.equal(biased, scores);
});
