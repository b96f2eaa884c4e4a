/**
 * Multi-head attention: four projections around scaled dot-product attention.
 *
 *     output = concat_h(sdpa(X W_qᵀ, C W_kᵀ, C W_vᵀ)_h) W_oᵀ,   C = context, X itself for self-attention
 *
 * Letters: B batch, Tq and Tk query and key lengths, C model width, Cc width of the context, Hq query heads,
 * Hkv key/value heads, D head size, Dv head size of the values, Cout width of the output.
 *
 * Sources: Vaswani et al., "Attention Is All You Need", 2017, section 3.2.2; Ainslie et al., "GQA", 2023;
 * Henry et al., "Query-Key Normalization for Transformers", 2020; Michel et al., "Are Sixteen Heads Really
 * Better than One?", 2019 (pruned heads).
 */

import { allOrNothing, type Cache } from "./cache.ts";
import { inFloat32, narrow } from "./cast.ts";
import { checkDecode, checkMha, checkPacked } from "./checks_mha.ts";
import { linear, mergeHeads, splitHeads } from "./heads.ts";
import { type PackedWeights, unpacked } from "./packed.ts";
import { rmsNormCore } from "./rms_norm.ts";
import { type Rope, ropeCore } from "./rope.ts";
import { type AttentionOptions, sdpaCore } from "./sdpa.ts";
import {
  type BoolTensor,
  type FloatArray,
  type FloatArrays,
  type FloatDtype,
  type IntTensor,
  sizes4,
  type Tensor,
  type WideArray,
  zerosLike,
} from "./tensor.ts";

/** What a layer has however its projections are stored. */
export interface MhaSettings<A extends FloatArray = FloatArray> {
  readonly numHeads: number;
  /** Absent: numHeads. */
  readonly numKvHeads?: number | null;
  /** (Cout, Hq·Dv) */
  readonly wO: Tensor<A>;
  /** (Cout,) */
  readonly bO?: Tensor<A> | null;
  /** (D,): each head's queries are RMS-normalised with these weights. Absent: they are not. */
  readonly qNorm?: Tensor<A> | null;
  /** (D,): the same for the keys. */
  readonly kNorm?: Tensor<A> | null;
  /** Absent: 1e-6. */
  readonly qkNormEps?: number | null;
  /** How queries and keys are rotated. Absent: they are not. */
  readonly rope?: Rope | null;
}

/** The weights of one layer. They are (out, in), y = x Wᵀ + b; heads are consecutive blocks of rows. */
export interface MhaWeights<A extends FloatArray = FloatArray> extends MhaSettings<A> {
  /** (Hq·D, C) */
  readonly wQ: Tensor<A>;
  /** (Hkv·D, Cc) */
  readonly wK: Tensor<A>;
  /** (Hkv·Dv, Cc) */
  readonly wV: Tensor<A>;
  /** (Hq·D,) */
  readonly bQ?: Tensor<A> | null;
  /** (Hkv·D,) */
  readonly bK?: Tensor<A> | null;
  /** (Hkv·Dv,) */
  readonly bV?: Tensor<A> | null;
}

export interface MhaOptions<A extends FloatArray = FloatArray> extends AttentionOptions<A> {
  /** (B, T): where each token stands, for a layer that rotates. Absent: in a row, from its offset on. */
  readonly positions?: IntTensor | null;
  /** (Hq,): a head of 0 contributes nothing to the output. Absent: all do. */
  readonly headMask?: BoolTensor | null;
}

/** The output of one call with the weights and log-sum-exp of its attention. */
export interface MhaSteps<A extends FloatArray = FloatArray> {
  /** (B, Tq, Cout) */
  readonly output: Tensor<A>;
  /** (B, Hq, Tq, Tk), before dropout and pruning */
  readonly weights: Tensor<A>;
  /** (B, Hq, Tq); float32 where the inputs are half */
  readonly lse: Tensor<WideArray>;
  /** (B, Tq, Tk): of the weights, over the heads */
  readonly meanWeights: Tensor<A>;
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
  readonly qNorm: Tensor<A> | null;
  readonly kNorm: Tensor<A> | null;
  readonly qkNormEps: number;
  readonly rope: Rope | null;

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
    this.qNorm = weights.qNorm ?? null;
    this.kNorm = weights.kNorm ?? null;
    this.qkNormEps = weights.qkNormEps ?? 1e-6;
    this.rope = weights.rope ?? null;
  }

  /**
   * A layer of self-attention whose three input projections are stored as one.
   *
   * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
   */
  static packed<A extends FloatArray>(weights: PackedWeights<A>): MultiHeadAttention<A> {
    checkPacked("mha", weights);
    return new MultiHeadAttention(unpacked(weights));
  }

  /** How many numbers its weights and biases have. */
  get numParameters(): number {
    const { wQ, wK, wV, wO, bQ, bK, bV, bO, qNorm, kNorm } = this;
    return [wQ, wK, wV, wO, bQ, bK, bV, bO, qNorm, kNorm].reduce((sum, w) => sum + (w?.data.length ?? 0), 0);
  }

  /**
   * Attention of `x` (B, Tq, C) over `context` (B, Tk, Cc), itself when absent: (B, Tq, Cout).
   *
   * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
   */
  forward(x: Tensor<A>, context?: Tensor<A> | null, options: MhaOptions<A> = {}): Tensor<A> {
    return this.steps(x, context, options).output;
  }

  /** {@link forward} with its intermediates; same arguments and errors. */
  steps(x: Tensor<A>, context?: Tensor<A> | null, options: MhaOptions<A> = {}): MhaSteps<A> {
    checkMha("mha", x, context ?? null, this, options);
    return inFloat32(mhaCore<A>, x, context ?? null, this, options);
  }

  /**
   * Self-attention of the next tokens of each row, `x` (B, T, C), after those in a cache of any kind: (B, T, Cout).
   *
   * Their keys and values are appended, and they attend causally to all that the cache then holds. A layer that
   * rotates needs a cache that does the same, at its own positions.
   *
   * @throws ShapeMismatch, DtypeMismatch, InvalidConfig, CapacityExceeded; then the cache is as it was.
   */
  decode<T extends FloatDtype>(x: Tensor<A>, cache: Cache<T>, options: AttentionOptions<A> = {}): Tensor<A> {
    checkDecode("decode", x, this, cache, options);
    const core = (wide: Tensor<A>, layer: MhaLayer<A>, { mask, ...rest }: AttentionOptions<A>) => {
      const { Q, K, V } = projected(wide, wide, layer); // (B, Hq, T, D), (B, Hkv, T, D), (B, Hkv, T, Dv)
      cache.append(stored(K, cache.dtype), stored(V, cache.dtype));
      const heads = cache.attendWide(Q, { ...rest, mask: { ...mask, causal: true } }); // (B, Hq, T, Dv)
      const merged = mergeHeads(heads.output as Tensor<A>); // (B, T, Hq·Dv)
      return { output: linear(merged, layer.wO, layer.bO) }; // (B, T, Cout)
    };
    return allOrNothing(cache, () => inFloat32(core, x, this, options)).output;
  }
}

