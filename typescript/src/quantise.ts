/**
 * Numbers in fewer bits: rounded to a small float, or to integers with a scale for every group of channels.
 *
 *     symmetric    scale = max|x| / m,           code = round(x / scale),           x ≈ code · scale
 *     zero point   scale = (max - min) / span,   code = round((x - min) / scale),   x ≈ code · scale + min
 *
 * m is 127 for int8 and 7 for int4, span 255 and 15. Rounding is half to even. Every operation is one of
 * float32, rounded by itself, so that all languages give the same bits. A group of equal numbers has scale 0
 * and codes 0.
 *
 * Letters: n channels, g channels of a group, groups = ceil(n / g).
 *
 * Sources: Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
 * Inference", 2017, section 2.1; Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
 */

import { narrow, widen } from "./cast.ts";
import { checkQuantise, checkRange } from "./checks_quantise.ts";
import { fromFloat8, roundHalfEven, toFloat8 } from "./float8.ts";
import { type FloatArray, sizeOf, type Tensor, type TensorArray, zeros } from "./tensor.ts";

export type QuantFormat = "f16" | "bf16" | "int8" | "int4" | "fp8_e4m3";

/** null and undefined both mean absent. */
export interface QuantiseOptions {
  readonly format: QuantFormat;
  /** g: how many consecutive channels share a scale. Absent: all. */
  readonly group?: number | null;
  /** Whether a group counts from its smallest number on; only of the integers. Absent: false. */
  readonly zeroPoint?: boolean | null;
}

/** What {@link restore} needs. */
export interface Codes extends QuantiseOptions {
  /** n */
  readonly channels: number;
  /** (..., n); for int4 (..., ceil(n / 2)), two codes a byte, the even channel in its low half */
  readonly codes: Tensor<TensorArray>;
  /** (..., groups); null for the small floats */
  readonly scale: Tensor<Float32Array> | null;
  /** (..., groups), the smallest number of each; null without a zero point */
  readonly zero: Tensor<Float32Array> | null;
}

/** The largest code without a zero point, and with one. */
const LIMITS: Readonly<Record<string, readonly [number, number]>> = { int8: [127, 255], int4: [7, 15] };

/**
 * `x` (..., n) in fewer bits; float64 is rounded to float32 first.
 *
 * @throws DtypeMismatch, ShapeMismatch, InvalidConfig, also for an integer format where a number is not finite.
 */
export function quantise(x: Tensor<FloatArray>, options: QuantiseOptions): Codes {
  checkQuantise("quantise", x, options);
  const { format, group, zeroPoint } = options;
  const values = narrow(widen(x), "float32"); // (..., n)
  const channels = x.shape.at(-1)!;
  const parts = { format, group, zeroPoint, channels, scale: null, zero: null };
  if (format === "f16" || format === "bf16") {
    return { ...parts, codes: narrow(values, format === "f16" ? "float16" : "bfloat16") };
  }
  if (format === "fp8_e4m3") {
    return { ...parts, codes: { data: Uint8Array.from(values.data, toFloat8), shape: x.shape } };
  }

  const { plain, scale, zero } = integerCodes(values, options);
  return { ...parts, scale, zero, codes: packed(plain, options) };
}

/** Codes (..., n) before they are packed. */
export interface PlainCodes {
  readonly data: Int16Array;
  readonly shape: readonly number[];
}

/** The same, and what they count in. */
export interface IntegerCodes {
  /** (..., n) */
  readonly plain: PlainCodes;
  /** (..., groups) */
  readonly scale: Tensor<Float32Array>;
  /** (..., groups); null without a zero point */
  readonly zero: Tensor<Float32Array> | null;
}

/** `values` (..., n) in integers. @throws InvalidConfig where a number, or a distance, is not finite. */
export function integerCodes(
  values: Tensor<Float32Array>,
  { format, group, zeroPoint }: QuantiseOptions,
): IntegerCodes {
  // 1. scale: the step between two codes, one for each group
  const limits = LIMITS[format]!;
  const groups = groupsOf(values.shape.at(-1)!, group);
  const scale = zeros("float32", values.shape.with(-1, groups.perRow)); // (..., groups)
  const zero = zeroPoint ? zeros("float32", scale.shape) : null; // (..., groups)
  for (let at = 0; at < scale.data.length; at++) {
    const numbers = values.data.subarray(...bounds(at, groups)); // (g,)
    if (zero === null) {
      const largest = numbers.reduce((most, number) => Math.max(most, Math.abs(number)), 0);
      scale.data[at] = largest / limits[0]; // rounded to float32 here, and wherever it is stored
    } else {
      const [least, most] = extremes(numbers);
      zero.data[at] = least;
      scale.data[at] = Math.fround(most - least) / limits[1];
    }
  }
  checkRange("quantise", values, scale);

  // 2. round: to the nearest code, half to even
  const plain = new Int16Array(values.data.length); // (..., n)
  const [least, most] = zero === null ? [-limits[0], limits[0]] : [0, limits[1]];
  for (let at = 0; at < scale.data.length; at++) {
    const [begin, end] = bounds(at, groups);
    for (let c = begin; c < end && scale.data[at] !== 0; c++) {
      const above = zero === null ? values.data[c]! : Math.fround(values.data[c]! - zero.data[at]!);
      const code = roundHalfEven(Math.fround(above / scale.data[at]!));
      plain[c] = Math.min(Math.max(code, least), most);
    }
  }
  return { plain: { data: plain, shape: values.shape }, scale, zero };
}

