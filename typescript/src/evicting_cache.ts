/**
 * Caches whose slots can be forgotten one by one, by position or by policy, and whose positions can move to close
 * the gaps.
 *
 * Letters: B batch, Hkv key/value heads, L slots of the longest row, D head size.
 *
 * Sources: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023, section 3.2; those of
 * eviction.ts.
 */

import { heldRope } from "./cache_rope.ts";
import { widen } from "./cast.ts";
import { requireBoolean } from "./checks.ts";
import { checkEvict, checkShift } from "./checks_cache.ts";
import { checkPolicy } from "./checks_eviction.ts";
import { type Evidence, type Policy, slotScores, slotsThatStay } from "./eviction.ts";
import { attendHeld, firstQueries, type Held } from "./held.ts";
import type { KVCacheOptions } from "./kv_cache.ts";
import { PairCache } from "./pair_cache.ts";
import type { KVCacheContents } from "./pairs.ts";
import { type SlotArrays, Slots } from "./slots.ts";
import { type FloatArrays, type FloatDtype, sizes4, type Tensor } from "./tensor.ts";
import { blankTrack, readTrack, TRACKED, weightsGiven, withGiven } from "./track.ts";

export abstract class EvictingCache<T extends FloatDtype> extends PairCache<T> {
  /** Whether it adds up the weights that its slots are given. */
  readonly track: boolean;

  /** @throws InvalidConfig, ShapeMismatch, DtypeMismatch, in the name of `fn`. */
  constructor(fn: string, options: KVCacheOptions<T>) {
    super(fn, options, options);
    this.track = options.track ?? false;
    requireBoolean(fn, "track", this.track);
  }

  abstract read(): KVCacheContents<T>;
  /** Keys that stand at `from` or behind it, and are held turned, `by` positions further. All of them, or it throws. */
  protected abstract turnKeys(by: number, from: number): void;

  /**
   * Every row forgets these positions where it holds them. The others keep theirs, and the next token comes
   * after the last position that the row ever held. @throws InvalidConfig.
   */
  evict(positions: readonly number[]): void {
    checkEvict("evict", positions);
    const gone = new Set(positions);
    this.keep(this.slots.positions.map((row) => slotsOf(row, (j) => !gone.has(j))));
  }

  /**
   * Every row keeps the slots that the policy chooses, for all its heads at once: scores are added up over them.
   * The others are evicted. @throws InvalidConfig, ShapeMismatch, DtypeMismatch.
   */
  evictBy(policy: Policy<FloatArrays[T]>): void {
    checkPolicy("evict_by", policy, this, false);
    this.evictRows(policy, new Array<number>(this.batch).fill(policy.budget as number));
  }

  /** The same with a budget for each row, (B,), of a policy that has been checked. */
  evictRows(policy: Policy<FloatArrays[T]>, budgets: readonly number[]): void {
    const recent = policy.type === "window" ? null : policy.recent;
    const pool = policy.type === "snapkv" ? policy.pool : null;
    const choice = { sinks: policy.sinks ?? 0, recent: recent ?? 0, pool: pool ?? 1 };
    const scores = slotScores(policy, this.#evidence()); // (B,) lists
    this.keep(scores.map((row, b) => slotsThatStay(row, { ...choice, budget: budgets[b]! })));
  }

  /**
   * Moves what stands at `from` or behind it by `by` positions, and turns its keys as far where they are held
   * turned.
   *
   * @throws InvalidConfig where one would fall below 0, or onto or past one that stays.
   */
  shift(by: number, from: number): void {
    checkShift("shift", by, from, this.slots);
    if (by === 0) return; // what is rounded again may change
    if (heldRope(this) !== null) this.turnKeys(by, from);
    const { arrays, positions, next } = this.slots;
    const places = positions.map((row) => row.map((j) => (j >= from ? j + by : j)));
    const after = next.map((n) => (n > from ? n + by : n));
    this.slots = new Slots(arrays, places, after);
  }

  /** Row b keeps these slots, kept[b], ascending. */
  protected keep(kept: readonly (readonly number[])[]): void {
    this.slots = this.slots.selected(kept);
  }

  /** Without slots, tracked or not. */
  protected blank(arrays: SlotArrays): Slots {
    const room = Object.values(arrays)[0]!.shape.at(-2)!;
    const track: SlotArrays = this.track ? { [TRACKED]: blankTrack(this.batch, this.numKvHeads, room) } : {};
    return Slots.empty({ ...arrays, ...track }, this.batch);
  }

  /** What {@link Held} has of it; null: nothing. */
  protected get tracker(): Held["track"] {
    if (!this.track) return null;
    return (given) => {
      this.slots = withGiven(this.slots, given);
    };
  }

  /** The sums, (B, Hkv, L), as contents have them. */
  protected readTrack(): { tracked?: Tensor<Float64Array> } {
    return this.track ? { tracked: readTrack(this.slots) } : {};
  }

  #evidence(): Evidence<T> {
    const given = (q: Tensor<FloatArrays[T]>, scale: number | null) => {
      const first = firstQueries(this.next, sizes4(q)[2]); // (B,)
      const held: Held = { ...this.held(), track: null };
      const { weights } = attendHeld(widen(q), first, held, { scale, mask: { causal: true } });
      return weightsGiven(weights, this.numKvHeads); // (B, Hkv, L)
    };
    return {
      places: this.slots.positions,
      keys: () => widen(this.read().k), // (B, Hkv, L, D)
      tracked: () => readTrack(this.slots), // (B, Hkv, L)
      given,
    };
  }
}

/** A copy with the slots from position `from` on changed by `turn`, which takes those of a row, (1, ..., count, n) each. */
export function turnedFrom(slots: Slots, from: number, turn: (row: SlotArrays) => SlotArrays): Slots {
  const copy = slots.copy();
  for (const [b, row] of slots.positions.entries()) {
    const stays = row.filter((j) => j < from).length;
    if (stays < row.length) copy.write(b, turn(slots.rest(b, stays)), stays);
  }
  return copy;
}

/** The slots of a row whose positions are kept. */
function slotsOf(row: readonly number[], keeps: (position: number) => boolean): number[] {
  return Array.from(row.keys()).filter((slot) => keeps(row[slot]!));
}
