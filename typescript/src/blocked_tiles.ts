/**
 * What {@link blocked} computes with: the numbers of a block, how they come in and go out, and tiles of products.
 *
 * All of it lies in one array that never changes, so that an engine writes its address and its length into the code, and
 * `| 0` says that an index cannot overflow, which it would test for. A tile of four rows and two keys, or two channels,
 * reads six numbers for sixteen operations; the sums of a larger one would not stay in the fifteen registers that there
 * are. Alone it is 1.5 times as fast as tiles of four by four over arrays that are arguments, and the whole 1.3 to 1.5
 * times. Tried without a gain: other sizes of tiles, two turns at once, numbers in float32, an exp of our own.
 *
 * A call is synchronous and asks nothing of its caller, so that one array is enough for all.
 */

import type { FloatArray } from "./tensor.ts";

/**
 * Queries in a block, and keys, multiples of 4. With D = 64 K and V are 32 KiB each, and stay in the nearest cache, Q and
 * the sums in the next: 256 rows share the work of making a block, which gained 7 to 19 % beside 64.
 */
export const ROWS: number = 256;
export const KEYS: number = 64;
/** Channels at a time: larger heads are taken in panels. */
export const CHANNELS: number = 128;

/** Where each part of a block begins. */
export const Q: number = 0; // (rows / L, D, L)
export const K: number = Q + ROWS * CHANNELS; // (Bk / 2, D, 2)
export const V: number = K + KEYS * CHANNELS; // (Dv / 2, Bk, 2)
export const S: number = V + KEYS * CHANNELS; // (rows / L, Bk, L), scores, then weights
export const O: number = S + ROWS * KEYS; // (rows / L, Dv, L), sums of weighted values

// A name of its own: what is exported is looked up anew each time.
const M = new Float64Array(O + ROWS * CHANNELS);
export const numbers: Float64Array = M;

/** Which slots of S are hidden. */
const hidden = new Uint8Array(ROWS * KEYS); // (rows / L, Bk, L)

/** What is known of each row of a block. */
export interface Rows {
  readonly m: Float64Array; // the largest score that was met
  readonly l: Float64Array; // the sum of e^(s - m)
  readonly seen: Uint8Array; // whether a key was
}

/** Rows of queries from `at` on to Q, times `scale`, in lines of L; rows that there are not are 0. */
export function placeRows(
  q: FloatArray,
  at: number,
  rows: number,
  D: number,
  channels: number,
  scale: number,
  L: number,
): void {
  M.fill(0, Q, Q + Math.ceil(rows / L) * L * channels);
  for (let r = 0; r < rows; r++) {
    const [a, x] = [Q + (r - (r % L)) * channels + (r % L), at + r * D];
    for (let c = 0; c < channels; c++) M[a + c * L] = scale * q[x + c]!;
  }
}

/** Keys from `at` on to K, two side by side. What is left beside an odd last one is of no use to anybody. */
export function placeKeys(k: FloatArray, at: number, keys: number, D: number, channels: number): void {
  for (let n = 0; n < keys; n++) {
    const [b, x] = [K + (n - (n & 1)) * channels + (n & 1), at + n * D];
    for (let c = 0; c < channels; c++) M[b + c * 2] = k[x + c]!;
  }
}

/** Values from `at` on to V, two channels side by side. Whether all are finite. */
export function placeValues(v: FloatArray, at: number, keys: number, Dv: number, width: number): boolean {
  let zero = 0; // stays 0 while all are
  for (let n = 0; n < keys; n++) {
    const x = at + n * Dv;
    for (let c = 0; c < width; c++) {
      const value = v[x + c]!;
      M[V + (c - (c & 1)) * KEYS + n * 2 + (c & 1)] = value;
      zero += 0 * value;
    }
  }
  return zero === 0;
}

