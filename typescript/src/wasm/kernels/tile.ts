/**
 * The register tiles: eight queries, one a lane in two vectors, by six keys or channels.
 *
 * Q lies transposed, (D, 8); K and V as they came, row-major, and each of their numbers is broadcast straight
 * from memory. Twelve sums hide the latency of the multiply-add, and with two vectors of queries and a broadcast
 * they fill the fifteen registers that an engine has. The engine unrolls these loops itself.
 */

import { madd } from "./vector";

/**
 * Scores of six keys, rows of D numbers at `k`, to `s` (6, 8); their maximum, and that at `top` (8), to `top`.
 */
export function scoresOfSix(q: usize, k: usize, D: i32, s: usize, top: usize): void {
  const bytes = (<usize>D) << 2;
  const k1 = k + bytes;
  const k2 = k + 2 * bytes;
  const k3 = k + 3 * bytes;
  const k4 = k + 4 * bytes;
  const k5 = k + 5 * bytes;
  let a0 = f32x4.splat(0);
  let a1 = f32x4.splat(0);
  let b0 = f32x4.splat(0);
  let b1 = f32x4.splat(0);
  let c0 = f32x4.splat(0);
  let c1 = f32x4.splat(0);
  let d0 = f32x4.splat(0);
  let d1 = f32x4.splat(0);
  let e0 = f32x4.splat(0);
  let e1 = f32x4.splat(0);
  let f0 = f32x4.splat(0);
  let f1 = f32x4.splat(0);
  for (let at: usize = 0; at < bytes; at += 4) {
    const x = v128.load(q);
    const y = v128.load(q, 16);
    let w = v128.load32_splat(k + at);
    a0 = madd(x, w, a0);
    a1 = madd(y, w, a1);
    w = v128.load32_splat(k1 + at);
    b0 = madd(x, w, b0);
    b1 = madd(y, w, b1);
    w = v128.load32_splat(k2 + at);
    c0 = madd(x, w, c0);
    c1 = madd(y, w, c1);
    w = v128.load32_splat(k3 + at);
    d0 = madd(x, w, d0);
    d1 = madd(y, w, d1);
    w = v128.load32_splat(k4 + at);
    e0 = madd(x, w, e0);
    e1 = madd(y, w, e1);
    w = v128.load32_splat(k5 + at);
    f0 = madd(x, w, f0);
    f1 = madd(y, w, f1);
    q += 32;
  }
  v128.store(s, a0);
  v128.store(s, a1, 16);
  v128.store(s, b0, 32);
  v128.store(s, b1, 48);
  v128.store(s, c0, 64);
  v128.store(s, c1, 80);
  v128.store(s, d0, 96);
  v128.store(s, d1, 112);
  v128.store(s, e0, 128);
  v128.store(s, e1, 144);
  v128.store(s, f0, 160);
  v128.store(s, f1, 176);
  a0 = f32x4.pmax(f32x4.pmax(a0, b0), f32x4.pmax(c0, d0));
  a0 = f32x4.pmax(a0, f32x4.pmax(e0, f0));
  v128.store(top, f32x4.pmax(v128.load(top), a0));
  a1 = f32x4.pmax(f32x4.pmax(a1, b1), f32x4.pmax(c1, d1));
  a1 = f32x4.pmax(a1, f32x4.pmax(e1, f1));
  v128.store(top, f32x4.pmax(v128.load(top, 16), a1), 16);
}

/**
 * sums · shrink + weights · values for six channels: weights `p` (keys, 8), values rows of Dv numbers at `v`,
 * `sums` (6, 8), `shrink` (8).
 */
export function sumsOfSix(p: usize, v: usize, keys: i32, Dv: i32, sums: usize, shrink: usize): void {
  const bytes = (<usize>Dv) << 2;
  const end = p + ((<usize>keys) << 5);
  const s0 = v128.load(shrink);
  const s1 = v128.load(shrink, 16);
  let a0 = f32x4.mul(v128.load(sums), s0);
  let a1 = f32x4.mul(v128.load(sums, 16), s1);
  let b0 = f32x4.mul(v128.load(sums, 32), s0);
  let b1 = f32x4.mul(v128.load(sums, 48), s1);
  let c0 = f32x4.mul(v128.load(sums, 64), s0);
  let c1 = f32x4.mul(v128.load(sums, 80), s1);
  let d0 = f32x4.mul(v128.load(sums, 96), s0);
  let d1 = f32x4.mul(v128.load(sums, 112), s1);
  let e0 = f32x4.mul(v128.load(sums, 128), s0);
  let e1 = f32x4.mul(v128.load(sums, 144), s1);
  let f0 = f32x4.mul(v128.load(sums, 160), s0);
  let f1 = f32x4.mul(v128.load(sums, 176), s1);
  while (p < end) {
    const x = v128.load(p);
    const y = v128.load(p, 16);
    let w = v128.load32_splat(v);
    a0 = madd(x, w, a0);
    a1 = madd(y, w, a1);
    w = v128.load32_splat(v, 4);
    b0 = madd(x, w, b0);
    b1 = madd(y, w, b1);
    w = v128.load32_splat(v, 8);
    c0 = madd(x, w, c0);
    c1 = madd(y, w, c1);
    w = v128.load32_splat(v, 12);
    d0 = madd(x, w, d0);
    d1 = madd(y, w, d1);
    w = v128.load32_splat(v, 16);
    e0 = madd(x, w, e0);
    e1 = madd(y, w, e1);
    w = v128.load32_splat(v, 20);
    f0 = madd(x, w, f0);
    f1 = madd(y, w, f1);
    p += 32;
    v += bytes;
  }
  v128.store(sums, a0);
  v128.store(sums, a1, 16);
  v128.store(sums, b0, 32);
  v128.store(sums, b1, 48);
  v128.store(sums, c0, 64);
  v128.store(sums, c1, 80);
  v128.store(sums, d0, 96);
  v128.store(sums, d1, 112);
  v128.store(sums, e0, 128);
  v128.store(sums, e1, 144);
  v128.store(sums, f0, 160);
  v128.store(sums, f1, 176);
}

