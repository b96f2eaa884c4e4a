/**
 * What happens to the scores of a tile, (keys, 8), between the product and the softmax. A hidden slot gets -inf
 * by selection, whatever its score was.
 */

import { tanh } from "./vector";

/** c · tanh(s / c) of the scores from `s` to `end`, and up to the next four. */
export function cap(s: usize, end: usize, c: f32): void {
  const cap = f32x4.splat(c);
  for (; s < end; s += 16) v128.store(s, f32x4.mul(cap, tanh(f32x4.div(v128.load(s), cap))));
}

/** Adds a bias (8, stride), row by row; where it is -inf the slot is hidden, whatever the score. */
export function addBias(s: usize, keys: i32, bias: usize, stride: i32): void {
  const none = f32x4.splat(-Infinity);
  const bytes = (<usize>stride) << 2;
  const end = s + ((<usize>keys) << 5);
  for (; s < end; s += 32) {
    for (let half = 0; half < 2; half++) {
      const row = bias + (half ? 4 * bytes : 0);
      let b = v128.load32_zero(row);
      b = v128.load32_lane(row + bytes, b, 1);
      b = v128.load32_lane(row + 2 * bytes, b, 2);
      b = v128.load32_lane(row + 3 * bytes, b, 3);
      const at = s + half * 16;
      v128.store(at, v128.bitselect(none, f32x4.add(v128.load(at), b), f32x4.eq(b, none)));
    }
    bias += 4;
  }
}

/** Hides what a mask (8, stride) of bytes has 0 for. */
export function hide(s: usize, keys: i32, mask: usize, stride: i32): void {
  for (let j = 0; j < keys; j++) {
    for (let r = 0; r < 8; r++) {
      if (!load<u8>(mask + r * stride + j)) store<f32>(s + r * 4, -Infinity);
    }
    s += 32;
  }
}

/** Hides the keys, counted from `first` on, that are outside [from, to) of their row: `range` is two (8). */
export function clip(s: usize, keys: i32, first: i32, range: usize): void {
  const none = f32x4.splat(-Infinity);
  const from0 = v128.load(range);
  const from1 = v128.load(range, 16);
  const to0 = v128.load(range, 32);
  const to1 = v128.load(range, 48);
  for (let j = first; j < first + keys; j++) {
    const at = i32x4.splat(j);
    const in0 = v128.and(i32x4.ge_s(at, from0), i32x4.lt_s(at, to0));
    const in1 = v128.and(i32x4.ge_s(at, from1), i32x4.lt_s(at, to1));
    v128.store(s, v128.bitselect(v128.load(s), none, in0));
    v128.store(s, v128.bitselect(v128.load(s, 16), none, in1), 16);
    s += 32;
  }
}

/** Marks in `hidden` which slots from `s` to `end` are, for weighted sums that must not read their values. */
export function mark(s: usize, end: usize, hidden: usize): void {
  const none = f32x4.splat(-Infinity);
  for (; s < end; s += 16) {
    v128.store(hidden, f32x4.eq(v128.load(s), none));
    hidden += 16;
  }
}

/** The maximum of each lane and of what stands at `top` (8), to `top`. */
export function maximum(s: usize, keys: i32, top: usize): void {
  let a = v128.load(top);
  let b = v128.load(top, 16);
  const end = s + ((<usize>keys) << 5);
  for (; s < end; s += 32) {
    a = f32x4.pmax(a, v128.load(s));
    b = f32x4.pmax(b, v128.load(s, 16));
  }
  v128.store(top, a);
  v128.store(top, b, 16);
}

/** Notes in `seen` (8) which lanes have a slot that is not hidden. */
export function look(s: usize, keys: i32, seen: usize): void {
  const none = f32x4.splat(-Infinity);
  let a = v128.load(seen);
  let b = v128.load(seen, 16);
  const end = s + ((<usize>keys) << 5);
  for (; s < end; s += 32) {
    a = v128.or(a, f32x4.ne(v128.load(s), none));
    b = v128.or(b, f32x4.ne(v128.load(s, 16), none));
  }
  v128.store(seen, a);
  v128.store(seen, b, 16);
}

/** {@link addBias} of one row (n,) whose scores lie side by side. */
export function addRowBias(s: usize, n: i32, bias: usize): void {
  for (let j = 0; j < n; j++) {
    const b = load<f32>(bias);
    store<f32>(s, b === -Infinity ? b : load<f32>(s) + b);
    s += 4;
    bias += 4;
  }
}

/** {@link hide} of one row. */
export function hideRow(s: usize, n: i32, mask: usize): void {
  for (let j = 0; j < n; j++) {
    if (!load<u8>(mask + j)) store<f32>(s, -Infinity);
    s += 4;
  }
}

/** {@link clip} of one row. */
export function clipRow(s: usize, n: i32, first: i32, from: i32, to: i32): void {
  for (let j = 0; j < min(n, from - first); j++) store<f32>(s + ((<usize>j) << 2), -Infinity);
  for (let j = max(0, to - first); j < n; j++) store<f32>(s + ((<usize>j) << 2), -Infinity);
}

/** Whether a slot of the row is not hidden; n is a multiple of 4. */
export function lookRow(s: usize, n: i32): bool {
  const none = f32x4.splat(-Infinity);
  let any = f32x4.splat(0);
  const end = s + ((<usize>n) << 2);
  for (; s < end; s += 16) any = v128.or(any, f32x4.ne(v128.load(s), none));
  return v128.any_true(any);
}
