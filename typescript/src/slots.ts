/**
 * What most caches are made of: rows of slots, one for each token held, every slot with its position.
 *
 * What a slot is made of stands in arrays by name, (B, ..., room, n) each: keys and values, or codes and
 * scales, or latents. The slots of a row stand in the order of their positions; what lies beyond them is junk.
 * An append writes there, or makes new memory, and every other change makes new memory.
 */

import { blankLike, longest, sizeOf, type Tensor, type TensorArray } from "./tensor.ts";
import { TRACKED } from "./track.ts";

export type SlotArrays = Readonly<Record<string, Tensor<TensorArray>>>;

export class Slots {
  readonly arrays: SlotArrays;
  /** (B,) lists, ascending. */
  readonly positions: readonly (readonly number[])[];
  /** (B,): the position of the next token of each row. */
  readonly next: readonly number[];

  constructor(arrays: SlotArrays, positions: Slots["positions"], next: Slots["next"]) {
    this.arrays = arrays;
    this.positions = positions;
    this.next = next;
  }

  /** Rows without a slot. */
  static empty(arrays: SlotArrays, batch: number): Slots {
    const rows = Array.from({ length: batch }, () => []);
    return new Slots(
      arrays,
      rows,
      rows.map(() => 0),
    );
  }

  /** (B,): how many slots each row holds. */
  get counts(): number[] {
    return this.positions.map((row) => row.length);
  }

  /** L, of the longest row. */
  get length(): number {
    return longest(this.counts);
  }

  /** L, when each row holds counts[b] more. */
  lengthAfter(counts: readonly number[]): number {
    return longest(this.counts.map((n, b) => n + counts[b]!));
  }

  /** A copy of the positions. */
  get places(): number[][] {
    return this.positions.map((row) => [...row]);
  }

  /** How many slots a row has memory for. */
  get room(): number {
    return Object.values(this.arrays)[0]!.shape.at(-2)!;
  }

  /** Of the slots held; what is only known about them does not count. */
  get bytes(): number {
    const slots = this.counts.reduce((sum, n) => sum + n, 0);
    const { [TRACKED]: _, ...contents } = this.arrays;
    const perSlot = Object.values(contents).reduce(
      (sum, { data, shape }) => sum + sizeOf(shape.slice(1).with(-2, 1)) * data.BYTES_PER_ELEMENT,
      0,
    );
    return slots * perSlot;
  }

  /** The same slots with other arrays for some names. */
  replaced(arrays: SlotArrays): Slots {
    return new Slots({ ...this.arrays, ...arrays }, this.positions, this.next);
  }

  /** With memory for `needed` slots a row: at least doubled where there is too little. */
  grown(needed: number): Slots {
    if (needed <= this.room) return this;
    return this.#rebuilt(Math.max(needed, 2 * this.room), this.positions, (b) => [b, null]);
  }

  /** Writes (1, ..., count, n) each from slot `at` of row `b` on: beyond what it holds, or into new memory. */
  write(b: number, row: SlotArrays, at: number = this.positions[b]!.length): void {
    for (const [name, x] of Object.entries(row)) {
      copySlots(x, 0, 0, this.arrays[name]!, b, at, x.shape.at(-2)!);
    }
  }

  /** The slots that were written beyond each row's last one now exist, at its next positions. */
  advanced(counts: readonly number[]): Slots {
    const positions = this.positions.map((row, b) => [
      ...row,
      ...Array.from({ length: counts[b]! }, (_, t) => this.next[b]! + t),
    ]);
    return new Slots(
      this.arrays,
      positions,
      this.next.map((n, b) => n + counts[b]!),
    );
  }

  /** Only the slots at positions that are kept, moved up. */
  filtered(keeps: (b: number, position: number) => boolean): Slots {
    return this.selected(
      this.positions.map((row, b) => Array.from(row.keys()).filter((slot) => keeps(b, row[slot]!))),
    );
  }

