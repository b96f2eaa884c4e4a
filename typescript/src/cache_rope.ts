/**
 * Rotary positions in a cache: a key is turned once, when it comes, or whenever it is attended to.
 *
 * Rotations add up, so a key that was turned by j and then by n stands where it would at j + n: one that is
 * held turned can be shifted. One that is held as it came is turned at the place where it stands by then.
 *
 * Letters: B batch, Hkv key/value heads, T positions, L slots of the longest row, D head size.
 *
 * Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023, section 3.2 (positions
 * within the cache).
 */

import { inFloat32 } from "./cast.ts";
import { type Rope, ropeCore } from "./rope.ts";
import { type FloatArray, type IntTensor, longest, type Tensor, type WideArray } from "./tensor.ts";

/** When keys are turned. */
export type RopeAt = "append" | "attend";

/** How a cache turns queries and keys, each at its position. null and undefined both mean absent. */
export interface CacheRope {
  /** Absent: nothing is turned. */
  readonly rope?: Rope | null;
  /** When a key is turned: once, to be held so, or at every attend. Only with a rope. Absent: "append". */
  readonly ropeAt?: RopeAt | null;
}

/** The rope that keys are held turned by; null where they are held as they came. */
export function heldRope({ rope, ropeAt }: CacheRope): Rope | null {
  return ropeAt === "attend" ? null : (rope ?? null);
}

/** Keys (B, Hkv, L, D) as they are held, turned as attention takes them, each at its position. */
export function attendedKeys(
  k: Tensor<WideArray>,
  positions: readonly (readonly number[])[],
  { rope, ropeAt }: CacheRope,
): Tensor<WideArray> {
  if (rope == null || ropeAt !== "attend") return k;
  return ropeCore(k, { ...rope, offset: null, positions: positionTable(positions) }).output;
}

/** `x` (1, H, T, D) turned as the tokens at these positions are, in its own type. */
export function turned<A extends FloatArray>(
  x: Tensor<A>,
  rope: Rope | null,
  positions: readonly number[],
): Tensor<A> {
  if (rope === null) return x;
  const places = { data: BigInt64Array.from(positions, BigInt), shape: [1, positions.length] };
  return inFloat32(ropeCore<A>, x, { ...rope, positions: places }).output;
}

/** `x` (1, H, T, D), which has been turned, by as many positions more: an attention factor is in it already. */
export function turnedFurther<A extends FloatArray>(x: Tensor<A>, rope: Rope | null, by: number): Tensor<A> {
  const scaling = rope?.scaling == null ? null : { ...rope.scaling, attentionFactor: 1 };
  const further = rope === null ? null : ({ ...rope, scaling } as Rope);
  return turned(x, further, new Array<number>(x.shape.at(-2)!).fill(by));
}

/** Lists of positions as a table (B, L), -1 beyond a row. */
export function positionTable(rows: readonly (readonly number[])[]): IntTensor {
  const L = longest(rows.map((row) => row.length));
  const data = new BigInt64Array(rows.length * L).fill(-1n);
  for (const [b, row] of rows.entries()) data.set(BigInt64Array.from(row, BigInt), b * L);
  return { data, shape: [rows.length, L] };
}
