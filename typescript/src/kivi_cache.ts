/**
 * The quantised KV cache whose keys are quantised channel by channel, in groups of consecutive tokens.
 *
 * A few channels of keys are far larger than the others, and a scale that they share with these wastes most
 * codes; along the tokens each channel has a scale of its own. A group is quantised when it is full. The last
 * tokens of a row, too few for a group, wait in float32: the tail. Values are quantised token by token, as in
 * quantised_cache.
 *
 * Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, Tq queries, L slots of the longest
 * row, D and Dv head sizes, n tokens of a group, S slots from some group on.
 *
 * Source: Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", 2024, section 3.
 */

import type { AppendOptions, Cache, CacheState, CacheStats, Description } from "./cache.ts";
import { attendedKeys, heldRope, turned, turnedFurther } from "./cache_rope.ts";
import { narrow, widen } from "./cast.ts";
import { checkCapacity, checkRoom, checkTruncate } from "./checks_cache.ts";
import { checkFinite, checkFormat, checkKeyGroups } from "./checks_quantise.ts";
import { EvictingCache } from "./evicting_cache.ts";
import { attendOver, type Held, range } from "./held.ts";
import { chosen, groupOf, joined, type KeyGroup, type KeyRow, keysOf, place } from "./key_groups.ts";
import { blankPairs } from "./pairs.ts";
import { packed, type QuantFormat } from "./quantise.ts";
import {
  asCodes,
  codesOf,
  describeCodes,
  fromCodes,
  type QuantisedCacheOptions,
  type QuantisedContents,
} from "./quantised_cache.ts";
import type { AttentionOptions, SdpaSteps } from "./sdpa.ts";
import { counted } from "./slots.ts";
import {
  blankLike,
  type FloatArrays,
  type FloatDtype,
  type Lengths,
  longest,
  type Tensor,
  type TensorArray,
  type WideArray,
  zeros,
} from "./tensor.ts";
import { newTrack } from "./track.ts";

/** `format` is "int8" or "int4", and `group` speaks of the values only. */
export interface KiviCacheOptions<T extends FloatDtype = "float32"> extends QuantisedCacheOptions<T> {
  /** n >= 1: how many consecutive tokens of a row share a scale in each channel of a key. */
  readonly keyGroups: number;
}

/** What {@link KiviCache.read} gives: kCodes are 0 where the tail is. */
export interface KiviContents<T extends FloatDtype = "float32"> extends QuantisedContents<T> {
  /** (B, Hkv, groups, D), of the row with the most groups */
  readonly kScale: Tensor<Float32Array>;
  /** (B, Hkv, groups, D); only with a zero point */
  readonly kZero?: Tensor<Float32Array>;
  /** (B, Hkv, tail, D), of the row with the longest tail */
  readonly kTail: Tensor<Float32Array>;
}

/** Codes of keys by channel and of values by token. A call that throws leaves the cache as it was. */
export class KiviCache<T extends FloatDtype = "float32"> extends EvictingCache<T> implements Cache<T> {
  readonly format: QuantFormat;
  /** Of the values; null: all channels of a token and head. */
  readonly group: number | null;
  readonly zeroPoint: boolean;
  readonly keyGroups: number;
  readonly #options: KiviCacheOptions<T>;
  /** (B,) */
  #keys: readonly KeyRow[];

  /** @throws InvalidConfig, ShapeMismatch, DtypeMismatch. */
  constructor(options: KiviCacheOptions<T>) {
    super("kivi_cache", options);
    this.format = options.format;
    this.group = options.group ?? null;
    this.zeroPoint = options.zeroPoint ?? false;
    this.keyGroups = options.keyGroups;
    this.#options = options;
    checkFormat("kivi_cache", options);
    checkKeyGroups("kivi_cache", this.keyGroups, this.format);
    const width = Math.max(this.headDim, this.valueDim);
    checkCapacity("kivi_cache", this.capacity, this.batch, this.numKvHeads, width);
    this.slots = this.blank(asCodes("v", blankPairs(this, 0).v, options));
    this.#keys = this.#noKeys();
  }

  override get capacity(): number | null {
    return this.#options.capacity ?? null;
  }

  get description(): Description {
    return { ...describeCodes(this), key_groups: this.keyGroups };
  }

