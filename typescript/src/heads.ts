/** What attention does with heads, and the projection y = x Wᵀ + b around them. Checks nothing. */

import { type FloatArray, sizes3, sizes4, type Tensor, zerosLike } from "./tensor.ts";
import { dot } from "./vectors.ts";

/** y = x Wᵀ + b: (..., in) to (..., out), with weights (out, in). */
export function linear<A extends FloatArray>(x: Tensor<A>, w: Tensor<A>, b?: Tensor<A> | null): Tensor<A> {
  const [out, width] = w.shape as [number, number];
  const y = zerosLike(x, x.shape.with(-1, out));
  for (let at = 0; at < y.data.length; at++) {
    const [row, o] = [Math.floor(at / out), at % out];
    y.data[at] = dot(x.data, row * width, w.data, o * width, width) + (b == null ? 0 : b.data[o]!);
  }
  return y;
}

/** (B, T, H·n) to (B, H, T, n): consecutive blocks of channels. */
export function splitHeads<A extends FloatArray>(x: Tensor<A>, H: number): Tensor<A> {
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
export function mergeHeads<A extends FloatArray>(x: Tensor<A>): Tensor<A> {
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

/** The place in (B, Hkv) of the KV head of query head `head` of (B, Hq): consecutive ones share it. */
export function kvHeadOf(head: number, Hq: number, Hkv: number): number {
  return Math.floor(head / Hq) * Hkv + Math.floor(((head % Hq) * Hkv) / Hq);
}

/** Channels `from` to `to` of `x` (..., n). */
export function channels<A extends FloatArray>(x: Tensor<A>, from: number, to: number): Tensor<A> {
  const n = x.shape.at(-1)!;
  const part = zerosLike(x, x.shape.with(-1, to - from));
  for (let row = 0; row * n < x.data.length; row++) {
    part.data.set(x.data.subarray(row * n + from, row * n + to), row * (to - from)); // (to - from,)
  }
  return part;
}

/** Channels side by side: `x` (B, H, T, m) and `y` (B, H or 1, T, n) to (B, H, T, m + n). */
export function besideHeads<A extends FloatArray>(x: Tensor<A>, y: Tensor<A>): Tensor<A> {
  const [B, H, T, m] = sizes4(x);
  const [, yH, , n] = sizes4(y);
  const both = zerosLike(x, [B, H, T, m + n]);
  for (let row = 0; row < B * H * T; row++) {
    const [b, h, t] = [Math.floor(row / (H * T)), Math.floor(row / T) % H, row % T];
    const yRow = (b * yH + (h % yH)) * T + t;
    both.data.set(x.data.subarray(row * m, (row + 1) * m), row * (m + n)); // (m,)
    both.data.set(y.data.subarray(yRow * n, (yRow + 1) * n), row * (m + n) + m); // (n,)
  }
  return both;
}
