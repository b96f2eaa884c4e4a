/**
 * Which query may see which key.
 *
 * A `Mask` holds conditions, and a slot is visible when all of them allow it. They are about *positions*:
 * query i stands at position p = i + qOffset, key j at position j.
 *
 *     causal      j <= p
 *     window      p - left <= j <= p + right
 *     kvLengths   j < kvLengths[b]
 *     keep        keep[b, h, i, j]
 *
 * Letters: B batch, Hq query heads, Tq and Tk query and key lengths.
 */

import { checkVisible } from "./checks_attention.ts";
import { allocated, type BoolTensor, broadcastIndex, type Lengths, toNumbers } from "./tensor.ts";

/** The conditions of one call; an empty one hides nothing. null and undefined both mean absent; 0 is 0. */
export interface Mask {
  /** true (not 0) = attend; right-aligned broadcastable to (B, Hq, Tq, Tk), so rank 3 is (Hq, Tq, Tk). */
  readonly keep?: BoolTensor | null;
  /** No query sees a key that stands after it. */
  readonly causal?: boolean | null;
  /** [left, right]: how many keys on each side of itself a query sees; null = open on that side. */
  readonly window?: readonly [number | null, number | null] | null;
  /** (B,): how many keys of each row exist. */
  readonly kvLengths?: Lengths | null;
  /**
   * The position of query 0, one for all rows or (B,). Absent = 0; a cache aligns the last query with the
   * last position of its row instead.
   */
  readonly qOffset?: number | Lengths | null;
}

/** The position of key `j` of row `b`. */
export type PositionOf = (b: number, j: number) => number;

/**
 * The mask as a table (B, Hq, Tq, Tk), 1 = attend.
 *
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig.
 */
export function visible(mask: Mask, B: number, Hq: number, Tq: number, Tk: number): BoolTensor {
  checkVisible("visible", mask, { B, Hq, Tq, Tk });
  return visibleCore(mask, B, Hq, Tq, Tk);
}

/**
 * What {@link visible} does behind the edge.
 *
 * @param positionOf absent: key j stands at j.
 */
export function visibleCore(
  mask: Mask,
  B: number,
  Hq: number,
  Tq: number,
  Tk: number,
  positionOf?: PositionOf,
): BoolTensor {
  const sees = visibility(mask, positionOf);
  const table = allocated(Uint8Array, B * Hq * Tq * Tk); // (B, Hq, Tq, Tk)
  let slot = 0;
  for (let b = 0; b < B; b++) {
    for (let h = 0; h < Hq; h++) {
      for (let i = 0; i < Tq; i++) {
        for (let j = 0; j < Tk; j++, slot++) table[slot] = sees(b, h, i, j) ? 1 : 0;
      }
    }
  }
  return { data: table, shape: [B, Hq, Tq, Tk] };
}

/** The same, slot by slot and without a table, of a mask that has been checked. */
export function visibility(
  mask: Mask,
  positionOf: PositionOf = (_, j) => j,
): (b: number, h: number, i: number, j: number) => boolean {
  const { keep, causal, kvLengths, qOffset } = mask;
  const left = mask.window?.[0] ?? Infinity;
  const right = mask.window?.[1] ?? Infinity;
  const lengths = kvLengths == null ? null : toNumbers(kvLengths); // (B,)
  const offsets = typeof qOffset === "object" && qOffset !== null ? toNumbers(qOffset) : null; // (B,)
  const offset = offsets === null ? ((qOffset as number | null | undefined) ?? 0) : 0;
  const keepAt = broadcastIndex(keep?.shape ?? []);

  return (b, h, i, j) => {
    // 1. positions: of the query and of the key
    const p = i + (offsets === null ? offset : offsets[b]!);
    const at = positionOf(b, j);

    // 2. causal: nothing after the query
    const notAfter = !causal || at <= p;

    // 3. window: nothing too far to the left or to the right
    const near = p - left <= at && at <= p + right;

    // 4. lengths: nothing beyond the end of the row
    const exists = lengths === null || j < lengths[b]!;

    // 5. keep: nothing that the caller excludes
    const kept = keep == null || keep.data[keepAt(b, h, i, j)] !== 0;
    return notAfter && near && exists && kept;
  };
}