  protected empty(): this {
    return new KiviCache(this.#options) as this;
  }

  /**
   * Arguments and errors are those of {@link KVCache.append}; a number that is not finite is InvalidConfig, also
   * where its group is not full, and so is a group whose range is not.
   */
  append(
    k: Tensor<FloatArrays[T]>,
    v: Tensor<FloatArrays[T]>,
    lengths?: Lengths | null,
    options: AppendOptions = {},
  ): void {
    // 1. check: everything, before anything is changed
    const { counts, starts } = this.checkedCounts(k, v, lengths, options); // (B,)
    const needed = this.slots.lengthAfter(counts);
    checkRoom("append", needed, this.capacity);

    // 2. tail: new keys join those that wait, turned as their positions say, or left to an attend
    const waiting = counts.map((count, b) => {
      const places = range(this.slots.next[b]!, count); // (count,)
      const newK = turned(widen(counted(k, b, starts[b]!, count)), heldRope(this), places);
      const narrowK = narrow(newK, "float32"); // (1, Hkv, count, D)
      checkFinite("append", "k", narrowK);
      return joined(this.#keys[b]!.tail, narrowK); // (1, Hkv, S, D)
    });

    // 3. quantise: as the channels of a token otherwise are, with tokens for channels; values by token
    const keys = waiting.map((x, b) => this.#grouped(this.#keys[b]!.groups, x));
    const rows = counts.map((count, b) => {
      const codes = asCodes("v", counted(v, b, starts[b]!, count), this.#options); // (1, Hkv, count, ·)
      return { ...codes, ...newTrack(this.slots, count) };
    });
    const slots = this.slots.grown(needed);
    for (const [b, row] of rows.entries()) slots.write(b, row);
    this.slots = slots.advanced(counts);
    this.#keys = keys;
  }

  held(): Held {
    // 4. restore: every channel of a group by its own scale; the tail is there as it came
    const { k, v } = this.#numbers(); // (B, Hkv, L, D), (B, Hkv, L, Dv)
    const { positions } = this.slots;
    const turnedK = attendedKeys(k, positions, this); // (B, Hkv, L, D)
    return { k: turnedK, v, positions, rope: this.rope, track: this.tracker };
  }

  /** Arguments and errors are those of {@link KVCache.attendSteps}. */
  attendSteps(
    q: Tensor<FloatArrays[T]>,
    options: AttentionOptions<FloatArrays[T]> = {},
  ): SdpaSteps<FloatArrays[T]> {
    // 5. attend: as in a contiguous cache of these numbers
    return attendOver(this, q, options);
  }

  /** As {@link KVCache.truncate}; keys of a group that loses some wait in the tail, restored. */
  truncate(lengths: readonly number[]): void {
    // 6. truncate: what is left of a group that is cut waits in the tail
    checkTruncate("truncate", lengths, this.lengths);
    this.#keys = this.#keys.map((row, b) => {
      const length = lengths[b]!;
      if (length === this.lengths[b]) return row;
      return this.#rewritten(row, length, (keys, start) => counted(keys, 0, 0, length - start));
    });
    this.slots = this.slots.cut(lengths);
  }

  /** Copies of what is held, in codes and restored. */
  read(): KiviContents<T> {
    // 7. read: the tail as it is, all else restored; rounded once to the type of the cache
    const { k, v } = this.#numbers();
    return {
      ...{ k: narrow(k, this.dtype), v: narrow(v, this.dtype) },
      ...{ lengths: this.lengths, positions: this.slots.places, ...this.readTrack() },
      ...codesOf({ ...this.#arrays(), ...this.slots.trimmed() }),
    } as unknown as KiviContents<T>;
  }

  override reset(): void {
    super.reset();
    this.#keys = this.#noKeys();
  }

  override reorder(index: readonly number[]): void {
    super.reorder(index);
    this.#keys = index.map((b) => this.#keys[b]!);
  }

  override fork(): this {
    const copy = super.fork();
    copy.#keys = this.#keys;
    return copy;
  }

  override stats(): CacheStats {
    const { positions, bytes } = super.stats();
    const parts = this.#keys.flatMap(({ groups, tail }) => [
      tail,
      ...groups.flatMap(({ codes, scale, zero }) => (zero === null ? [codes, scale] : [codes, scale, zero])),
    ]);
    return { positions, bytes: parts.reduce((sum, { data }) => sum + data.byteLength, bytes) };
  }

  override state(): CacheState {
    const { tensors, ...rows } = super.state();
    return { ...rows, tensors: { ...this.#arrays(), ...tensors } };
  }

  override restore({ tensors, ...rows }: CacheState): void {
    const { k_codes, k_scale, k_zero, k_tail, ...values } = tensors as Record<string, Tensor<Float32Array>>;
    const n = this.keyGroups;
    const keys = rows.positions.map(({ length }, b): KeyRow => {
      const groups = range(0, Math.floor(length / n)).map((g) => ({
        codes: counted(k_codes!, b, g * n, n),
        scale: counted(k_scale!, b, g, 1),
        zero: k_zero === undefined ? null : counted(k_zero, b, g, 1),
      }));
      return { groups, tail: counted(k_tail!, b, 0, length % n) };
    });
    super.restore({ ...rows, tensors: values });
    this.#keys = keys;
  }

  /** How many entries of a tensor of {@link state} a row of so many slots has; null: one a slot. */
  entries(name: string): ((slots: number) => number) | null {
    const n = this.keyGroups;
    if (name === "k_scale" || name === "k_zero") return (slots) => Math.floor(slots / n);
    return name === "k_tail" ? (slots) => slots % n : null;
  }

  override checkpoint(): () => void {
    const [undo, before] = [super.checkpoint(), this.#keys];
    return () => {
      undo();
      this.#keys = before;
    };
  }

  protected override keep(kept: readonly (readonly number[])[]): void {
    const keys = this.#keys.map((row, b) => {
      const slots = kept[b]!;
      if (slots.length === this.slots.positions[b]!.length) return row;
      const moved = slots.findIndex((slot, n) => slot !== n);
      return this.#rewritten(row, moved < 0 ? slots.length : moved, (rest, start) => {
        const stay = slots.slice(start).map((slot) => slot - start);
        return chosen(rest, stay); // (1, Hkv, S, D)
      });
    });
    super.keep(kept);
    this.#keys = keys;
  }

  protected turnKeys(by: number, from: number): void {
    this.#keys = this.#keys.map((row, b) => {
      const places = this.slots.positions[b]!;
      const stays = places.filter((j) => j < from).length;
      if (stays === places.length) return row;
      return this.#rewritten(row, stays, (rest, start) => {
        const before = counted(rest, 0, 0, stays - start);
        const after = this.#wide(counted(rest, 0, stays - start, places.length - stays));
        const turned = narrow(turnedFurther(after, this.rope, by), "float32");
        checkFinite("shift", "by", turned);
        return joined(before, turned); // (1, Hkv, S, D)
      });
    });
  }

  #noKeys(): KeyRow[] {
    const tail = zeros("float32", [1, this.numKvHeads, 0, this.headDim]);
    return Array.from({ length: this.batch }, () => ({ groups: [], tail }));
  }

  /** Keys (1, Hkv, S, D) behind those groups: quantised where a group is full. */
  #grouped(before: readonly KeyGroup[], keys: Tensor<Float32Array>): KeyRow {
    const [n, S] = [this.keyGroups, keys.shape[2]!];
    const whole = Math.floor(S / n);
    const full = range(0, whole).map((g) => groupOf(counted(keys, 0, g * n, n), this));
    return { groups: [...before, ...full], tail: counted(keys, 0, whole * n, S - whole * n) };
  }

  /** The keys from group `first` on, (1, Hkv, S, D). */
  #restored({ groups, tail }: KeyRow, first: number = 0): Tensor<Float32Array> {
    const n = this.keyGroups;
    const some = groups.slice(first);
    const whole = some.length * n;
    const keys = blankLike(tail, tail.shape.with(2, whole + tail.shape[2]!));
    for (const [g, group] of some.entries()) place(keysOf(group, this), keys, 0, g * n);
    place(tail, keys, 0, whole);
    return keys;
  }

  /**
   * The row with other keys from `slot` on, or from the beginning of its group.
   *
   * @param change takes those keys, restored, (1, Hkv, S, D), and the slot where they begin, and gives the new ones.
   */
  #rewritten(
    row: KeyRow,
    slot: number,
    change: (keys: Tensor<Float32Array>, start: number) => Tensor<Float32Array>,
  ): KeyRow {
    const first = Math.floor(slot / this.keyGroups);
    const keys = change(this.#restored(row, first), first * this.keyGroups);
    return this.#grouped(row.groups.slice(0, first), keys);
  }

  /** All that is held, restored: k (B, Hkv, L, D) and v (B, Hkv, L, Dv), float64 where the cache's type is that. */
  #numbers(): Pick<Held, "k" | "v"> {
    const k = zeros("float32", [this.batch, this.numKvHeads, this.length, this.headDim]);
    for (const [b, row] of this.#keys.entries()) place(this.#restored(row), k, b, 0);
    const v = fromCodes("v", this.slots.trimmed(), this.valueDim, this.#options);
    return { k: this.#wide(k), v: this.#wide(v) };
  }

  /** As wide as the cache computes in. */
  #wide(x: Tensor<Float32Array>): Tensor<WideArray> {
    return this.dtype === "float64" ? narrow(x, "float64") : x;
  }

  /** The arrays of the keys as a file has them, zero beyond a row. */
  #arrays(): Record<string, Tensor<TensorArray>> {
    const [B, Hkv, D, n] = [this.batch, this.numKvHeads, this.headDim, this.keyGroups];
    const groups = longest(this.#keys.map((row) => row.groups.length));
    const none = { data: new Int16Array(B * Hkv * this.length * D), shape: [B, Hkv, this.length, D] };
    const codes = packed(none, this.#options); // (B, Hkv, L, ·)
    const scale = zeros("float32", [B, Hkv, groups, D]);
    const zero = zeros("float32", scale.shape);
    const tail = zeros("float32", [B, Hkv, longest(this.#keys.map((row) => row.tail.shape[2]!)), D]);
    for (const [b, row] of this.#keys.entries()) {
      for (const [g, group] of row.groups.entries()) {
        place(group.codes, codes, b, g * n);
        place(group.scale, scale, b, g);
        if (group.zero !== null) place(group.zero, zero, b, g);
      }
      place(row.tail, tail, b, 0);
    }
    const keys = { k_codes: codes, k_scale: scale, k_tail: tail };
    return this.zeroPoint ? { ...keys, k_zero: zero } : keys;
  }
}