type MhaLayer<A extends FloatArray> = Omit<
  MultiHeadAttention<A>,
  "numParameters" | "forward" | "steps" | "decode"
>;

/** As a cache of this type holds it. */
function stored<T extends FloatDtype>(x: Tensor<FloatArray>, dtype: T): Tensor<FloatArrays[T]> {
  return narrow(x as Tensor<WideArray>, dtype);
}

/** Queries (B, Hq, Tq, D) of `x`, keys (B, Hkv, Tk, D) and values (B, Hkv, Tk, Dv) of `source`. */
function projected<A extends FloatArray>(
  x: Tensor<A>,
  source: Tensor<A>,
  layer: MhaLayer<A>,
): { Q: Tensor<A>; K: Tensor<A>; V: Tensor<A> } {
  const { numHeads, numKvHeads, qNorm, kNorm, qkNormEps } = layer;

  // 1. project: rows of x to queries, rows of the context to keys and values
  const q = linear(x, layer.wQ, layer.bQ); // (B, Tq, Hq·D)
  const k = linear(source, layer.wK, layer.bK); // (B, Tk, Hkv·D)
  const v = linear(source, layer.wV, layer.bV); // (B, Tk, Hkv·Dv)

  // 2. split heads: consecutive blocks of channels, then heads before positions
  let Q = splitHeads(q, numHeads); // (B, Hq, Tq, D)
  let K = splitHeads(k, numKvHeads); // (B, Hkv, Tk, D)
  const V = splitHeads(v, numKvHeads); // (B, Hkv, Tk, Dv)

  // 3. normalise: each head's queries and keys, so that scores cannot grow with the weights
  if (qNorm !== null) Q = rmsNormCore(Q, qNorm, qkNormEps); // (B, Hq, Tq, D)
  if (kNorm !== null) K = rmsNormCore(K, kNorm, qkNormEps); // (B, Hkv, Tk, D)
  return { Q, K, V };
}

/** What {@link MultiHeadAttention.steps} does behind the edge. */
export function mhaCore<A extends FloatArray>(
  x: Tensor<A>,
  context: Tensor<A> | null,
  layer: MhaLayer<A>,
  { positions, headMask, ...options }: MhaOptions<A>,
): MhaSteps<A> {
  let { Q, K, V } = projected(x, context ?? x, layer); // (B, Hq, Tq, D), (B, Hkv, Tk, D), (B, Hkv, Tk, Dv)

  // 4. rotate: queries and keys at the same positions
  if (layer.rope !== null) {
    Q = ropeCore(Q, { ...layer.rope, positions }).output; // (B, Hq, Tq, D)
    K = ropeCore(K, { ...layer.rope, positions }).output; // (B, Hkv, Tk, D)
  }

  // 5. attention: every head on its own
  const heads = sdpaCore(Q, K, V, options); // output (B, Hq, Tq, Dv)

  // 6. prune: by selection; a head that is left out gives 0, whatever it saw
  const [B, Hq, Tq, Dv] = sizes4(heads.output);
  for (let head = 0; headMask != null && head < B * Hq; head++) {
    if (headMask.data[head % Hq] === 0) heads.output.data.fill(0, head * Tq * Dv, (head + 1) * Tq * Dv);
  }

  // 7. merge heads: positions before heads again, heads side by side
  const merged = mergeHeads(heads.output); // (B, Tq, Hq·Dv)

  // 8. output projection: mixes the heads
  const output = linear(merged, layer.wO, layer.bO); // (B, Tq, Cout)
  return { output, weights: heads.weights, lse: heads.lse, meanWeights: meanOfHeads(heads.weights) };
}

/** (B, H, Tq, Tk) to (B, Tq, Tk). */
function meanOfHeads<A extends FloatArray>(weights: Tensor<A>): Tensor<A> {
  const [B, H, Tq, Tk] = sizes4(weights);
  const mean = zerosLike(weights, [B, Tq, Tk]);
  for (let at = 0; at < mean.data.length; at++) {
    const [b, slot] = [Math.floor(at / (Tq * Tk)), at % (Tq * Tk)];
    let sum = 0;
    for (let h = 0; h < H; h++) sum += weights.data[(b * H + h) * Tq * Tk + slot]!;
    mean.data[at] = sum / H;
  }
  return mean;
}
