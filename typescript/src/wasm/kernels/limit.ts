/** What the machine can do in WebAssembly at best: nothing but multiply-adds. */

import { madd } from "./vector";

/**
 * n times ten independent multiply-adds of four lanes: 80 n floating-point operations. The two factors come from
 * memory at `x`, since the engine would make constants anew each time. The result is of no interest.
 */
export function limit(n: i32, x: usize): f32 {
  const u = v128.load(x);
  const v = v128.load(x, 16);
  let a = f32x4.splat(0);
  let b = f32x4.splat(1);
  let c = f32x4.splat(2);
  let d = f32x4.splat(3);
  let e = f32x4.splat(4);
  let f = f32x4.splat(5);
  let g = f32x4.splat(6);
  let h = f32x4.splat(7);
  let i = f32x4.splat(8);
  let j = f32x4.splat(9);
  for (let t = 0; t < n; t++) {
    a = madd(u, v, a);
    b = madd(u, v, b);
    c = madd(u, v, c);
    d = madd(u, v, d);
    e = madd(u, v, e);
    f = madd(u, v, f);
    g = madd(u, v, g);
    h = madd(u, v, h);
    i = madd(u, v, i);
    j = madd(u, v, j);
  }
  a = f32x4.add(f32x4.add(a, b), f32x4.add(c, d));
  e = f32x4.add(f32x4.add(e, f), f32x4.add(g, h));
  return f32x4.extract_lane(f32x4.add(f32x4.add(a, e), f32x4.add(i, j)), 0);
}
