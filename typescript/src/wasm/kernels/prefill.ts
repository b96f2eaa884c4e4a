/**
 * Attention of eight queries over a panel of keys, with an online softmax that goes on from panel to panel.
 *
 * The state of a tile, in bytes: 0 the largest scores m (8), 32 the sums l of e^(s - m) (8), 64 the first
 * visible key and 96 the one after the last (8 each, int32), 128 whether a key was seen (8), 160 the sums of
 * e^(s - m) · v, (Dv, 8).
 */

import { addBias, cap, clip, hide, look, mark, maximum } from "./mask";
import { turned } from "./pack";
import { scoresOfSix, sumsOfFour, sumsOfOne, sumsOfSix, sumsOfVisible } from "./tile";
import { allFinite, BLOCK, exp } from "./vector";

const RANGE: usize = 64;
const SEEN: usize = 128;
export const SUMS: usize = 160;
/** Room for a block's scores and its marks, and two vectors of eight beside them. */
const MARKS: usize = <usize>BLOCK * 32;
const TOP: usize = 2 * MARKS;
const SHRINK: usize = TOP + 32;

/**
 * Goes over `keys` keys at `k` (keys, D) and `v` (keys, Dv), of which the first is number `first` of its row.
 *
 * K is read up to the next multiple of six keys, and nothing comes of what lies beyond.
 *
 * @param q packed queries (D, 8)
 * @param work room for two blocks of scores and two vectors
 * @param held how many keys there are from `k` on, of which `keys` are attended to
 * @param finite a byte for each block held: whether its values are all finite, 0 = not known, 1 = yes, 2 = no
 * @param from, to the keys that all rows see
 * @param softcap 0 = none
 * @param bias, mask (8, BLOCK), for at most one block of keys; 0 = none
 * @param sinks whether somebody will ask what was seen
 */
export function attend(
  state: usize,
  q: usize,
  k: usize,
  v: usize,
  first: i32,
  keys: i32,
  held: i32,
  D: i32,
  Dv: i32,
  work: usize,
  finite: usize,
  from: i32,
  to: i32,
  softcap: f32,
  bias: usize,
  mask: usize,
  sinks: bool,
): void {
  const plain = softcap === 0 && bias === 0 && mask === 0;
  for (let at = 0; at < keys; at += BLOCK) {
    const n = min(BLOCK, keys - at);
    const K = k + ((<usize>at * D) << 2);
    const V = v + ((<usize>at * Dv) << 2);
    const clipped = first + at < from || first + at + n > to;
    const fused = plain && !clipped && n % 6 === 0;

    scores(state, q, K, n, D, work, first + at, clipped, softcap, bias, mask);
    if (!fused) {
      v128.store(work + TOP, v128.load(state));
      v128.store(work + TOP, v128.load(state, 16), 16);
      maximum(work, n, work + TOP);
    }
    if (sinks) look(work, n, state + SEEN);
    rescale(state, work);

    const someAreZero = weigh(state, work, n);
    if (someAreZero && !knownFinite(finite, V, min(BLOCK, held - at) * Dv)) {
      // Perhaps a hidden slot has a value that is no number: the scores once more, to see which are hidden.
      scores(state, q, K, n, D, work, first + at, clipped, softcap, bias, mask);
      mark(work, work + ((<usize>n) << 5), work + MARKS);
      weighAgain(state, work, n);
      for (let c = 0; c < Dv; c++) {
        const sums = state + SUMS + c * 32;
        sumsOfVisible(work, work + MARKS, V + c * 4, n, Dv, sums, work + SHRINK);
      }
    } else {
      sumUp(state + SUMS, work, V, n, Dv, work + SHRINK);
    }
    finite += 1;
  }
}

/** Scores of n keys, capped, biased and masked, and the maximum of those that were not masked. */
function scores(
  state: usize,
  q: usize,
  k: usize,
  n: i32,
  D: i32,
  work: usize,
  first: i32,
  clipped: bool,
  softcap: f32,
  bias: usize,
  mask: usize,
): void {
  v128.store(work + TOP, v128.load(state));
  v128.store(work + TOP, v128.load(state, 16), 16);
  for (let j = 0; j < n; j += 6) scoresOfSix(q, k + ((<usize>(j * D)) << 2), D, work + j * 32, work + TOP);
  if (softcap !== 0) cap(work, work + ((<usize>n) << 5), softcap);
  if (bias) addBias(work, n, bias, BLOCK);
  if (mask) hide(work, n, mask, BLOCK);
  if (clipped) clip(work, n, first, state + RANGE);
}

/** The new maximum becomes that of the state; l shrinks at once, and the sums will by what is at SHRINK. */
function rescale(state: usize, work: usize): void {
  for (let half: usize = 0; half < 32; half += 16) {
    const top = v128.load(work + half, TOP);
    const shrink = exp(f32x4.sub(v128.load(state + half), shiftOf(top)));
    v128.store(work + half, shrink, SHRINK);
    v128.store(state + half, f32x4.mul(v128.load(state + half, 32), shrink), 32);
    v128.store(state + half, top);
  }
}

