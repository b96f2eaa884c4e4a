/** The functions of vector.ts over numbers in memory, for the test that measures how exact they are. */

import { exp, tanh } from "./vector";

/** n numbers at `x`, a multiple of four, become their exp, or with `tangent` their tanh. */
export function mathOf(x: usize, n: i32, tangent: bool): void {
  const end = x + ((<usize>n) << 2);
  for (; x < end; x += 16) v128.store(x, tangent ? tanh(v128.load(x)) : exp(v128.load(x)));
}