  /** Only these slots, kept[b] of row b, ascending, moved up. */
  selected(kept: readonly (readonly number[])[]): Slots {
    const positions = kept.map((row, b) => row.map((slot) => this.positions[b]![slot]!));
    return this.#rebuilt(this.room, positions, (b) => [b, kept[b]!]);
  }

  /** The first lengths[b] slots; the next token comes after the last of them. */
  cut(lengths: readonly number[]): Slots {
    const positions = this.positions.map((row, b) => row.slice(0, lengths[b]!));
    const next = positions.map((row) => (row.at(-1) ?? -1) + 1);
    return new Slots(this.arrays, positions, next);
  }

  /** The slots before position ends[b], which is that of the next token. */
  before(ends: readonly number[]): Slots {
    const positions = this.positions.map((row, b) => row.filter((j) => j < ends[b]!));
    return new Slots(this.arrays, positions, [...ends]);
  }

  /** Row i is what row index[i] is here. */
  gathered(index: readonly number[]): Slots {
    const next = index.map((b) => this.next[b]!);
    const rows = index.map((b) => this.positions[b]!);
    return this.#rebuilt(this.room, rows, (b) => [index[b]!, null], next);
  }

  copy(): Slots {
    return this.gathered(Array.from(this.positions.keys()));
  }

  /** What is held, (B, ..., L, n), zero beyond each row. */
  trimmed(): Record<string, Tensor<TensorArray>> {
    return { ...this.#rebuilt(this.length, this.positions, (b) => [b, null]).arrays };
  }

  /** Slots `from` on of row `b`, (1, ..., count, n) each. */
  rest(b: number, from: number): Record<string, Tensor<TensorArray>> {
    const count = this.positions[b]!.length - from;
    return Object.fromEntries(
      Object.entries(this.arrays).map(([name, x]) => [name, counted(x, b, from, count)]),
    );
  }

  /** New memory: row b has the slots at these places (null = all) of the row that `source` names. */
  #rebuilt(
    room: number,
    positions: Slots["positions"],
    source: (b: number) => [row: number, slots: readonly number[] | null],
    next: Slots["next"] = this.next,
  ): Slots {
    const arrays: Record<string, Tensor<TensorArray>> = {};
    for (const [name, x] of Object.entries(this.arrays)) {
      const to = blankLike(x, x.shape.with(0, positions.length).with(-2, room));
      for (let b = 0; b < positions.length; b++) {
        const [row, slots] = source(b);
        if (slots === null) copySlots(x, row, 0, to, b, 0, positions[b]!.length);
        else for (const [n, slot] of slots.entries()) copySlots(x, row, slot, to, b, n, 1);
      }
      arrays[name] = to;
    }
    return new Slots(arrays, positions, next);
  }
}

/** Of row `b` of `x` (B, ..., T, n), `count` positions from `start` on: (1, ..., count, n). */
export function counted<A extends TensorArray>(
  x: Tensor<A>,
  b: number,
  start: number,
  count: number,
): Tensor<A> {
  const part = blankLike(x, x.shape.with(0, 1).with(-2, count));
  copySlots(x, b, start, part, 0, 0, count);
  return part;
}

/** `count` slots of row `b` of `from`, from `start` on, to row `toB` of `to`, from `toStart` on. */
export function copySlots(
  from: Tensor<TensorArray>,
  b: number,
  start: number,
  to: Tensor<TensorArray>,
  toB: number,
  toStart: number,
  count: number,
): void {
  const [held, n] = [from.shape.at(-2)!, from.shape.at(-1)!];
  const room = to.shape.at(-2)!;
  const blocks = sizeOf(from.shape.slice(1, -2)); // (held, n) in a row
  for (let block = 0; block < blocks; block++) {
    const at = ((b * blocks + block) * held + start) * n;
    const part = from.data.subarray(at, at + count * n); // (count, n)
    (to.data as Uint8Array).set(part as Uint8Array, ((toB * blocks + block) * room + toStart) * n);
  }
}
