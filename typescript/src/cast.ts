/**
 * Between the float types: half types are stored, and computed with in float32.
 *
 *     cast(x) = the value nearest to x, half to even
 *
 * A cast is one rounding, straight from the type that it comes from: float64 goes to float16 without a stop
 * at float32, which would round twice. What is beyond the largest finite value plus half a step is infinite,
 * subnormals are kept, NaN stays NaN.
 *
 * Source: IEEE 754-2019, section 4.3.1 (roundTiesToEven).
 */

import { Bfloat16Array, fromBfloat16, toBfloat16 } from "./bfloat16.ts";
import { requireFloat, requireOneOf } from "./checks.ts";
import { Unsupported } from "./errors.ts";
import {
  dtypeOf,
  FLOATS,
  type FloatArray,
  type FloatArrays,
  type FloatDtype,
  type Tensor,
  type TensorArray,
  type WideArray,
  zeros,
} from "./tensor.ts";

/**
 * `x` (any shape) as another float type; a copy.
 *
 * @throws DtypeMismatch, InvalidConfig, Unsupported for a type that is not one of ours.
 */
export function cast<T extends FloatDtype>(x: Tensor<FloatArray>, to: T): Tensor<FloatArrays[T]> {
  requireFloat("cast", "x", x);
  if (typeof to === "string" && !FLOATS.includes(to)) throw new Unsupported(`cast.${to}`);
  requireOneOf("cast", "to", to, FLOATS);
  return narrow(widen(x), to);
}

/** Half types as float32, exactly; float32 and float64 as they are. */
export function widen(x: Tensor<FloatArray>): Tensor<WideArray> {
  // 1. widen: every half number is a float32 too
  const { data, shape } = x;
  if (data instanceof Bfloat16Array) return { data: Float32Array.from(data, fromBfloat16), shape };
  if (dtypeOf(x) === "float16") return { data: Float32Array.from(data), shape };
  return { data: data as WideArray, shape };
}

/** Wide numbers as `to`; a copy. */
export function narrow<T extends FloatDtype>(x: Tensor<WideArray>, to: T): Tensor<FloatArrays[T]> {
  // 2. narrow: one rounding each, half to even; the arrays of JavaScript do the same where they store
  const y = zeros(to, x.shape);
  for (let n = 0; n < y.data.length; n++) y.data[n] = to === "bfloat16" ? toBfloat16(x.data[n]!) : x.data[n]!;
  return y;
}

/**
 * The edge for half types, and the only one: `op(...args)` with every half tensor in the arguments widened,
 * and every float32 tensor of the result, except an `lse`, rounded to the type of the first tensor. Without
 * half types it is the call and nothing else.
 *
 * Behind it stand the functions named `...Core`: their arguments have been checked, and are never half.
 */
export function inFloat32<In extends unknown[], Out>(op: (...args: In) => Out, ...args: In): Out {
  const first = args.find(isTensor);
  const dtype = first === undefined ? "" : dtypeOf(first);
  if (dtype !== "float16" && dtype !== "bfloat16") return op(...args);
  const wide = replaced(args, (x) => (isHalf(x) ? widen(x) : x)) as In;
  return replaced(op(...wide), (x) => (dtypeOf(x) === "float32" ? narrow(x as never, dtype) : x)) as Out;
}

/** The same value with `change` applied to all its tensors, however deep, but those named lse. */
function replaced(value: unknown, change: (x: Tensor<TensorArray>) => unknown): unknown {
  if (typeof value !== "object" || value === null) return value;
  if (isTensor(value)) return change(value);
  if (Array.isArray(value)) return value.map((part) => replaced(part, change));
  return Object.fromEntries(
    Object.entries(value).map(([name, part]) => [name, name === "lse" ? part : replaced(part, change)]),
  );
}

function isTensor(value: unknown): value is Tensor<TensorArray> {
  return typeof value === "object" && value !== null && ArrayBuffer.isView((value as Tensor).data);
}

function isHalf(x: Tensor<TensorArray>): x is Tensor<FloatArray> {
  return dtypeOf(x) === "float16" || dtypeOf(x) === "bfloat16";
}
