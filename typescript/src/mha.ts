/**
 * Multi-head attention: four projections around scaled dot-product attention.
 *
 *     output = concat_h(sdpa(X W_qᵀ, C W_kᵀ, C W_vᵀ)_h) W_oᵀ,   C = context, X itself for self-attention
 *
 * Letters: B batch, Tq and Tk query and key lengths, C model width, Cc width of the context, Hq query heads,
 * Hkv key/value heads, D head size, Dv head size of the values, Cout width of the output.
 *
 * Source: Vaswani et al., "Attention Is All You Need", 2017, section 3.2.2; Ainslie et al., "GQA", 2023.
 */

import { checkMha } from "./checks.ts";
import { type AttentionOptions, sdpaSteps } from "./sdpa.ts";
import { type FloatArray, sizes3, sizes4, type Tensor, zerosLike } from "./tensor.ts";

/** The weights of one layer. They are (out, in), y = x Wᵀ + b; heads are consecutive blocks of rows. */
export interface MhaWeights<A extends FloatArray = FloatArray> {
  /** (Hq·D, C) */
  readonly wQ: Tensor<A>;
  /** (Hkv·D, Cc) */
  readonly wK: Tensor<A>;
  /** (Hkv·Dv, Cc) */
  readonly wV: Tensor<A>;
  /** (Cout, Hq·Dv) */
  readonly wO: Tensor<A>;
  readonly numHeads: number;
  /** Absent: numHeads. */
  readonly numKvHeads?: number | null;
  /** (Hq·D,) */
  readonly bQ?: Tensor<A> | null;
  /** (Hkv·D,) */
  readonly bK?: Tensor<A> | null;
  /** (Hkv·Dv,) */
  readonly bV?: Tensor<A> | null;
  /** (Cout,) */
  readonly bO?: Tensor<A> | null;
}

/** The output of one call with the weights and log-sum-exp of its attention. */
export interface MhaSteps<A extends FloatArray = FloatArray> {
  /** (B, Tq, Cout) */
  readonly output: Tensor<A>;
  /** (B, Hq, Tq, Tk) */
  readonly weights: Tensor<A>;
  /** (B, Hq, Tq) */
  readonly lse: Tensor<A>;
}

/** One layer; its weights are checked against the input by every call. */
export class MultiHeadAttention<A extends FloatArray = FloatArray> {
  readonly wQ: Tensor<A>;
  readonly wK: Tensor<A>;
  readonly wV: Tensor<A>;
  readonly wO: Tensor<A>;
  readonly numHeads: number;
  readonly numKvHeads: number;
  readonly bQ: Tensor<A> | null;
  readonly bK: Tensor<A> | null;
  readonly bV: Tensor<A> | null;
  readonly bO: Tensor<A> | null;

  constructor(weights: MhaWeights<A>) {
    this.wQ = weights.wQ;
    this.wK = weights.wK;
    this.wV = weights.wV;
    this.wO = weights.wO;
    this.numHeads = weights.numHeads;
    this.numKvHeads = weights.numKvHeads ?? weights.numHeads;
    this.bQ = weights.bQ ?? null;
    this.bK = weights.bK ?? null;
    this.bV = weights.bV ?? null;
    this.bO = weights.bO ?? null;
  }

  /**
   * Attention of `x` (B, Tq, C) over `context` (B, Tk, Cc), itself when absent: (B, Tq, Cout).
   *
   * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
   */
  forward(x: Tensor<A>, context?: Tensor<A> | null, options: AttentionOptions<A> = {}): Tensor<A> {
    return this.steps(x, context, options).output;
  }

  /** {@link forward} with its intermediates; same arguments and errors. */
  steps(x: Tensor<A>, context?: Tensor<A> | null, options: AttentionOptions<A> = {}): MhaSteps<A> {
    const source = context ?? x;
    checkMha("mha", x, source, this);

    // 1. project: rows of x to queries, rows of the context to keys and values
    const q = linear(x, this.wQ, this.bQ); // (B, Tq, Hq·D)
    const k = linear(source, this.wK, this.bK); // (B, Tk, Hkv·D)
    const v = linear(source, this.wV, this.bV); // (B, Tk, Hkv·Dv)

    // 2. split heads: consecutive blocks of channels, then heads before positions
    const Q = splitHeads(q, this.numHeads); // (B, Hq, Tq, D)
    const K = splitHeads(k, this.numKvHeads); // (B, Hkv, Tk, D)
    const V = splitHeads(v, this.numKvHeads); // (B, Hkv, Tk, Dv)

    // 3. attention: every head on its own
    const heads = sdpaSteps(Q, K, V, options); // output (B, Hq, Tq, Dv)

    // 4. merge heads: positions before heads again, heads side by side
    const merged = mergeHeads(heads.output); // (B, Tq, Hq·Dv)

    // 5. output projection: mixes the heads
    const output = linear(merged, this.wO, this.bO); // (B, Tq, Cout)
    return { output, weights: heads.weights, lse: heads.lse };
  }
}

/** y = x Wᵀ + b: (B, T, in) to (B, T, out). */
function linear<A extends FloatArray>(x: Tensor<A>, w: Tensor<A>, b: Tensor<A> | null): Tensor<A> {
  const [B, T, width] = sizes3(x);
  const out = w.shape[0]!;
  const y = zerosLike(x, [B, T, out]);
  for (let t = 0; t < B * T; t++) {
    for (let o = 0; o < out; o++) {
      let sum = b === null ? 0 : b.data[o]!;
      for (let c = 0; c < width; c++) sum += x.data[t * width + c]! * w.data[o * width + c]!;
      y.data[t * out + o] = sum;
    }
  }
  return y;
}

/** (B, T, H·n) to (B, H, T, n). */
function splitHeads<A extends FloatArray>(x: Tensor<A>, H: number): Tensor<A> {
  const [B, T, width] = sizes3(x);
  const n = width / H;
  const heads = zerosLike(x, [B, H, T, n]);
  for (let b = 0; b < B; b++) {
    for (let h = 0; h < H; h++) {
      for (let t = 0; t < T; t++) {
        const from = (b * T + t) * width + h * n;
        heads.data.set(x.data.subarray(from, from + n), ((b * H + h) * T + t) * n); // (n,)
      }
    }
  }
  return heads;
}

/** (B, H, T, n) to (B, T, H·n). */
function mergeHeads<A extends FloatArray>(x: Tensor<A>): Tensor<A> {
  const [B, H, T, n] = sizes4(x);
  const merged = zerosLike(x, [B, T, H * n]);
  for (let b = 0; b < B; b++) {
    for (let h = 0; h < H; h++) {
      for (let t = 0; t < T; t++) {
        const from = ((b * H + h) * T + t) * n;
        merged.data.set(x.data.subarray(from, from + n), ((b * T + t) * H + h) * n); // (n,)
      }
    }
  }
  return merged;
}
