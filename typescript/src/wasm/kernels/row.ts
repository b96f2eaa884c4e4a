/** One query, or four, against a block of keys: products and weighted sums with channels as lanes. */

import { BLOCK, madd } from "./vector";

/** Bytes from a row of scores to the next. */
export const ROW: usize = (<usize>BLOCK) << 2;

/** The sum of each of four vectors. */
function sumsOf(a: v128, b: v128, c: v128, d: v128): v128 {
  const ab = f32x4.add(i32x4.shuffle(a, b, 0, 4, 1, 5), i32x4.shuffle(a, b, 2, 6, 3, 7));
  const cd = f32x4.add(i32x4.shuffle(c, d, 0, 4, 1, 5), i32x4.shuffle(c, d, 2, 6, 3, 7));
  return f32x4.add(i32x4.shuffle(ab, cd, 0, 1, 4, 5), i32x4.shuffle(ab, cd, 2, 3, 6, 7));
}

/** x (D,) · y (D,) over what four does not divide. */
function rest(x: usize, y: usize, D: i32): f32 {
  let sum: f32 = 0;
  for (let c = D & ~3; c < D; c++) {
    sum += load<f32>(x + ((<usize>c) << 2)) * load<f32>(y + ((<usize>c) << 2));
  }
  return sum;
}

/** Scores of four rows of `q` (4, D) against n keys: (4, BLOCK) at `s`. Two keys at a time are eight sums. */
export function scoresOfRows(q: usize, k: usize, n: i32, D: i32, s: usize): void {
  const bytes = (<usize>D) << 2;
  const vectors = bytes & ~15;
  const q1 = q + bytes;
  const q2 = q1 + bytes;
  const q3 = q2 + bytes;
  for (let j = 0; j < n; j += 2) {
    // An odd last key is taken twice.
    const next = j + 1 < n ? k + bytes : k;
    let a0 = f32x4.splat(0);
    let a1 = f32x4.splat(0);
    let b0 = f32x4.splat(0);
    let b1 = f32x4.splat(0);
    let c0 = f32x4.splat(0);
    let c1 = f32x4.splat(0);
    let d0 = f32x4.splat(0);
    let d1 = f32x4.splat(0);
    for (let at: usize = 0; at < vectors; at += 16) {
      const x = v128.load(k + at);
      const y = v128.load(next + at);
      let w = v128.load(q + at);
      a0 = madd(x, w, a0);
      a1 = madd(y, w, a1);
      w = v128.load(q1 + at);
      b0 = madd(x, w, b0);
      b1 = madd(y, w, b1);
      w = v128.load(q2 + at);
      c0 = madd(x, w, c0);
      c1 = madd(y, w, c1);
      w = v128.load(q3 + at);
      d0 = madd(x, w, d0);
      d1 = madd(y, w, d1);
    }
    let x = sumsOf(a0, b0, c0, d0);
    let y = sumsOf(a1, b1, c1, d1);
    if (vectors < bytes) {
      x = f32x4.add(x, f32x4(rest(q, k, D), rest(q1, k, D), rest(q2, k, D), rest(q3, k, D)));
      y = f32x4.add(y, f32x4(rest(q, next, D), rest(q1, next, D), rest(q2, next, D), rest(q3, next, D)));
    }
    const to = s + ((<usize>j) << 2);
    v128.store64_lane(to, i32x4.shuffle(x, y, 0, 4, 1, 5), 0);
    v128.store64_lane(to + ROW, i32x4.shuffle(x, y, 0, 4, 1, 5), 1);
    v128.store64_lane(to + 2 * ROW, i32x4.shuffle(x, y, 2, 6, 3, 7), 0);
    v128.store64_lane(to + 3 * ROW, i32x4.shuffle(x, y, 2, 6, 3, 7), 1);
    k += 2 * bytes;
  }
}

/** Scores of one row against n keys: (BLOCK,) at `s`. Four keys at a time, and what is left is taken again. */
export function scoresOfRow(q: usize, k: usize, n: i32, D: i32, s: usize): void {
  const bytes = (<usize>D) << 2;
  const vectors = bytes & ~15;
  for (let j = 0; j < n; j += 4) {
    const k1 = j + 1 < n ? k + bytes : k;
    const k2 = j + 2 < n ? k + 2 * bytes : k;
    const k3 = j + 3 < n ? k + 3 * bytes : k;
    let a = f32x4.splat(0);
    let b = f32x4.splat(0);
    let c = f32x4.splat(0);
    let d = f32x4.splat(0);
    for (let at: usize = 0; at < vectors; at += 16) {
      const w = v128.load(q + at);
      a = madd(w, v128.load(k + at), a);
      b = madd(w, v128.load(k1 + at), b);
      c = madd(w, v128.load(k2 + at), c);
      d = madd(w, v128.load(k3 + at), d);
    }
    let x = sumsOf(a, b, c, d);
    if (vectors < bytes) {
      x = f32x4.add(x, f32x4(rest(q, k, D), rest(q, k1, D), rest(q, k2, D), rest(q, k3, D)));
    }
    v128.store(s + ((<usize>j) << 2), x);
    k += 4 * bytes;
  }
}

