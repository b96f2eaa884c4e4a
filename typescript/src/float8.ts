/**
 * float8 e4m3 (fn): a sign, four bits of exponent with bias 7, three of fraction, no infinities.
 *
 *     (-1)^s · 2^(e - 7) · (1 + f/8),   for e = 0: (-1)^s · 2^-6 · f/8,   0x7F and 0xFF are NaN
 *
 * Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022, table 1.
 */

const LARGEST = 448;
const NAN = 0x7f;

const single = new Float32Array(1);
const bits = new Uint32Array(single.buffer);

/** The code nearest to a float32, half to even; what is larger becomes the largest, with its sign. */
export function toFloat8(x: number): number {
  if (Number.isNaN(x)) return NAN;
  single[0] = Math.min(Math.abs(x), LARGEST);
  const sign = x < 0 || Object.is(x, -0) ? 0x80 : 0;
  const exponent = Math.max((bits[0]! >>> 23) - 127, -6); // of the step; below it lie the subnormals
  const steps = roundHalfEven(single[0]! / 2 ** (exponent - 3)); // exact: a power of two; 16 is the next binade
  return sign | ((exponent + 6) * 8 + steps);
}

/** The number that a code stands for, exactly. */
export function fromFloat8(code: number): number {
  const [exponent, fraction] = [(code >>> 3) & 0xf, code & 7];
  if ((code & 0x7f) === NAN) return NaN;
  const size = exponent === 0 ? (2 ** -6 * fraction) / 8 : 2 ** (exponent - 7) * (1 + fraction / 8);
  return code & 0x80 ? -size : size;
}

/** The nearest integer, half to even. */
export function roundHalfEven(x: number): number {
  const up = Math.round(x); // halves go up
  return up - x === 0.5 && up % 2 !== 0 ? up - 1 : up;
}
