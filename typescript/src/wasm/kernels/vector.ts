/** What all kernels need: the multiply-add of the machine, and functions of four numbers at once. */

/** Keys whose scores are taken together: their K, V and scores stay in the cache nearest to the core. */
export const BLOCK: i32 = 96;

/**
 * a · b + sum: fused in the binary that may, else rounded twice. The running sum is always the addend: as a
 * factor, the engine would copy a register for each of them.
 */
export function madd(a: v128, b: v128, sum: v128): v128 {
  if (ASC_FEATURE_RELAXED_SIMD) return f32x4.relaxed_madd(a, b, sum);
  return f32x4.add(sum, f32x4.mul(a, b));
}

/** The constants of exp, read from memory: the engine would make a vector constant anew at each use of it. */
const EXP = memory.data<f32>([
  12582912, 1.44269502, -0.693359375, 0.000212194442, 0.00829030573, 0.0418979749, 0.166676372, 0.499991506,
  0.999999702, 1, -87.33,
]);

/**
 * e^x for x <= 0, within 2.3 units in the last place (test/wasm.test.ts looks); below -87.33, where the
 * result would be subnormal, 0. NaN stays NaN.
 *
 * x = n ln 2 + r with |r| <= ln(2)/2; e^r is a polynomial of degree 5 with the constant 1 (its own error: 1.6
 * half units), so that e^0 is 1; 2^n is made of its bits.
 */
export function exp(x: v128): v128 {
  // Adding 1.5 · 2^23 rounds to an integer, and leaves it in the low bits.
  const round = v128.load32_splat(EXP);
  const t = madd(x, v128.load32_splat(EXP, 4), round);
  const n = f32x4.sub(t, round);
  // ln 2 in two parts, of which the first has so few bits that its product with n is exact.
  let r = madd(n, v128.load32_splat(EXP, 8), x);
  r = madd(n, v128.load32_splat(EXP, 12), r);
  const one = v128.load32_splat(EXP, 36);
  let p = madd(v128.load32_splat(EXP, 16), r, v128.load32_splat(EXP, 20));
  p = madd(p, r, v128.load32_splat(EXP, 24));
  p = madd(p, r, v128.load32_splat(EXP, 28));
  p = madd(p, r, v128.load32_splat(EXP, 32));
  p = madd(p, r, one);
  const power = i32x4.add(i32x4.shl(t, 23), one); // the bits of 1 are 127 << 23
  return v128.andnot(f32x4.mul(p, power), f32x4.lt(x, v128.load32_splat(EXP, 40)));
}

/**
 * tanh x, within 1.9 units in the last place: an odd polynomial where |x| < 0.625, else
 * (1 - e^-2|x|) / (1 + e^-2|x|), where nothing cancels.
 */
export function tanh(x: v128): v128 {
  const size = f32x4.abs(x);
  const e = exp(f32x4.mul(size, f32x4.splat(-2)));
  const one = f32x4.splat(1);
  const far = f32x4.div(f32x4.sub(one, e), f32x4.add(one, e));
  const signed = v128.or(far, v128.and(x, f32x4.splat(-0.0)));
  const s = f32x4.mul(x, x);
  let p = madd(f32x4.splat(-0.005704988), s, f32x4.splat(0.02063911));
  p = madd(p, s, f32x4.splat(-0.053739715));
  p = madd(p, s, f32x4.splat(0.133314422));
  p = madd(p, s, f32x4.splat(-0.333332819));
  const near = madd(f32x4.mul(p, s), x, x);
  return v128.bitselect(near, signed, f32x4.lt(size, f32x4.splat(0.625)));
}

/** Whether n numbers from `x` on are all finite: 0 times them is 0. Reads four at a time, so n % 4 beyond. */
export function allFinite(x: usize, n: i32): bool {
  let sum = f32x4.splat(0);
  const zero = f32x4.splat(0);
  let left = n;
  for (; left >= 4; left -= 4) {
    sum = f32x4.add(sum, f32x4.mul(v128.load(x), zero));
    x += 16;
  }
  for (; left > 0; left--) {
    sum = f32x4.add(sum, f32x4.mul(v128.load32_zero(x), zero));
    x += 4;
  }
  return !v128.any_true(f32x4.ne(sum, zero));
}
