/** Four by four numbers, turned: how queries become lanes, and lanes become rows of the output. */

/** Vector n of four, of which each holds one lane of the others: 0 takes the first lane of each, and so on. */
export function turned(a: v128, b: v128, c: v128, d: v128, n: i32): v128 {
  if (n < 2) {
    const ab = i32x4.shuffle(a, b, 0, 4, 1, 5);
    const cd = i32x4.shuffle(c, d, 0, 4, 1, 5);
    return n === 0 ? i32x4.shuffle(ab, cd, 0, 1, 4, 5) : i32x4.shuffle(ab, cd, 2, 3, 6, 7);
  }
  const ab = i32x4.shuffle(a, b, 2, 6, 3, 7);
  const cd = i32x4.shuffle(c, d, 2, 6, 3, 7);
  return n === 2 ? i32x4.shuffle(ab, cd, 0, 1, 4, 5) : i32x4.shuffle(ab, cd, 2, 3, 6, 7);
}

/** Rows of `x` (rows, D), at most 8, times `scale`, to `packed` (D, 8); lanes without a row are 0. */
export function pack(x: usize, rows: i32, D: i32, scale: f32, packed: usize): void {
  const bytes = (<usize>D) << 2;
  const factor = f32x4.splat(scale);
  if (rows < 8) memory.fill(packed, 0, D * 32);
  let r = 0;
  for (; r + 4 <= rows; r += 4) {
    let to = packed + ((<usize>r) << 2);
    let at: usize = 0;
    for (; at + 16 <= bytes; at += 16) {
      const a = f32x4.mul(v128.load(x + at), factor);
      const b = f32x4.mul(v128.load(x + bytes + at), factor);
      const c = f32x4.mul(v128.load(x + 2 * bytes + at), factor);
      const d = f32x4.mul(v128.load(x + 3 * bytes + at), factor);
      v128.store(to, turned(a, b, c, d, 0));
      v128.store(to, turned(a, b, c, d, 1), 32);
      v128.store(to, turned(a, b, c, d, 2), 64);
      v128.store(to, turned(a, b, c, d, 3), 96);
      to += 128;
    }
    for (; at < bytes; at += 4) {
      for (let n: usize = 0; n < 4; n++) store<f32>(to + 4 * n, load<f32>(x + n * bytes + at) * scale);
      to += 32;
    }
    x += 4 * bytes;
  }
  for (; r < rows; r++) {
    let to = packed + ((<usize>r) << 2);
    for (let d = 0; d < D; d++) {
      store<f32>(to, load<f32>(x) * scale);
      x += 4;
      to += 32;
    }
  }
}
