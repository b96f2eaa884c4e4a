/**
 * A cache as bytes, from which it goes on elsewhere, also in another language.
 *
 * The format is that of safetensors: metadata say what kind and sizes of cache it is, tensors what it holds,
 * slot by slot with its position, whatever memory it has here. How much it has room for is not part of it.
 *
 * Letters: B batch, L slots of the longest row.
 */

import type { Cache, CacheState } from "./cache.ts";
import { positionTable } from "./cache_rope.ts";
import {
  checkContents,
  checkDescription,
  checkNames,
  checkOurs,
  checkRows,
  FORMAT,
  parsed,
  ROWS,
} from "./checks_file.ts";
import { range } from "./held.ts";
import { formatTensors, type Stored, store } from "./safetensors.ts";
import { Slots } from "./slots.ts";
import {
  type FloatDtype,
  int64,
  longest,
  SHORT_NAMES,
  sizeOf,
  type Tensor,
  type TensorArray,
} from "./tensor.ts";
import { TRACKED } from "./track.ts";

/** What the cache holds, as a file. */
export function saveCache(cache: Cache): Uint8Array {
  const { positions, next, tensors } = cache.state();
  const rowAxes = cache.rowAxes ?? [cache.batch];

  // 1. describe: what another cache must be to take it
  const metadata = describe(cache);

  // 2. write: exactly what is held
  const counts = positions.map((row) => row.length); // (B,)
  const contents = Object.entries(tensors).map(([name, x]): [string, Stored] => [
    name,
    store(name === TRACKED ? reshaped(x, x.shape.slice(0, -1)) : x, "U8"),
  ]);
  const table = positionTable(positions); // (B, L)
  const rows = {
    lengths: reshaped(int64(counts), rowAxes),
    next: reshaped(int64(next), rowAxes),
    positions: reshaped(table, [...rowAxes, table.shape[1]!]),
  };
  const all = [...Object.entries(rows).map(([name, x]): [string, Stored] => [name, store(x)]), ...contents];
  return formatTensors(new Map(all), metadata);
}

/**
 * Replaces what the cache holds by what a file of {@link saveCache}, here or in another language, has.
 *
 * @throws InvalidFile for one that is damaged or foreign, InvalidConfig for one of another kind or size,
 * DtypeMismatch, CapacityExceeded; then the cache is as it was.
 */
export function loadCache(cache: Cache, file: Uint8Array): void {
  // 3. check: everything, before anything is changed
  const { tensors: stored, metadata } = parsed("load", file);
  const tensors = new Map([...stored].map(([name, x]) => [name, name === TRACKED ? slotBySlot(x) : x]));
  checkOurs("load", metadata, Object.keys(SHORT_NAMES));
  checkDescription("load", metadata, describe(cache));
  const rowAxes = cache.rowAxes ?? [cache.batch];
  const own = Object.entries(cache.state().tensors);
  checkNames("load", tensors, own, rowAxes);
  const [lengths, next, table] = ROWS.map((name) => Array.from(tensors.get(name)!.data, Number));
  const L = tensors.get("positions")!.shape.at(-1)!;
  checkRows("load", lengths!, next!, table!, L, cache.description.kind as string);
  const countsOf = (name: string) => lengths!.map(cache.entries?.(name) ?? ((n) => n)); // (B,)
  const entries = (name: string) => (cache.entries?.(name) == null ? L : longest(countsOf(name)));
  checkContents("load", tensors, own, entries);

  // 4. restore: up to the longest row
  const contents = [...tensors].filter(([name]) => !ROWS.includes(name));
  const positions = lengths!.map((n, b) => table!.slice(b * L, b * L + n)); // (B,) lists
  const state: CacheState = {
    positions,
    next: next!,
    tensors: Object.fromEntries(contents.map(([name, x]) => [name, upTo(x, rowAxes, countsOf(name))])),
  };
  cache.restore(state);
}

/** The element type of what a file holds. @throws InvalidFile. */
export function dtypeOfFile(file: Uint8Array): FloatDtype {
  const { metadata } = parsed("load", file);
  checkOurs("load", metadata, Object.keys(SHORT_NAMES));
  return SHORT_NAMES[metadata.dtype!]!;
}

function describe({ description }: Cache): Record<string, string> {
  const dtype = Object.keys(SHORT_NAMES).find((name) => SHORT_NAMES[name] === description.dtype)!;
  const all = { ...FORMAT, ...description, dtype };
  return Object.fromEntries(
    Object.entries(all).flatMap(([name, value]) => (value === null ? [] : [[name, String(value)]])),
  );
}

/** (B, ..., L, n) without what no row reaches, each with so many slots. */
function upTo(
  { data, shape }: Stored,
  rowAxes: readonly number[],
  counts: readonly number[],
): Tensor<TensorArray> {
  const perRow = shape.slice(rowAxes.length); // (..., L, n)
  const rows = counts.map((n) => range(0, n));
  const whole = new Slots({ x: { data, shape: [sizeOf(rowAxes), ...perRow] } }, rows, []);
  const x = whole.trimmed().x!;
  return reshaped(x, [...rowAxes, ...x.shape.slice(1)]);
}

/** (B, Hkv, L) to (B, Hkv, L, 1). */
function slotBySlot({ shape, ...rest }: Stored): Stored {
  return { ...rest, shape: [...shape, 1] };
}

function reshaped({ data }: Tensor<TensorArray>, shape: readonly number[]): Tensor<TensorArray> {
  return { data, shape };
}
