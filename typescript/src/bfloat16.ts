/**
 * bfloat16: the upper half of a float32, with its eight bits of exponent and seven of fraction.
 *
 * JavaScript has no array of its own for it, unlike float16, so an element here is the code, and a tensor of
 * bfloat16 can be stored, copied and cast, but not computed with.
 *
 * Sources: Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", 2019; Boldo and Melquiond,
 * "Emulation of a FMA and Correctly Rounded Sums: Proved Algorithms Using Rounding to Odd", 2008 (one
 * rounding in two steps).
 */

/** Codes of bfloat16, 16 bits each; {@link fromBfloat16} and {@link toBfloat16} are the way in and out. */
export class Bfloat16Array extends Uint16Array {
  /** Apart from a plain Uint16Array. */
  get format(): "bfloat16" {
    return "bfloat16";
  }

  override subarray(begin?: number, end?: number): Bfloat16Array {
    return super.subarray(begin, end) as Bfloat16Array;
  }

  override slice(begin?: number, end?: number): Bfloat16Array {
    return super.slice(begin, end) as Bfloat16Array;
  }
}

const single = new Float32Array(1);
const bits = new Uint32Array(single.buffer);

/** The number that a code stands for, exactly. */
export function fromBfloat16(code: number): number {
  bits[0] = code << 16;
  return single[0]!;
}

/**
 * The code nearest to a number, half to even, straight from the double: what lies beyond the largest finite
 * value plus half a step is infinite, and NaN stays NaN.
 */
export function toBfloat16(x: number): number {
  single[0] = x;
  let code = bits[0]!;
  if (Number.isNaN(x)) return (code >>> 16) | 0x0040; // quiet: its lower half is cut off
  if (single[0] !== x) {
    // Rounded to odd, not to nearest: the last bit then tells the second rounding that there was more.
    if (Math.abs(single[0]!) > Math.abs(x)) code -= 1;
    code |= 1;
  }
  const upper = code >>> 16;
  return (code + 0x7fff + (upper & 1)) >>> 16;
}
