/**
 * Scaled dot-product attention, as plain as the formula.
 *
 *     output = dropout(softmax(mask(softcap(scale · Q Kᵀ) + bias))) · V
 *
 * Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv query heads a KV head, Tq and Tk query
 * and key lengths, D head size, Dv head size of the values.
 *
 * A slot (one query, one key) is *hidden* when the mask hides it, its bias is -inf, or its score after the
 * bias is -inf. A hidden slot has weight exactly 0, and nothing of it reaches the result: NaN in its K or V
 * changes nothing.
 *
 * Sources: Vaswani et al., "Attention Is All You Need", 2017, section 3.2.1; Ainslie et al., "GQA", 2023
 * (groups); Gemma 2 report, 2024 (softcap); gpt-oss, 2025 (sinks). The order of the steps is that of ONNX
 * Attention, opset 25.
 */

import { inFloat32 } from "./cast.ts";
import { checkSdpa } from "./checks_attention.ts";
import { type Dropout, dropRow } from "./dropout.ts";
import { type Mask, visibleCore } from "./masks.ts";
import { softmaxRow } from "./softmax.ts";
import {
  broadcastIndex,
  dtypeOf,
  type FloatArray,
  sizes4,
  type Tensor,
  type WideArray,
  zerosLike,
  zerosWide,
} from "./tensor.ts";

/** Options that attention has wherever it stands. null and undefined both mean absent; 0 is 0. */
export interface AttentionOptions<A extends FloatArray = FloatArray> {
  /** Which key each query sees. Absent: all. */
  readonly mask?: Mask | null;
  /** Added to the scores, right-aligned broadcastable to (B, Hq, Tq, Tk); -inf hides its slot. */
  readonly bias?: Tensor<A> | null;
  /** Absent: 1/sqrt(D). */
  readonly scale?: number | null;
  /** c > 0 bounds the scores to (-c, c) by c·tanh(s/c). Absent: off. */
  readonly softcap?: number | null;
  /** Of the weights; an element's place is that in (B, Hq, Tq, Tk). Absent: off. */
  readonly dropout?: Dropout | null;
}

export interface SdpaOptions<A extends FloatArray = FloatArray> extends AttentionOptions<A> {
  /** (Hq,): a logit per head that joins the denominator of the softmax and carries no value. */
  readonly sinks?: Tensor<A> | null;
}

/**
 * Every intermediate of one call. `scores`, `capped` and `biased` are before masking; without a softcap or a
 * bias they share memory.
 */
export interface SdpaSteps<A extends FloatArray = FloatArray> {
  /** (B, Hq, Tq, Dv) */
  readonly output: Tensor<A>;
  /** (B, Hq, Tq, Tk), before the dropout */
  readonly weights: Tensor<A>;
  /** (B, Hq, Tq); float32 where the inputs are half */
  readonly lse: Tensor<WideArray>;
  /** (B, Hq, Tq, Tk) */
  readonly scores: Tensor<A>;
  /** (B, Hq, Tq, Tk) */
  readonly capped: Tensor<A>;
  /** (B, Hq, Tq, Tk) */
  readonly biased: Tensor<A>;
}

/**
 * Attention of `q` (B, Hq, Tq, D) over `k` (B, Hkv, Tk, D) and `v` (B, Hkv, Tk, Dv): (B, Hq, Tq, Dv).
 *
 * Query head h reads KV head floor(h / G). Tq, Tk and B may be 0. The element type of the inputs is that of
 * the result.
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function sdpa<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  options: SdpaOptions<A> = {},
): Tensor<A> {
  return sdpaSteps(q, k, v, options).output;
}

/** {@link sdpa} with all its intermediates; same arguments and errors. */
export function sdpaSteps<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  options: SdpaOptions<A> = {},
): SdpaSteps<A> {
  checkSdpa("sdpa", q, k, v, options);
  return inFloat32(sdpaCore<A>, q, k, v, options);
}