/** What scores are taken relative to: the maximum, or 0 where there is none, since -inf - -inf is NaN. */
function shiftOf(top: v128): v128 {
  return v128.andnot(top, f32x4.eq(top, f32x4.splat(-Infinity)));
}

/** Scores become weights e^(s - m), whose sum joins l; whether one of them is 0. */
function weigh(state: usize, s: usize, n: i32): bool {
  const m0 = shiftOf(v128.load(state));
  const m1 = shiftOf(v128.load(state, 16));
  let l0 = v128.load(state, 32);
  let l1 = v128.load(state, 48);
  let least0 = f32x4.splat(1);
  let least1 = f32x4.splat(1);
  const end = s + ((<usize>n) << 5);
  for (; s < end; s += 32) {
    const p0 = exp(f32x4.sub(v128.load(s), m0));
    const p1 = exp(f32x4.sub(v128.load(s, 16), m1));
    v128.store(s, p0);
    v128.store(s, p1, 16);
    l0 = f32x4.add(l0, p0);
    l1 = f32x4.add(l1, p1);
    // A weight that is NaN is passed over: its row may have zeros too, and so may the other rows.
    least0 = f32x4.pmin(least0, p0);
    least1 = f32x4.pmin(least1, p1);
  }
  v128.store(state, l0, 32);
  v128.store(state, l1, 48);
  return v128.any_true(f32x4.eq(f32x4.pmin(least0, least1), f32x4.splat(0)));
}

/** The same weights once more, when l has them already. */
function weighAgain(state: usize, s: usize, n: i32): void {
  const l0 = v128.load(state, 32);
  const l1 = v128.load(state, 48);
  weigh(state, s, n);
  v128.store(state, l0, 32);
  v128.store(state, l1, 48);
}

function knownFinite(finite: usize, v: usize, n: i32): bool {
  let known = load<u8>(finite);
  if (known === 0) {
    known = allFinite(v, n) ? 1 : 2;
    store<u8>(finite, known);
  }
  return known === 1;
}

/** sums (Dv, 8) · shrink + weights (n, 8) · V (n, Dv): by six channels, by four, and one by one. */
function sumUp(sums: usize, p: usize, v: usize, n: i32, Dv: i32, shrink: usize): void {
  let left = Dv;
  // What six does not divide is left to fours where it can be: eight rather than two.
  const fours = Dv % 6 === 2 && Dv >= 8 ? 8 : Dv % 6;
  while (left > fours) {
    sumsOfSix(p, v, n, Dv, sums, shrink);
    left -= 6;
    v += 24;
    sums += 192;
  }
  while (left >= 4) {
    sumsOfFour(p, v, n, Dv, sums, shrink);
    left -= 4;
    v += 16;
    sums += 128;
  }
  while (left > 0) {
    sumsOfOne(p, v, n, Dv, sums, shrink);
    left -= 1;
    v += 4;
    sums += 32;
  }
}

/** sums / l to `rows` rows of `output` (rows, Dv); a row that saw no key is 0 whatever l is. */
export function finish(state: usize, rows: i32, Dv: i32, sinks: bool, output: usize): void {
  const bytes = (<usize>Dv) << 2;
  for (let half: usize = 0; half < 2; half++) {
    const lanes = min(4, rows - <i32>half * 4);
    if (lanes <= 0) return;
    const l = v128.load(state + half * 16, 32);
    const empty = sinks ? v128.not(v128.load(state + half * 16, SEEN)) : f32x4.eq(l, f32x4.splat(0));
    let from = state + SUMS + half * 16;
    let at: usize = 0;
    for (; at + 16 <= bytes; at += 16) {
      const a = v128.andnot(f32x4.div(v128.load(from), l), empty);
      const b = v128.andnot(f32x4.div(v128.load(from, 32), l), empty);
      const c = v128.andnot(f32x4.div(v128.load(from, 64), l), empty);
      const d = v128.andnot(f32x4.div(v128.load(from, 96), l), empty);
      const to = output + at;
      v128.store(to, turned(a, b, c, d, 0));
      if (lanes > 1) v128.store(to + bytes, turned(a, b, c, d, 1));
      if (lanes > 2) v128.store(to + 2 * bytes, turned(a, b, c, d, 2));
      if (lanes > 3) v128.store(to + 3 * bytes, turned(a, b, c, d, 3));
      from += 128;
    }
    for (; at < bytes; at += 4) {
      const x = v128.andnot(f32x4.div(v128.load(from), l), empty);
      const to = output + at;
      v128.store32_lane(to, x, 0);
      if (lanes > 1) v128.store32_lane(to + bytes, x, 1);
      if (lanes > 2) v128.store32_lane(to + 2 * bytes, x, 2);
      if (lanes > 3) v128.store32_lane(to + 3 * bytes, x, 3);
      from += 32;
    }
    output += 4 * bytes;
  }
}