/**
 * The same for four channels.
 */
export function sumsOfFour(p: usize, v: usize, keys: i32, Dv: i32, sums: usize, shrink: usize): void {
  const bytes = (<usize>Dv) << 2;
  const end = p + ((<usize>keys) << 5);
  const s0 = v128.load(shrink);
  const s1 = v128.load(shrink, 16);
  let a0 = f32x4.mul(v128.load(sums), s0);
  let a1 = f32x4.mul(v128.load(sums, 16), s1);
  let b0 = f32x4.mul(v128.load(sums, 32), s0);
  let b1 = f32x4.mul(v128.load(sums, 48), s1);
  let c0 = f32x4.mul(v128.load(sums, 64), s0);
  let c1 = f32x4.mul(v128.load(sums, 80), s1);
  let d0 = f32x4.mul(v128.load(sums, 96), s0);
  let d1 = f32x4.mul(v128.load(sums, 112), s1);
  while (p < end) {
    const x = v128.load(p);
    const y = v128.load(p, 16);
    let w = v128.load32_splat(v);
    a0 = madd(x, w, a0);
    a1 = madd(y, w, a1);
    w = v128.load32_splat(v, 4);
    b0 = madd(x, w, b0);
    b1 = madd(y, w, b1);
    w = v128.load32_splat(v, 8);
    c0 = madd(x, w, c0);
    c1 = madd(y, w, c1);
    w = v128.load32_splat(v, 12);
    d0 = madd(x, w, d0);
    d1 = madd(y, w, d1);
    p += 32;
    v += bytes;
  }
  v128.store(sums, a0);
  v128.store(sums, a1, 16);
  v128.store(sums, b0, 32);
  v128.store(sums, b1, 48);
  v128.store(sums, c0, 64);
  v128.store(sums, c1, 80);
  v128.store(sums, d0, 96);
  v128.store(sums, d1, 112);
}

/**
 * The same for one channel.
 */
export function sumsOfOne(p: usize, v: usize, keys: i32, Dv: i32, sums: usize, shrink: usize): void {
  const bytes = (<usize>Dv) << 2;
  const end = p + ((<usize>keys) << 5);
  const s0 = v128.load(shrink);
  const s1 = v128.load(shrink, 16);
  let a0 = f32x4.mul(v128.load(sums), s0);
  let a1 = f32x4.mul(v128.load(sums, 16), s1);
  while (p < end) {
    const x = v128.load(p);
    const y = v128.load(p, 16);
    const w = v128.load32_splat(v);
    a0 = madd(x, w, a0);
    a1 = madd(y, w, a1);
    p += 32;
    v += bytes;
  }
  v128.store(sums, a0);
  v128.store(sums, a1, 16);
}

/**
 * The same for one channel where values may be no numbers: a weight whose slot is marked in `hidden` (keys, 8)
 * is left out instead of multiplied, since 0 times NaN would be NaN.
 */
export function sumsOfVisible(
  p: usize,
  hidden: usize,
  v: usize,
  keys: i32,
  Dv: i32,
  sums: usize,
  shrink: usize,
): void {
  const bytes = (<usize>Dv) << 2;
  const end = p + ((<usize>keys) << 5);
  let a0 = f32x4.mul(v128.load(sums), v128.load(shrink));
  let a1 = f32x4.mul(v128.load(sums, 16), v128.load(shrink, 16));
  while (p < end) {
    const w = v128.load32_splat(v);
    a0 = v128.bitselect(a0, madd(v128.load(p), w, a0), v128.load(hidden));
    a1 = v128.bitselect(a1, madd(v128.load(p, 16), w, a1), v128.load(hidden, 16));
    p += 32;
    hidden += 32;
    v += bytes;
  }
  v128.store(sums, a0);
  v128.store(sums, a1, 16);
}
