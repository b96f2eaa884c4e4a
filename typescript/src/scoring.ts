/**
 * Attention with other scores than the scaled dot product: the earlier forms, one head.
 *
 *     additive  w_v · tanh(W_q q + W_k k)        dot     q · k
 *     general   (q W) · k                        scaled  (q / sqrt(D)) · k
 *
 * Letters: B batch, Tq and Tk lengths, Dq, Dk and Dv sizes of queries, keys and values, A size of the hidden
 * layer.
 *
 * Sources: Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and Translate", 2014
 * (additive); Luong et al., "Effective Approaches to Attention-based Neural Machine Translation", 2015 (dot,
 * general); Vaswani et al., 2017 (scaled).
 */

import { inFloat32 } from "./cast.ts";
import { checkScoring } from "./checks_scoring.ts";
import { linear } from "./heads.ts";
import { softmaxRow } from "./softmax.ts";
import { type FloatArray, type Lengths, sizes3, type Tensor, toNumbers, zerosLike } from "./tensor.ts";
import { addScaled, dot, transposed } from "./vectors.ts";

export type ScoringForm = "additive" | "dot" | "general" | "scaled";

export interface ScoringOptions<A extends FloatArray = FloatArray> {
  /** (A, Dq), of the additive form */
  readonly wQ?: Tensor<A> | null;
  /** (A, Dk), of the additive form */
  readonly wK?: Tensor<A> | null;
  /** (A,), of the additive form */
  readonly wV?: Tensor<A> | null;
  /** (Dq, Dk), of the general form */
  readonly w?: Tensor<A> | null;
  /** (B,): how many keys of each row exist. Absent: all. */
  readonly kvLengths?: Lengths | null;
}

export interface ScoringSteps<A extends FloatArray = FloatArray> {
  /** (B, Tq, Dv) */
  readonly output: Tensor<A>;
  /** (B, Tq, Tk) */
  readonly weights: Tensor<A>;
  /** (B, Tq, Tk), before the mask */
  readonly scores: Tensor<A>;
}

/**
 * Attention of `q` (B, Tq, Dq) over `k` (B, Tk, Dk) and `v` (B, Tk, Dv): (B, Tq, Dv).
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function scoring<A extends FloatArray>(
  form: ScoringForm,
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  options: ScoringOptions<A> = {},
): Tensor<A> {
  return scoringSteps(form, q, k, v, options).output;
}

/** {@link scoring} with its intermediates; same arguments and errors. */
export function scoringSteps<A extends FloatArray>(
  form: ScoringForm,
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  options: ScoringOptions<A> = {},
): ScoringSteps<A> {
  checkScoring("scoring", form, q, k, v, options);
  return inFloat32(scoringCore<A>, q, k, v, form, options);
}

function scoringCore<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  form: ScoringForm,
  options: ScoringOptions<A>,
): ScoringSteps<A> {
  const [B, Tq] = sizes3(q);
  const [, Tk, Dv] = sizes3(v);
  const lengths = options.kvLengths == null ? null : toNumbers(options.kvLengths); // (B,)
  const scores = zerosLike(q, [B, Tq, Tk]);
  const weights = zerosLike(q, [B, Tq, Tk]);
  const output = zerosLike(q, [B, Tq, Dv]);
  const scoreOf = scorer(form, q, k, options);
  const logits = zerosLike(q, [Tk]).data; // (Tk,), the masked scores of one row
  const sums = new Float64Array(Dv); // (Dv,), the output of one row

  for (let row = 0; row < B * Tq; row++) {
    const b = Math.floor(row / Tq);
    const length = lengths?.[b] ?? Tk;

    // 1. scores: of one query with every key of its row of the batch
    for (let j = 0; j < Tk; j++) scores.data[row * Tk + j] = scoreOf(row, b * Tk + j); // (Tk,)

    // 2. mask: by selection; keys beyond the length do not exist
    for (let j = 0; j < Tk; j++) logits[j] = j < length ? scores.data[row * Tk + j]! : -Infinity; // (Tk,)

    // 3. softmax: over the keys
    const P = weights.data.subarray(row * Tk, (row + 1) * Tk) as A; // (Tk,)
    softmaxRow(logits, P);

    // 4. weighted sum: over the values of the visible keys
    sums.fill(0);
    for (let j = 0; j < Tk; j++) {
      if (logits[j] === -Infinity) continue; // 0 · NaN would be NaN
      addScaled(sums, P[j]!, v.data, (b * Tk + j) * Dv); // (Dv,)
    }
    output.data.set(sums, row * Dv);
  }
  return { output, weights, scores };
}

/** The score of row i of the queries (B·Tq, Dq) and row j of the keys (B·Tk, Dk). */
function scorer<A extends FloatArray>(
  form: ScoringForm,
  q: Tensor<A>,
  k: Tensor<A>,
  { wQ, wK, wV, w }: ScoringOptions<A>,
): (i: number, j: number) => number {
  const [Dq, Dk] = [q.shape[2]!, k.shape[2]!];
  if (form === "additive") {
    const [fromQ, fromK, n] = [linear(q, wQ!), linear(k, wK!), wV!.data.length]; // (B, T, A)
    return (i, j) => {
      let sum = 0;
      for (let a = 0; a < n; a++) {
        sum += wV!.data[a]! * Math.tanh(fromQ.data[i * n + a]! + fromK.data[j * n + a]!);
      }
      return sum;
    };
  }
  if (form === "general") {
    const turned = linear(q, transposed(w!)); // (B, Tq, Dk)
    return (i, j) => dot(turned.data, i * Dk, k.data, j * Dk, Dk);
  }
  const scale = form === "scaled" ? 1 / Math.sqrt(Dq) : 1;
  const scaled = Float64Array.from(q.data, (x) => x * scale); // (B, Tq, Dq)
  return (i, j) => dot(scaled, i * Dq, k.data, j * Dk, Dk);
}
