/**
 * Attention of at most four queries that share their keys, as in decoding with grouped heads.
 *
 * Lanes are channels in the products and the weighted sum, and keys in the softmax: eight lanes of queries would
 * be mostly empty. Each vector of K and V is loaded once for all four queries.
 *
 * The state is that of a tile (prefill.ts), with the sums row-major, (rows, Dv). Scores are (rows, BLOCK).
 */

import { addRowBias, cap, clipRow, hideRow, lookRow, mark } from "./mask";
import { SUMS } from "./prefill";
import { ROW, scoresOfRow, scoresOfRows, sumRow, sumRows, sumVisibleRow } from "./row";
import { allFinite, BLOCK, exp } from "./vector";

/** Behind the scores of four rows: the marks of what is hidden, and how much the sums of each row shrink. */
const MARKS: usize = 4 * ROW;
const SHRINK: usize = 8 * ROW;

/** As `attend`, for 1 or 4 rows of `q` (rows, D), which are scaled; bias and mask are (rows, BLOCK). */
export function decode(
  state: usize,
  q: usize,
  rows: i32,
  k: usize,
  v: usize,
  first: i32,
  keys: i32,
  D: i32,
  Dv: i32,
  work: usize,
  softcap: f32,
  bias: usize,
  mask: usize,
): void {
  for (let at = 0; at < keys; at += BLOCK) {
    const n = min(BLOCK, keys - at);
    const K = k + ((<usize>(at * D)) << 2);
    const V = v + ((<usize>(at * Dv)) << 2);
    if (rows === 1) scoresOfRow(q, K, n, D, work);
    else scoresOfRows(q, K, n, D, work);

    let someAreZero = false;
    for (let r: usize = 0; r < <usize>rows; r++) {
      const s = work + r * ROW;
      if (softcap !== 0) cap(s, s + ((<usize>n) << 2), softcap);
      // Up to the next four keys nothing is visible.
      for (let j = n; j & 3; j++) store<f32>(s + ((<usize>j) << 2), -Infinity);
      const whole = (n + 3) & ~3;
      if (bias) addRowBias(s, n, bias + r * ROW);
      if (mask) hideRow(s, n, mask + r * BLOCK);
      clipRow(s, n, first + at, load<i32>(state + r * 4, 64), load<i32>(state + r * 4, 96));
      if (lookRow(s, whole)) store<i32>(state + r * 4, -1, 128);
      mark(s, s + ((<usize>whole) << 2), s + MARKS);
      if (weighRow(state + r * 4, s, whole, work + SHRINK + r * 4)) someAreZero = true;
    }

    if (someAreZero && !allFinite(V, n * Dv)) {
      for (let r: usize = 0; r < <usize>rows; r++) {
        const s = work + r * ROW;
        sumVisibleRow(state + SUMS + ((r * Dv) << 2), s, s + MARKS, V, n, Dv, work + SHRINK + r * 4);
      }
    } else if (rows === 1) {
      sumRow(state + SUMS, work, V, n, Dv, 0, work + SHRINK);
    } else {
      sumRows(state + SUMS, work, V, n, Dv, work + SHRINK);
    }
  }
}

/** Scores of one row become weights; m and l of its state go on, `shrink` is for its sums. Whether one is 0. */
function weighRow(state: usize, s: usize, n: i32, shrink: usize): bool {
  const end = s + ((<usize>n) << 2);
  const before = load<f32>(state);
  let top = f32x4.splat(before);
  for (let at = s; at < end; at += 16) top = f32x4.pmax(top, v128.load(at));
  top = f32x4.pmax(top, i32x4.shuffle(top, top, 2, 3, 0, 1));
  top = f32x4.pmax(top, i32x4.shuffle(top, top, 1, 0, 3, 2));
  const shift = v128.andnot(top, f32x4.eq(top, f32x4.splat(-Infinity)));
  const factor = f32x4.extract_lane(exp(f32x4.sub(f32x4.splat(before), shift)), 0);
  let sum = f32x4.splat(0);
  let least = f32x4.splat(1);
  for (let at = s; at < end; at += 16) {
    const p = exp(f32x4.sub(v128.load(at), shift));
    v128.store(at, p);
    sum = f32x4.add(sum, p);
    least = f32x4.pmin(least, p);
  }
  sum = f32x4.add(sum, i32x4.shuffle(sum, sum, 2, 3, 0, 1));
  sum = f32x4.add(sum, i32x4.shuffle(sum, sum, 1, 0, 3, 2));
  v128.store32_lane(state, top, 0);
  store<f32>(state, load<f32>(state, 32) * factor + f32x4.extract_lane(sum, 0), 32);
  store<f32>(shrink, factor);
  return v128.any_true(f32x4.eq(least, f32x4.splat(0)));
}

/** sums / l of each row to `output` (rows, Dv); a row that saw no key is 0 whatever l is. */
export function finishRows(state: usize, rows: i32, Dv: i32, output: usize): void {
  let from = state + SUMS;
  for (let r = 0; r < rows; r++) {
    const l = load<f32>(state + r * 4, 32);
    const seen = load<i32>(state + r * 4, 128) !== 0;
    for (let c = 0; c < Dv; c++) {
      store<f32>(output, seen ? load<f32>(from) / l : 0);
      from += 4;
      output += 4;
    }
  }
}
