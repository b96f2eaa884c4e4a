/**
 * What this package takes and gives: a typed array with the sizes of its axes, in row-major order.
 *
 * The array may be a view into a larger buffer; only its own elements are read. The element type of the
 * inputs is that of the results: values are rounded to it where they are stored, and sums run in doubles in
 * between. A call with half types runs in float32, and its results are rounded to the half type once.
 */

import { Bfloat16Array } from "./bfloat16.ts";
import { InvalidConfig, Unsupported } from "./errors.ts";

/** The element types that a computation runs in. */
export type WideArray = Float32Array | Float64Array;

/** The element types of numbers. Half types are widened where a call begins, and rounded where it ends. */
export type FloatArray = WideArray | Float16Array | Bfloat16Array;

/** Every element type that an argument can have. */
export type TensorArray = FloatArray | Uint8Array | Int8Array | BigInt64Array;

/** `data` holds as many elements as the product of `shape`, the last axis being the fastest. */
export interface Tensor<A extends TensorArray = FloatArray> {
  readonly data: A;
  readonly shape: readonly number[];
}

/** 0 is false, anything else is true. */
export type BoolTensor = Tensor<Uint8Array>;

export type IntTensor = Tensor<BigInt64Array>;

/** One whole number for each row of a batch: a plain list, or an int64 tensor (B,). */
export type Lengths = readonly number[] | IntTensor;

/** The array type behind each name of a float type. */
export interface FloatArrays {
  float32: Float32Array;
  float64: Float64Array;
  float16: Float16Array;
  bfloat16: Bfloat16Array;
}

export type FloatDtype = keyof FloatArrays;

/** The types by the short names that files and requests have for them. */
export const SHORT_NAMES: Readonly<Record<string, FloatDtype>> = {
  f32: "float32",
  f64: "float64",
  f16: "float16",
  bf16: "bfloat16",
};

/** The types by name. */
export const FLOATS: readonly string[] = Object.values(SHORT_NAMES);

const DTYPES: Readonly<Record<string, string>> = {
  Float16Array: "float16",
  Float32Array: "float32",
  Float64Array: "float64",
  Uint8Array: "bool",
  Int8Array: "int8",
  BigInt64Array: "int64",
};

/** The element type of a tensor by name, also for an array of a subclass or of another realm. */
export function dtypeOf(x: Tensor<TensorArray>): string {
  if (x.data instanceof Bfloat16Array) return x.data.format;
  const kind: string = x.data?.[Symbol.toStringTag] ?? typeof x.data;
  return DTYPES[kind] ?? kind;
}

/** How many elements a shape has; 1 for rank 0. */
export function sizeOf(shape: readonly number[]): number {
  return shape.reduce((product, n) => product * n, 1);
}

/** A list as a tensor. */
export function int64(numbers: readonly number[]): IntTensor {
  return { data: BigInt64Array.from(numbers, BigInt), shape: [numbers.length] };
}

/** A tensor of zeros. */
export function zeros<T extends FloatDtype>(dtype: T, shape: readonly number[]): Tensor<FloatArrays[T]> {
  return { data: newArray(dtype, sizeOf(shape)) as FloatArrays[T], shape };
}

/**
 * Zeros of a type by name. Float16Array is newer than what the rest runs on, so it is looked up only where it
 * is needed.
 */
export function newArray(dtype: string, n: number): TensorArray {
  if (dtype === "float32") return allocated(Float32Array, n);
  if (dtype === "float64") return allocated(Float64Array, n);
  if (dtype === "bfloat16") return allocated(Bfloat16Array, n);
  if (dtype === "int64") return allocated(BigInt64Array, n);
  if (dtype === "int8") return allocated(Int8Array, n);
  if (dtype === "bool") return allocated(Uint8Array, n);
  if (typeof Float16Array === "undefined") throw new Unsupported("dtype.f16");
  return allocated(Float16Array, n);
}

/** An array of zeros. @throws InvalidConfig for more than the engine has memory for. */
export function allocated<A>(Kind: new (n: number) => A, n: number): A {
  try {
    return new Kind(n);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new InvalidConfig(`memory: size: expected as many elements as there is memory for, got ${n}`);
  }
}

/** A tensor of zeros with the element type of `x`. */
export function zerosLike<A extends FloatArray>(x: Tensor<A>, shape: readonly number[]): Tensor<A> {
  return zeros(dtypeOf(x) as FloatDtype, shape) as Tensor<A>;
}

/** A tensor of zeros in an array of the same class as that of `x`. */
export function blankLike<A extends TensorArray>(x: Tensor<A>, shape: readonly number[]): Tensor<A> {
  const Kind = x.data.constructor as new (n: number) => A;
  return { data: allocated(Kind, sizeOf(shape)), shape };
}

/** A tensor of zeros for what keeps the width of a computation: float64 beside float64, else float32. */
export function zerosWide(x: Tensor<TensorArray>, shape: readonly number[]): Tensor<WideArray> {
  return zeros(dtypeOf(x) === "float64" ? "float64" : "float32", shape);
}

/** The sizes of a tensor whose rank has been checked. */
export function sizes2(x: Tensor<TensorArray>): [number, number] {
  return x.shape as unknown as [number, number];
}

/** The sizes of a tensor whose rank has been checked. */
export function sizes3(x: Tensor<TensorArray>): [number, number, number] {
  return x.shape as unknown as [number, number, number];
}

/** The sizes of a tensor whose rank has been checked. */
export function sizes4(x: Tensor<TensorArray>): [number, number, number, number] {
  return x.shape as unknown as [number, number, number, number];
}

/**
 * Where element (b, h, i, j) stands in a tensor that broadcasts to (B, H, Tq, Tk): shapes are aligned at the
 * right, and an axis that is missing or of size 1 is not stepped along.
 */
export function broadcastIndex(
  shape: readonly number[],
): (b: number, h: number, i: number, j: number) => number {
  const strides: [number, number, number, number] = [0, 0, 0, 0];
  let step = 1;
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    const n = shape[axis]!;
    strides[axis + 4 - shape.length] = n === 1 ? 0 : step;
    step *= n;
  }
  const [ofB, ofH, ofI, ofJ] = strides;
  return (b, h, i, j) => b * ofB + h * ofH + i * ofI + j * ofJ;
}

/** The largest of them; 0 when there are none. */
export function longest(lengths: readonly number[]): number {
  return lengths.reduce((most, n) => Math.max(most, n), 0);
}

/** Lengths as plain numbers, a fresh list (B,). */
export function toNumbers(lengths: Lengths): number[] {
  return "data" in lengths ? Array.from(lengths.data, Number) : [...lengths];
}
