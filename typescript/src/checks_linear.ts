/** What attention with a state in the place of the softmax must satisfy. */

import {
  type AnyTensor,
  ensure,
  requireBoolean,
  requireDtype,
  requireFinite,
  requireOneOf,
  requireShape,
  requireSize,
  show,
} from "./checks.ts";
import { checkHeads } from "./checks_attention.ts";
import { InvalidConfig, ShapeMismatch } from "./errors.ts";
import type { GatedLinearOptions } from "./gated_linear.ts";
import type { LinearAttentionOptions } from "./linear_attention.ts";
import { dtypeOf, sizes4 } from "./tensor.ts";

export function checkLinearAttention(
  fn: string,
  q: AnyTensor,
  k: AnyTensor,
  v: AnyTensor,
  { causal, past }: LinearAttentionOptions,
): void {
  checkHeads(fn, q, k, v);
  const [B, , Tq, D] = sizes4(q);
  const [, Hkv, Tk, Dv] = sizes4(v);
  if (causal != null) requireBoolean(fn, "causal", causal);
  if (causal) requireSize(fn, "k", "length", Tk, Tq, "q, since it is causal");
  if (past == null) return;
  const { state, norm } = past;
  ensure(state != null, InvalidConfig, fn, "state", "a tensor beside norm", "nothing");
  ensure(norm != null, InvalidConfig, fn, "norm", "a tensor beside state", "nothing");
  requireDtype(fn, "state", state, dtypeOf(q));
  requireDtype(fn, "norm", norm, dtypeOf(q));
  requireShape(fn, "state", state, [B, Hkv, D, Dv]);
  requireShape(fn, "norm", norm, [B, Hkv, D]);
}

/** Which of decay and beta each rule takes. */
const TAKES: Readonly<Record<string, { decay: boolean; beta: boolean }>> = {
  linear: { decay: false, beta: false },
  gated: { decay: true, beta: false },
  delta: { decay: false, beta: true },
  gated_delta: { decay: true, beta: true },
};

export function checkGatedLinear(
  fn: string,
  q: AnyTensor,
  k: AnyTensor,
  v: AnyTensor,
  options: GatedLinearOptions,
): void {
  const { past, decay, beta, scale } = options;
  const rule = options.rule ?? "linear";
  requireOneOf(fn, "rule", rule, Object.keys(TAKES));
  checkHeads(fn, q, k, v);
  const [B, , T, D] = sizes4(q);
  const [, Hkv, kT, Dv] = sizes4(v);
  requireSize(fn, "k", "length", kT, T, "q");
  if (scale != null) requireFinite(fn, "scale", scale);
  for (const [name, x] of Object.entries({ decay, beta })) {
    const taken = TAKES[rule]![name as "decay" | "beta"];
    const expected = taken ? `a tensor for the rule ${rule}` : `nothing for the rule ${rule}`;
    ensure(taken === (x != null), InvalidConfig, fn, name, expected, x == null ? "nothing" : "a tensor");
  }
  const dtype = dtypeOf(q);
  requireEither(fn, "decay", decay, dtype, [B, Hkv, T, D], [B, Hkv, T, 1]);
  requireEither(fn, "beta", beta, dtype, [B, Hkv, T, 1], [B, 1, T, 1]);
  if (past == null) return;
  requireDtype(fn, "state", past, dtype);
  requireShape(fn, "state", past, [B, Hkv, D, Dv]);
}

function requireEither(
  fn: string,
  argument: string,
  x: AnyTensor | null | undefined,
  dtype: string,
  ...shapes: number[][]
): void {
  if (x == null) return;
  requireDtype(fn, argument, x, dtype);
  const good = shapes.some((shape) => show(shape) === show(x.shape));
  ensure(good, ShapeMismatch, fn, argument, `shape ${shapes.map(show).join(" or ")}`, x.shape);
}