/** Four rows of sums (4, Dv) · shrink (4) + weights (4, BLOCK) · V (n, Dv): eight channels at a time. */
export function sumRows(sums: usize, p: usize, v: usize, n: i32, Dv: i32, shrink: usize): void {
  const bytes = (<usize>Dv) << 2;
  const end = p + ((<usize>n) << 2);
  const s1 = sums + bytes;
  const s2 = s1 + bytes;
  const s3 = s2 + bytes;
  const wide = bytes & ~31;
  for (let at: usize = 0; at < wide; at += 32) {
    let w = v128.load32_splat(shrink);
    let a0 = f32x4.mul(w, v128.load(sums + at));
    let a1 = f32x4.mul(w, v128.load(sums + at, 16));
    w = v128.load32_splat(shrink, 4);
    let b0 = f32x4.mul(w, v128.load(s1 + at));
    let b1 = f32x4.mul(w, v128.load(s1 + at, 16));
    w = v128.load32_splat(shrink, 8);
    let c0 = f32x4.mul(w, v128.load(s2 + at));
    let c1 = f32x4.mul(w, v128.load(s2 + at, 16));
    w = v128.load32_splat(shrink, 12);
    let d0 = f32x4.mul(w, v128.load(s3 + at));
    let d1 = f32x4.mul(w, v128.load(s3 + at, 16));
    let value = v + at;
    for (let j = p; j < end; j += 4) {
      const x = v128.load(value);
      const y = v128.load(value, 16);
      w = v128.load32_splat(j);
      a0 = madd(x, w, a0);
      a1 = madd(y, w, a1);
      w = v128.load32_splat(j + ROW);
      b0 = madd(x, w, b0);
      b1 = madd(y, w, b1);
      w = v128.load32_splat(j + 2 * ROW);
      c0 = madd(x, w, c0);
      c1 = madd(y, w, c1);
      w = v128.load32_splat(j + 3 * ROW);
      d0 = madd(x, w, d0);
      d1 = madd(y, w, d1);
      value += bytes;
    }
    v128.store(sums + at, a0);
    v128.store(sums + at, a1, 16);
    v128.store(s1 + at, b0);
    v128.store(s1 + at, b1, 16);
    v128.store(s2 + at, c0);
    v128.store(s2 + at, c1, 16);
    v128.store(s3 + at, d0);
    v128.store(s3 + at, d1, 16);
  }
  for (let r: usize = 0; r < 4; r++) {
    sumRow(sums + r * bytes, p + r * ROW, v, n, Dv, <i32>(wide >> 2), shrink + r * 4);
  }
}

/** One row of sums from channel `from` on: sixteen channels at a time, then four, then one by one. */
export function sumRow(sums: usize, p: usize, v: usize, n: i32, Dv: i32, from: i32, shrink: usize): void {
  const bytes = (<usize>Dv) << 2;
  const end = p + ((<usize>n) << 2);
  const factor = v128.load32_splat(shrink);
  let at = (<usize>from) << 2;
  for (; at + 64 <= bytes; at += 64) {
    const to = sums + at;
    let a = f32x4.mul(factor, v128.load(to));
    let b = f32x4.mul(factor, v128.load(to, 16));
    let c = f32x4.mul(factor, v128.load(to, 32));
    let d = f32x4.mul(factor, v128.load(to, 48));
    let value = v + at;
    for (let j = p; j < end; j += 4) {
      const w = v128.load32_splat(j);
      a = madd(w, v128.load(value), a);
      b = madd(w, v128.load(value, 16), b);
      c = madd(w, v128.load(value, 32), c);
      d = madd(w, v128.load(value, 48), d);
      value += bytes;
    }
    v128.store(to, a);
    v128.store(to, b, 16);
    v128.store(to, c, 32);
    v128.store(to, d, 48);
  }
  for (; at + 16 <= bytes; at += 16) {
    let a = f32x4.mul(factor, v128.load(sums + at));
    let value = v + at;
    for (let j = p; j < end; j += 4) {
      a = madd(v128.load32_splat(j), v128.load(value), a);
      value += bytes;
    }
    v128.store(sums + at, a);
  }
  for (; at < bytes; at += 4) {
    let a = load<f32>(shrink) * load<f32>(sums + at);
    let value = v + at;
    for (let j = p; j < end; j += 4) {
      a += load<f32>(j) * load<f32>(value);
      value += bytes;
    }
    store<f32>(sums + at, a);
  }
}

/** The same where values may be no numbers: a key that is marked in `hidden` (n) is left out. */
export function sumVisibleRow(
  sums: usize,
  p: usize,
  hidden: usize,
  v: usize,
  n: i32,
  Dv: i32,
  shrink: usize,
): void {
  const factor = load<f32>(shrink);
  for (let c = 0; c < Dv; c++) {
    let a = factor * load<f32>(sums);
    for (let j = 0; j < n; j++) {
      const at = (<usize>j) << 2;
      if (!load<i32>(hidden + at)) a += load<f32>(p + at) * load<f32>(v + ((<usize>(j * Dv + c)) << 2));
    }
    store<f32>(sums, a);
    sums += 4;
  }
}
