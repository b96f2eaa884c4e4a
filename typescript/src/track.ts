/**
 * How much each held slot has been looked at: the sum of the weights it was given, in doubles.
 *
 * The sum stands beside the slot, as one more of its arrays, and so goes where the slot goes.
 *
 * Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv, Tq queries, L slots of the longest row.
 *
 * Source: Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
 * 2023, section 4 (accumulated attention scores).
 */

import type { SlotArrays, Slots } from "./slots.ts";
import { type FloatArray, sizes4, type Tensor, zeros } from "./tensor.ts";

/** The name of the array, in slots and in a file. */
export const TRACKED = "tracked";

/** Sums of 0, as an array of slots: (B, Hkv, room, 1). */
export function blankTrack(batch: number, numKvHeads: number, room: number): Tensor<Float64Array> {
  return zeros("float64", [batch, numKvHeads, room, 1]);
}

/** What a row has beside `count` new slots: sums of 0, (1, Hkv, count, 1), or nothing where none are kept. */
export function newTrack({ arrays }: Slots, count: number): SlotArrays {
  const sums = arrays[TRACKED];
  return sums === undefined ? {} : { [TRACKED]: blankTrack(1, sums.shape[1]!, count) };
}

/** `weights` (B, Hq, Tq, L) added up over the queries, and over the query heads of each KV head: (B, Hkv, L). */
export function weightsGiven(weights: Tensor<FloatArray>, numKvHeads: number): Tensor<Float64Array> {
  const [B, Hq, Tq, L] = sizes4(weights);
  const queries = (Hq / numKvHeads) * Tq; // G·Tq stand in a row
  const given = zeros("float64", [B, numKvHeads, L]);
  for (let at = 0; at < weights.data.length; at++) {
    const head = Math.floor(at / (queries * L)); // of (B, Hkv)
    given.data[head * L + (at % L)]! += weights.data[at]!;
  }
  return given;
}

/** The sums of the slots that are held, (B, Hkv, L), zero beyond a row. */
export function readTrack(slots: Slots): Tensor<Float64Array> {
  const { data, shape } = slots.trimmed()[TRACKED] as Tensor<Float64Array>;
  return { data, shape: shape.slice(0, -1) };
}

/** The same slots, each given as much more, (B, Hkv, L). */
export function withGiven(slots: Slots, given: Tensor<Float64Array>): Slots {
  const [before, room] = [slots.arrays[TRACKED] as Tensor<Float64Array>, slots.room];
  const L = given.shape[2]!;
  const sums = { data: before.data.slice(), shape: before.shape }; // (B, Hkv, room, 1)
  for (let at = 0; at < given.data.length; at++) {
    sums.data[Math.floor(at / L) * room + (at % L)]! += given.data[at]!;
  }
  return slots.replaced({ [TRACKED]: sums });
}
