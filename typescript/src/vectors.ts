/** Sums and products that several modules need. Checks nothing. */

import { type FloatArray, type Tensor, zerosLike } from "./tensor.ts";

/** The product of `n` elements of `x` from `xAt` on with as many of `y` from `yAt` on. */
export function dot(x: ArrayLike<number>, xAt: number, y: ArrayLike<number>, yAt: number, n: number): number {
  let sum = 0;
  for (let c = 0; c < n; c++) sum += x[xAt + c]! * y[yAt + c]!;
  return sum;
}

/** sums += factor · x[at .. at + sums.length]. */
export function addScaled(sums: Float64Array, factor: number, x: ArrayLike<number>, at: number): void {
  for (let c = 0; c < sums.length; c++) sums[c]! += factor * x[at + c]!;
}

/** x + y, of the same shape. */
export function sum<A extends FloatArray>(x: Tensor<A>, y: Tensor<A>): Tensor<A> {
  const both = zerosLike(x, x.shape);
  for (let n = 0; n < x.data.length; n++) both.data[n] = x.data[n]! + y.data[n]!;
  return both;
}

/** (m, n) to (n, m). */
export function transposed<A extends FloatArray>(x: Tensor<A>): Tensor<A> {
  const [m, n] = x.shape as [number, number];
  const y = zerosLike(x, [n, m]);
  for (let at = 0; at < m * n; at++) y.data[at] = x.data[(at % m) * n + Math.floor(at / m)]!; // (n, m)
  return y;
}
