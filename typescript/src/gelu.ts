/**
 * GELU: a number times the chance that a normal variable is below it.
 *
 *     output = x/2 (1 + erf(x / sqrt 2))
 *
 * Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, section 2, with its tanh in the place of
 * erf.
 */

import { inFloat32 } from "./cast.ts";
import { requireFloat, requireOneOf } from "./checks.ts";
import { erf } from "./erf.ts";
import { type FloatArray, type Tensor, zerosLike } from "./tensor.ts";

export type GeluForm = "none" | "tanh";

/**
 * `x` (any shape) element by element.
 *
 * @param approximate "tanh" for the approximation that some models were trained with.
 * @throws DtypeMismatch, InvalidConfig.
 */
export function gelu<A extends FloatArray>(x: Tensor<A>, approximate: GeluForm = "none"): Tensor<A> {
  requireFloat("gelu", "x", x);
  requireOneOf("gelu", "approximate", approximate, ["none", "tanh"]);
  return inFloat32(geluCore<A>, x, approximate);
}

/** What {@link gelu} does behind the edge. */
export function geluCore<A extends FloatArray>(x: Tensor<A>, approximate: GeluForm): Tensor<A> {
  const output = zerosLike(x, x.shape);
  for (let n = 0; n < x.data.length; n++) {
    const value = x.data[n]!;
    output.data[n] = approximate === "none" ? exact(value) : approximated(value);
  }
  return output;
}

function exact(x: number): number {
  // 1. exact: by the error function
  return (x / 2) * (1 + erf(x * Math.SQRT1_2));
}

function approximated(x: number): number {
  // 2. tanh: within 5e-4 of it
  return (x / 2) * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
}
