/**
 * Three ways to generate tokens with one layer of attention, what each costs, and how long each takes.
 *
 *     everything       the whole text goes through the layer for each token, and all but the last row is thrown away
 *     keys and values  of the whole text are made again, the query of the last token alone
 *     cache            the last token alone goes through the layer; keys and values of the past are kept
 *
 * All three make the same tokens: each one is the output for the last, normalised. Per step, at a text of t
 * tokens of width C, in multiply-adds:
 *
 *     everything       4 t C² + 2 t² C      (the masked half of the scores is computed too)
 *     keys and values  2 t C² + 2 C² + 2 t C
 *     cache            4 C² + 2 t C
 *
 * A product of an (m, k) and a (k, n) matrix is m k n multiply-adds, and moves m k + k n + m n numbers.
 *
 * Letters: T tokens generated, C width.
 *
 * Source: Pope et al., "Efficiently Scaling Transformer Inference", 2022, section 2.
 */

import { KVCache, MultiHeadAttention, rmsNorm, type Tensor } from "../src/index.ts";

export const WAYS = ["everything", "keys and values", "cache"] as const;
export type Way = (typeof WAYS)[number];

/** Bytes of a float32. */
const NUMBER = 4;

/** `count` products of an (m, k) and a (k, n) matrix. */
type Product = readonly [count: number, m: number, k: number, n: number];

/** Of all steps together. */
export interface Cost {
  readonly multiplyAdds: number;
  /** bytes */
  readonly moved: number;
}

export interface Run {
  /** (1, T, C) */
  readonly tokens: Tensor<Float32Array>;
  /** By length: from the start, when it was reached. */
  readonly seconds: Map<number, number>;
  /** By length: bytes of the cache then. */
  readonly held: Map<number, number>;
}

/** The matrix products of the step that makes the token after the t-th. */
function products(way: Way, t: number, width: number, heads: number): Product[] {
  const asked = way === "everything" ? t : 1; // queries
  const made = way === "cache" ? 1 : t; // keys and values
  const headDim = width / heads;
  return [
    [1, asked, width, width], // queries
    [2, made, width, width], // keys and values
    [heads, asked, headDim, t], // scores
    [heads, asked, t, headDim], // weighted sum
    [1, asked, width, width], // output
  ];
}

/** Of generating so many tokens. */
export function cost(way: Way, length: number, width: number, heads: number): Cost {
  let [multiplyAdds, numbers] = [0, 0];
  for (let t = 1; t <= length; t++) {
    for (const [count, m, k, n] of products(way, t, width, heads)) {
      multiplyAdds += count * m * k * n;
      numbers += count * (m * k + k * n + m * n);
    }
  }
  return { multiplyAdds, moved: NUMBER * numbers };
}

/** Evenly from (-√3, √3): mean 0 and variance 1. xorshift32, so every machine draws the same. */
function draw(shape: number[], scale: number, state: { seed: number }): Tensor<Float32Array> {
  const data = Float32Array.from({ length: shape.reduce((size, n) => size * n, 1) }, () => {
    state.seed ^= state.seed << 13;
    state.seed ^= state.seed >>> 17;
    state.seed ^= state.seed << 5;
    return scale * Math.sqrt(3) * (2 * ((state.seed >>> 0) / 2 ** 32) - 1);
  });
  return { data, shape };
}

/** A layer without biases, and a first token (1, 1, C). */
export function randomLayer(
  width: number,
  heads: number,
): { layer: MultiHeadAttention<Float32Array>; first: Tensor<Float32Array> } {
  const state = { seed: 0x9e3779b1 };
  const [wQ, wK, wV, wO] = Array.from({ length: 4 }, () => draw([width, width], width ** -0.5, state));
  const layer = new MultiHeadAttention<Float32Array>({
    ...{ numHeads: heads, wQ: wQ!, wK: wK!, wV: wV!, wO: wO! },
  });
  return { layer, first: draw([1, 1, width], 1, state) };
}

/** Tokens after `first` (1, 1, C), as many as the longest length. */
export function generate(
  way: Way,
  layer: MultiHeadAttention<Float32Array>,
  first: Tensor<Float32Array>,
  lengths: readonly number[],
): Run {
  const C = first.shape[2]!;
  const T = Math.max(...lengths);
  const cache = new KVCache({ batch: 1, numKvHeads: layer.numHeads, headDim: C / layer.numHeads });
  const text = new Float32Array((T + 1) * C);
  const part = (from: number, to: number) => ({
    data: text.subarray(from * C, to * C), // a view: nothing is copied
    shape: [1, to - from, C],
  });
  const steps: Readonly<Record<Way, (t: number) => Tensor<Float32Array>>> = {
    everything(t) {
      const all = layer.forward(part(0, t), null, { mask: { causal: true } }); // (1, t, C)
      return { data: all.data.subarray((t - 1) * C), shape: [1, 1, C] };
    },
    "keys and values": (t) => layer.forward(part(t - 1, t), part(0, t)), // (1, 1, C)
    cache: (t) => layer.decode(part(t - 1, t), cache), // (1, 1, C)
  };

  text.set(first.data);
  const [seconds, held] = [new Map<number, number>(), new Map<number, number>()];
  const start = performance.now();
  for (let t = 1; t <= T; t++) {
    text.set(rmsNorm(steps[way](t)).data, t * C);
    if (!lengths.includes(t)) continue;
    seconds.set(t, (performance.now() - start) / 1e3);
    held.set(t, cache.stats().bytes);
  }
  return { tokens: part(1, T + 1), seconds, held };
}