/** Eight sums from `to` on, a tile (2, 4), += a (n, 4) times b (n, 2). */
export function tile(a: number, b: number, n: number, to: number): void {
  let [s00, s10, s20, s30] = [M[to]!, M[to + 1]!, M[to + 2]!, M[to + 3]!];
  let [s01, s11, s21, s31] = [M[to + 4]!, M[to + 5]!, M[to + 6]!, M[to + 7]!];
  for (let left = n; left > 0; left--) {
    const y0 = M[b]!;
    const y1 = M[(b + 1) | 0]!;
    let x = M[a]!;
    s00 += x * y0;
    s01 += x * y1;
    x = M[(a + 1) | 0]!;
    s10 += x * y0;
    s11 += x * y1;
    x = M[(a + 2) | 0]!;
    s20 += x * y0;
    s21 += x * y1;
    x = M[(a + 3) | 0]!;
    s30 += x * y0;
    s31 += x * y1;
    a = (a + 4) | 0;
    b = (b + 2) | 0;
  }
  M[to] = s00;
  M[to + 1] = s10;
  M[to + 2] = s20;
  M[to + 3] = s30;
  M[to + 4] = s01;
  M[to + 5] = s11;
  M[to + 6] = s21;
  M[to + 7] = s31;
}

/** The same of n channels of a line of queries, a (n, 4), and of two keys that lie `apart` in `k`, from `at` on. */
export function scoreTile(a: number, k: FloatArray, at: number, apart: number, n: number, to: number): void {
  let [s00, s10, s20, s30] = [M[to]!, M[to + 1]!, M[to + 2]!, M[to + 3]!];
  let [s01, s11, s21, s31] = [M[to + 4]!, M[to + 5]!, M[to + 6]!, M[to + 7]!];
  for (let end = at + n; at < end; at++) {
    const y0 = k[at]!;
    const y1 = k[(at + apart) | 0]!;
    let x = M[a]!;
    s00 += x * y0;
    s01 += x * y1;
    x = M[(a + 1) | 0]!;
    s10 += x * y0;
    s11 += x * y1;
    x = M[(a + 2) | 0]!;
    s20 += x * y0;
    s21 += x * y1;
    x = M[(a + 3) | 0]!;
    s30 += x * y0;
    s31 += x * y1;
    a = (a + 4) | 0;
  }
  M[to] = s00;
  M[to + 1] = s10;
  M[to + 2] = s20;
  M[to + 3] = s30;
  M[to + 4] = s01;
  M[to + 5] = s11;
  M[to + 6] = s21;
  M[to + 7] = s31;
}

/** The same of a line of weights, a (n, 4), and of two channels of n values that lie `apart` in `v`, from `at` on. */
export function sumTile(
  a: number,
  v: FloatArray,
  at: number,
  apart: number,
  n: number,
  Dv: number,
  to: number,
): void {
  let [s00, s10, s20, s30] = [M[to]!, M[to + 1]!, M[to + 2]!, M[to + 3]!];
  let [s01, s11, s21, s31] = [M[to + 4]!, M[to + 5]!, M[to + 6]!, M[to + 7]!];
  for (let left = n; left > 0; left--) {
    const y0 = v[at]!;
    const y1 = v[(at + apart) | 0]!;
    let x = M[a]!;
    s00 += x * y0;
    s01 += x * y1;
    x = M[(a + 1) | 0]!;
    s10 += x * y0;
    s11 += x * y1;
    x = M[(a + 2) | 0]!;
    s20 += x * y0;
    s21 += x * y1;
    x = M[(a + 3) | 0]!;
    s30 += x * y0;
    s31 += x * y1;
    a = (a + 4) | 0;
    at = (at + Dv) | 0;
  }
  M[to] = s00;
  M[to + 1] = s10;
  M[to + 2] = s20;
  M[to + 3] = s30;
  M[to + 4] = s01;
  M[to + 5] = s11;
  M[to + 6] = s21;
  M[to + 7] = s31;
}

