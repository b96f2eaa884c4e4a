/** What the tests share: small tensors, a seeded generator, and comparison that knows NaN. */

import assert from "node:assert/strict";
import {
  AttentionError,
  cast,
  type FloatArray,
  type FloatArrays,
  type FloatDtype,
  type Tensor,
} from "../src/index.ts";
import { zeros } from "../src/tensor.ts";

export function f32(shape: number[], values: ArrayLike<number>): Tensor<Float32Array> {
  return { data: Float32Array.from(values), shape };
}

export function f64(shape: number[], values: ArrayLike<number>): Tensor<Float64Array> {
  return { data: Float64Array.from(values), shape };
}

/** Numbers rounded to a type. */
export function as<T extends FloatDtype>(
  dtype: T,
  shape: number[],
  values: ArrayLike<number>,
): Tensor<FloatArrays[T]> {
  return cast(f64(shape, values), dtype);
}

export function bool(shape: number[], values: ArrayLike<number>): Tensor<Uint8Array> {
  return { data: Uint8Array.from(values), shape };
}

export function int64(shape: number[], values: number[]): Tensor<BigInt64Array> {
  return { data: BigInt64Array.from(values, BigInt), shape };
}

/** xorshift32: 32-bit operations only, so every machine draws the same. */
export class Random {
  #state: number;

  constructor(seed: number) {
    this.#state = Math.imul(seed + 1, 0x9e3779b1) | 1;
  }

  /** Evenly from [0, 1). */
  next(): number {
    this.#state ^= this.#state << 13;
    this.#state ^= this.#state >>> 17;
    this.#state ^= this.#state << 5;
    return (this.#state >>> 0) / 2 ** 32;
  }

  /** An integer from least to most, both included. */
  integer(least: number, most: number): number {
    return least + Math.floor(this.next() * (most - least + 1));
  }

  /** Signed values of a few units. */
  tensor<T extends FloatDtype>(dtype: T, shape: number[]): Tensor<FloatArrays[T]> {
    return as(
      dtype,
      shape,
      Array.from(zeros(dtype, shape).data, () => 4 * this.next() - 2),
    );
  }

  mask(shape: number[]): Tensor<Uint8Array> {
    const x = bool(shape, new Uint8Array(shape.reduce((product, n) => product * n, 1)));
    for (let n = 0; n < x.data.length; n++) x.data[n] = this.next() < 0.7 ? 1 : 0;
    return x;
  }
}

/** Equal, NaN to NaN and infinity to infinity; finite values within `tolerance`. */
export function assertClose(got: ArrayLike<number>, want: ArrayLike<number>, tolerance: number = 1e-6): void {
  assert.equal(got.length, want.length, "number of elements");
  for (let n = 0; n < want.length; n++) {
    const same = Object.is(got[n], want[n]) || Math.abs(got[n]! - want[n]!) <= tolerance;
    if (!same) assert.fail(`element ${n}: got ${got[n]}, want ${want[n]} in [${Array.from(got)}]`);
  }
}

/** Bit for bit, shapes included. */
export function assertSame(got: Tensor<FloatArray>, want: Tensor<FloatArray>): void {
  assert.deepEqual(got.shape, want.shape);
  assert.deepEqual(got.data, want.data);
}

/** The call fails with this code and a message in the project's form. */
export function assertFails(
  call: () => unknown,
  code: string,
  message: RegExp = /^\w+: \w+: expected .+, got .+$/,
): void {
  assert.throws(call, (error) => {
    assert.ok(error instanceof AttentionError, String(error));
    assert.equal(error.code, code, error.message);
    assert.match(error.message, message);
    return true;
  });
}

/** Rows `from` to `to` of the axis of positions: (B, H, T, n) to (B, H, to - from, n). */
export function positions<A extends FloatArray>(x: Tensor<A>, from: number, to: number): Tensor<A> {
  const [B, H, T, n] = x.shape as [number, number, number, number];
  const values: number[] = [];
  for (let block = 0; block < B * H; block++) {
    values.push(...x.data.subarray((block * T + from) * n, (block * T + to) * n));
  }
  return {
    data: (x.data instanceof Float32Array ? f32 : f64)([], values).data as A,
    shape: [B, H, to - from, n],
  };
}