/** What {@link sdpaSteps} does behind the edge. */
export function sdpaCore<A extends FloatArray>(
  q: Tensor<A>,
  k: Tensor<A>,
  v: Tensor<A>,
  options: SdpaOptions<A> = {},
): SdpaSteps<A> {
  const { mask, bias, softcap, sinks, dropout } = options;
  const [B, Hq, Tq, D] = sizes4(q);
  const [, Hkv, Tk, Dv] = sizes4(v);
  const G = Hq / Hkv;
  const scale = options.scale ?? 1 / Math.sqrt(D);

  const output = zerosLike(q, [B, Hq, Tq, Dv]);
  const weights = zerosLike(q, [B, Hq, Tq, Tk]);
  const lse = zerosWide(q, [B, Hq, Tq]);
  const scores = zerosLike(q, [B, Hq, Tq, Tk]);
  const capped = softcap == null ? scores : zerosLike(q, [B, Hq, Tq, Tk]);
  const biased = bias == null ? capped : zerosLike(q, [B, Hq, Tq, Tk]);

  const shown = visibleCore(mask ?? {}, B, Hq, Tq, Tk).data; // (B, Hq, Tq, Tk)
  const biasAt = broadcastIndex(bias?.shape ?? []);
  const scaled = new Float64Array(D); // (D,), the query of one row
  const logits = zerosLike(q, [Tk]).data; // (Tk,), the masked scores of one row
  const kept = zerosLike(q, [Tk]).data; // (Tk,), the weights of one row after the dropout
  const double = dtypeOf(q) === "float64";
  const sums = new Float64Array(Dv); // (Dv,), the output of one row

  for (let b = 0; b < B; b++) {
    for (let h = 0; h < Hq; h++) {
      const kvHead = b * Hkv + Math.floor(h / G); // consecutive query heads share a KV head
      const K = k.data.subarray(kvHead * Tk * D, (kvHead + 1) * Tk * D); // (Tk, D)
      const V = v.data.subarray(kvHead * Tk * Dv, (kvHead + 1) * Tk * Dv); // (Tk, Dv)
      for (let i = 0; i < Tq; i++) {
        const query = (b * Hq + h) * Tq + i; // its place in (B, Hq, Tq)
        const row = query * Tk; // where its keys begin in (B, Hq, Tq, Tk)

        // 1. scores: scale · Q Kᵀ; the scale goes onto q first, so that what fits when scaled cannot overflow
        for (let c = 0; c < D; c++) scaled[c] = scale * q.data[query * D + c]!; // (D,)
        for (let j = 0; j < Tk; j++) {
          let dot = 0;
          for (let c = 0; c < D; c++) dot += scaled[c]! * K[j * D + c]!;
          scores.data[row + j] = dot; // (Tk,)
        }

        // 2. softcap: c · tanh(s / c), before the mask, which it would otherwise make finite
        if (softcap != null) {
          for (let j = 0; j < Tk; j++) {
            capped.data[row + j] = softcap * Math.tanh(scores.data[row + j]! / softcap); // (Tk,)
          }
        }

        // 3. bias: added as it is
        if (bias != null) {
          for (let j = 0; j < Tk; j++) {
            biased.data[row + j] = capped.data[row + j]! + bias.data[biasAt(b, h, i, j)]!; // (Tk,)
          }
        }

        // 4. mask: by selection, never by adding a large number
        for (let j = 0; j < Tk; j++) {
          const seen = shown[row + j] !== 0 && bias?.data[biasAt(b, h, i, j)] !== -Infinity;
          logits[j] = seen ? biased.data[row + j]! : -Infinity; // (Tk,)
        }

        // 5. softmax: over the keys; the sink of the head joins the sum
        const P = weights.data.subarray(row, row + Tk) as A; // (Tk,)
        lse.data[query] = softmaxRow(logits, P, sinks?.data[h]);

        // 6. dropout: of the weights; those that are given back stay as they are, and a row of NaN stays one
        if (dropout != null) dropRow(P, kept, dropout, row, double); // (Tk,)

        // 7. weighted sum: over the values of the visible keys
        sums.fill(0);
        for (let j = 0; j < Tk; j++) {
          if (logits[j] === -Infinity) continue; // 0 · NaN would be NaN
          const weight = dropout == null || Number.isNaN(P[j]) ? P[j]! : kept[j]!;
          for (let c = 0; c < Dv; c++) sums[c]! += weight * V[j * Dv + c]!; // (Dv,)
        }
        output.data.set(sums, query * Dv);
      }
    }
  }
  return { output, weights, lse, scores, capped, biased };
}