/** The scores of a row alone: `keys` sums from `to` on += a (n,) times keys of D numbers at `at`, four at a time. */
export function scoreRow(
  a: number,
  k: FloatArray,
  at: number,
  keys: number,
  D: number,
  n: number,
  to: number,
): void {
  let j = 0;
  for (; j + 4 <= keys; j += 4) {
    let [s0, s1, s2, s3] = [M[to + j]!, M[to + j + 1]!, M[to + j + 2]!, M[to + j + 3]!];
    let y = at + j * D;
    for (let c = a; c < a + n; c++) {
      const x = M[c]!;
      s0 += x * k[y]!;
      s1 += x * k[(y + D) | 0]!;
      s2 += x * k[(y + 2 * D) | 0]!;
      s3 += x * k[(y + 3 * D) | 0]!;
      y = (y + 1) | 0;
    }
    M[to + j] = s0;
    M[to + j + 1] = s1;
    M[to + j + 2] = s2;
    M[to + j + 3] = s3;
  }
  for (; j < keys; j++) {
    for (let c = 0; c < n; c++) M[to + j]! += M[a + c]! * k[at + j * D + c]!;
  }
}

/** Sums of a row over `total`, to `output` from `at` on. */
export function divide(
  o: number,
  L: number,
  width: number,
  total: number,
  output: FloatArray,
  at: number,
): void {
  for (let c = 0; c < width; c++) {
    output[(at + c) | 0] = M[o]! / total;
    o = (o + L) | 0;
  }
}

/** The sums of a row alone: `width` of them from `to` on += weights a (n,) times values, four keys at a time. */
export function sumRow(
  a: number,
  v: FloatArray,
  at: number,
  n: number,
  Dv: number,
  width: number,
  to: number,
): void {
  let j = 0;
  for (; j + 4 <= n; j += 4) {
    const [p0, p1, p2, p3] = [M[a + j]!, M[a + j + 1]!, M[a + j + 2]!, M[a + j + 3]!];
    const b = at + j * Dv;
    for (let c = 0; c < width; c++) {
      const y = (b + c) | 0;
      M[(to + c) | 0]! +=
        p0 * v[y]! + p1 * v[(y + Dv) | 0]! + p2 * v[(y + 2 * Dv) | 0]! + p3 * v[(y + 3 * Dv) | 0]!;
    }
  }
  for (; j < n; j++) {
    for (let c = 0; c < width; c++) M[to + c]! += M[a + j]! * v[at + j * Dv + c]!;
  }
}

/** The sums of the L rows of a line, but for hidden slots: 0 · NaN. */
export function sumVisible(
  a: number,
  v: FloatArray,
  at: number,
  n: number,
  Dv: number,
  width: number,
  L: number,
  to: number,
): void {
  for (let slot = 0; slot < n * L; slot++) {
    if (hidden[a - S + slot]) continue;
    const [weight, b, o] = [M[a + slot]!, at + Math.floor(slot / L) * Dv, to + (slot % L)];
    for (let c = 0; c < width; c++) M[o + c * L]! += weight * v[b + c]!;
  }
}

/**
 * Scores of row `r`, L apart from `s` on, become the weights of its keys [lo, hi); its maximum and sums go on, and what it
 * has at `o` shrinks. 1 where a slot was hidden.
 */
export function weigh(
  { m, l, seen }: Rows,
  r: number,
  s: number,
  lo: number,
  hi: number,
  L: number,
  o: number,
  width: number,
): number {
  const before = m[r]!;
  let top = before;
  for (let n = s + lo * L; n < s + hi * L; n += L) if (M[n]! > top) top = M[n]!;
  const shift = top === -Infinity ? 0 : top; // with nothing met, since -inf - -inf is NaN
  const shrink = Math.exp(before - shift);
  let total = l[r]! * shrink;
  let some = 0;
  for (let n = s + lo * L; n < s + hi * L; n += L) {
    const score = M[n]!;
    const hides = score === -Infinity ? 1 : 0;
    const weight = hides ? 0 : Math.exp(score - shift);
    M[n] = weight;
    hidden[n - S] = hides;
    total += weight;
    some |= hides;
    seen[r]! |= 1 - hides;
  }
  m[r] = top;
  l[r] = total;
  if (shrink !== 1 && before !== -Infinity) for (let c = 0; c < width; c++) M[o + c * L]! *= shrink;
  return some;
}
