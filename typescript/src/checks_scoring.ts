/** What attention without heads must satisfy: scoring and structured. */

import {
  type AnyTensor,
  ensure,
  requireFloats,
  requireLengths,
  requireOneOf,
  requireRank,
  requireShape,
  requireSize,
} from "./checks.ts";
import { InvalidConfig, ShapeMismatch } from "./errors.ts";
import type { ScoringOptions } from "./scoring.ts";
import type { Lengths } from "./tensor.ts";
import { sizes3 } from "./tensor.ts";

/** The weights of each form. */
const WEIGHTS: Readonly<Record<string, readonly string[]>> = {
  additive: ["wQ", "wK", "wV"],
  dot: [],
  general: ["w"],
  scaled: [],
};

/** q (B, Tq, Dq), k (B, Tk, Dk), v (B, Tk, Dv) and what the form needs, no more. */
export function checkScoring(
  fn: string,
  form: string,
  q: AnyTensor,
  k: AnyTensor,
  v: AnyTensor,
  options: ScoringOptions,
): void {
  const { wQ, wK, wV, w, kvLengths } = options;
  requireOneOf(fn, "form", form, Object.keys(WEIGHTS));
  for (const [name, weight] of Object.entries({ wQ, wK, wV, w })) {
    const [due, given] = [WEIGHTS[form]!.includes(name), weight != null];
    const [expected, got] = [due, given].map((there) => (there ? "a tensor" : "nothing")) as [string, string];
    ensure(due === given, InvalidConfig, fn, name, `${expected} for the form ${form}`, got);
  }
  requireFloats(fn, { q, k, v });
  requireRank(fn, "q", q, 3, "(B, Tq, Dq)");
  requireRank(fn, "k", k, 3, "(B, Tk, Dk)");
  requireRank(fn, "v", v, 3, "(B, Tk, Dv)");
  const [B, , Dq] = sizes3(q);
  const [kB, Tk, Dk] = sizes3(k);
  ensure(Dq >= 1, ShapeMismatch, fn, "q", "a size of at least 1", Dq);
  ensure(Dk >= 1, ShapeMismatch, fn, "k", "a size of at least 1", Dk);
  requireSize(fn, "k", "batch", kB, B, "q");
  requireSize(fn, "v", "batch", v.shape[0]!, B, "q");
  requireSize(fn, "v", "length", v.shape[1]!, Tk, "k");
  if (form === "additive") {
    requireFloats(fn, { q, wQ, wK, wV });
    requireRank(fn, "wQ", wQ!, 2, "(A, Dq)");
    const A = wQ!.shape[0]!;
    requireShape(fn, "wQ", wQ!, [A, Dq]);
    requireShape(fn, "wK", wK!, [A, Dk]);
    requireShape(fn, "wV", wV!, [A]);
  } else if (form === "general") {
    requireFloats(fn, { q, w });
    requireShape(fn, "w", w!, [Dq, Dk]);
  } else {
    requireSize(fn, "k", "size", Dk, Dq, "q");
  }
  if (kvLengths != null) requireLengths(fn, "kvLengths", kvLengths, B, 0, Tk);
}

/** h (B, T, C) with w1 (A, C) and w2 (R, A). */
export function checkStructured(
  fn: string,
  h: AnyTensor,
  w1: AnyTensor,
  w2: AnyTensor,
  kvLengths: Lengths | null,
): void {
  requireFloats(fn, { h, w1, w2 });
  requireRank(fn, "h", h, 3, "(B, T, C)");
  requireRank(fn, "w1", w1, 2, "(A, C)");
  requireRank(fn, "w2", w2, 2, "(R, A)");
  const [B, T, C] = sizes3(h);
  requireShape(fn, "w1", w1, [w1.shape[0]!, C]);
  requireShape(fn, "w2", w2, [w2.shape[0]!, w1.shape[0]!]);
  if (kvLengths !== null) requireLengths(fn, "kvLengths", kvLengths, B, 0, T);
}