/** Codes (..., n) as they are kept. */
export function packed(plain: PlainCodes, { format, zeroPoint }: QuantiseOptions): Tensor<TensorArray> {
  // 3. pack: int8 as it is, int4 two to a byte
  if (format === "int4") return inHalves(plain);
  const data = zeroPoint ? Uint8Array.from(plain.data) : Int8Array.from(plain.data);
  return { data, shape: plain.shape };
}

/** The numbers that codes stand for, (..., n). Checks nothing. */
export function restore({ format, group, channels, codes, scale, zero }: Codes): Tensor<Float32Array> {
  // 4. restore: code · scale, and the smallest number of the group added to it
  if (format === "f16" || format === "bf16")
    return widen(codes as Tensor<FloatArray>) as Tensor<Float32Array>;
  const shape = codes.shape.with(-1, channels);
  if (format === "fp8_e4m3") {
    return { data: Float32Array.from(codes.data as Uint8Array, fromFloat8), shape };
  }
  const plain = unpacked(codes, channels, { format, zeroPoint: zero !== null });
  return restoredIntegers({ plain, scale: scale!, zero }, group);
}

/** The numbers (..., n) that codes stand for, in these groups. */
export function restoredIntegers(
  { plain, scale, zero }: IntegerCodes,
  group: number | null | undefined,
): Tensor<Float32Array> {
  const values = zeros("float32", plain.shape); // (..., n)
  const groups = groupsOf(plain.shape.at(-1)!, group);
  for (let at = 0; at < scale.data.length; at++) {
    const [begin, end] = bounds(at, groups);
    for (let c = begin; c < end; c++) {
      const above = Math.fround(plain.data[c]! * scale.data[at]!);
      values.data[c] = zero === null ? above : above + zero.data[at]!;
    }
  }
  return values;
}

interface Groups {
  readonly channels: number;
  readonly group: number;
  readonly perRow: number;
}

function groupsOf(channels: number, group: number | null | undefined): Groups {
  const size = group ?? Math.max(channels, 1);
  return { channels, group: size, perRow: Math.ceil(channels / size) };
}

/** Where group `at` begins and ends in (..., n). */
function bounds(at: number, { channels, group, perRow }: Groups): [begin: number, end: number] {
  const row = Math.floor(at / perRow) * channels;
  const first = (at % perRow) * group;
  return [row + first, row + Math.min(first + group, channels)];
}

/** The smallest and the largest of at least one number. */
function extremes(numbers: Float32Array): [least: number, most: number] {
  let [least, most] = [numbers[0]!, numbers[0]!];
  for (const number of numbers) {
    if (number < least) least = number;
    if (number > most) most = number;
  }
  return [least, most];
}

/** (..., n) to (..., ceil(n / 2)): four bits each, two's complement; an odd last one leaves the high half 0. */
function inHalves({ data, shape }: PlainCodes): Tensor<Uint8Array> {
  const [n, half] = [shape.at(-1)!, Math.ceil(shape.at(-1)! / 2)];
  const bytes = { data: new Uint8Array(sizeOf(shape.with(-1, half))), shape: shape.with(-1, half) };
  for (let at = 0; at < data.length; at++) {
    const [row, c] = [Math.floor(at / n), at % n];
    bytes.data[row * half + (c >> 1)]! |= (data[at]! & 0xf) << (c % 2 === 0 ? 0 : 4);
  }
  return bytes;
}

/** The way back from {@link packed}: codes of so many channels, (..., n). */
export function unpacked(
  { data, shape }: Tensor<TensorArray>,
  channels: number,
  { format, zeroPoint }: QuantiseOptions,
): PlainCodes {
  if (format !== "int4") return { data: Int16Array.from(data as Int8Array), shape };
  const codes = { data: new Int16Array(sizeOf(shape.with(-1, channels))), shape: shape.with(-1, channels) };
  const half = shape.at(-1)!;
  for (let at = 0; at < codes.data.length; at++) {
    const [row, c] = [Math.floor(at / channels), at % channels];
    const code = ((data as Uint8Array)[row * half + (c >> 1)]! >> (c % 2 === 0 ? 0 : 4)) & 0xf;
    codes.data[at] = zeroPoint !== true && code > 7 ? code - 16 : code;
  }
  return codes;
}
