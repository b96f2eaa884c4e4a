/**
 * SwiGLU: one half of a layer opens or closes the other.
 *
 *     output = a · sigmoid(alpha · a) · b
 *
 * Source: Shazeer, "GLU Variants Improve Transformer", 2020, section 2 (alpha is the beta of Swish, 1 there).
 */

import { inFloat32 } from "./cast.ts";
import { requireFinite, requireFloats, requireShape } from "./checks.ts";
import { type FloatArray, type Tensor, zerosLike } from "./tensor.ts";

/**
 * `a` and `b` (any shape, the same) element by element.
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function swiglu<A extends FloatArray>(a: Tensor<A>, b: Tensor<A>, alpha: number = 1): Tensor<A> {
  requireFloats("swiglu", { a, b });
  requireShape("swiglu", "b", b, a.shape);
  requireFinite("swiglu", "alpha", alpha);
  return inFloat32(swigluCore<A>, a, b, alpha);
}

/** What {@link swiglu} does behind the edge. */
export function swigluCore<A extends FloatArray>(a: Tensor<A>, b: Tensor<A>, alpha: number): Tensor<A> {
  const output = zerosLike(a, a.shape);
  for (let n = 0; n < a.data.length; n++) {
    // 1. gate: between 0 and a
    const gate = a.data[n]! / (1 + Math.exp(-alpha * a.data[n]!));

    // 2. multiply: with the half that has no gate
    output.data[n] = gate * b.data[n]!;
  }
  return output;
}
