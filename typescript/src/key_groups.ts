/**
 * Keys in groups of consecutive tokens, quantised channel by channel.
 *
 * Letters: Hkv key/value heads, D head size, n tokens of a group, S and T tokens.
 *
 * Source: Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", 2024, section 3.
 */

import {
  integerCodes,
  type PlainCodes,
  packed,
  type QuantiseOptions,
  restoredIntegers,
  unpacked,
} from "./quantise.ts";
import { copySlots } from "./slots.ts";
import { blankLike, type Tensor, type TensorArray } from "./tensor.ts";

/** n keys of a row. */
export interface KeyGroup {
  /** (1, Hkv, n, D or, packed, ceil(D / 2)) */
  readonly codes: Tensor<TensorArray>;
  /** (1, Hkv, 1, D) */
  readonly scale: Tensor<Float32Array>;
  /** (1, Hkv, 1, D); null without a zero point */
  readonly zero: Tensor<Float32Array> | null;
}

/** The keys of a row. Nothing in it ever changes, so that rows and forks share it. */
export interface KeyRow {
  readonly groups: readonly KeyGroup[];
  /** (1, Hkv, count, D), count < n */
  readonly tail: Tensor<Float32Array>;
}

/** Keys (1, Hkv, n, D) in codes, which are packed by channel as those of values are. @throws InvalidConfig. */
export function groupOf(keys: Tensor<Float32Array>, { format, zeroPoint }: QuantiseOptions): KeyGroup {
  const { plain, scale, zero } = integerCodes(swapped(keys), { format, zeroPoint }); // (1, Hkv, D, n)
  const shape = keys.shape.with(2, 1); // (1, Hkv, 1, D)
  return {
    codes: packed(swapped(plain), { format, zeroPoint }),
    scale: { data: scale.data, shape },
    zero: zero === null ? null : { data: zero.data, shape },
  };
}

/** The keys that it stands for, (1, Hkv, n, D). */
export function keysOf({ codes, scale, zero }: KeyGroup, options: QuantiseOptions): Tensor<Float32Array> {
  const plain: PlainCodes = swapped(unpacked(codes, scale.shape[3]!, options)); // (1, Hkv, D, n)
  return swapped(restoredIntegers({ plain, scale, zero }, null));
}

/** All of `x` (1, Hkv, count, m) to row `b` of `to`, from slot `at` on. */
export function place(x: Tensor<TensorArray>, to: Tensor<TensorArray>, b: number, at: number): void {
  copySlots(x, 0, 0, to, b, at, x.shape[2]!);
}

/** (1, Hkv, S, D) and (1, Hkv, T, D) to (1, Hkv, S + T, D). */
export function joined(x: Tensor<Float32Array>, y: Tensor<Float32Array>): Tensor<Float32Array> {
  const S = x.shape[2]!;
  const both = blankLike(x, x.shape.with(2, S + y.shape[2]!));
  place(x, both, 0, 0);
  place(y, both, 0, S);
  return both;
}

/** These slots of (1, Hkv, S, D). */
export function chosen(x: Tensor<Float32Array>, slots: readonly number[]): Tensor<Float32Array> {
  const some = blankLike(x, x.shape.with(2, slots.length));
  for (const [n, slot] of slots.entries()) copySlots(x, 0, slot, some, 0, n, 1);
  return some;
}

/** (1, Hkv, a, b) to (1, Hkv, b, a). */
function swapped<A extends Float32Array | Int16Array>({
  data,
  shape,
}: {
  data: A;
  shape: readonly number[];
}) {
  const [a, b] = shape.slice(-2) as [number, number];
  const to = { data: data.slice() as A, shape: shape.with(-2, b).with(-1, a) };
  for (let at = 0; at < data.length; at++) {
    const [block, i, j] = [Math.floor(at / (a * b)), Math.floor(at / b) % a, at % b];
    to.data[block * a * b + j * a + i] = data[at]!;
  }
  return to;
}
