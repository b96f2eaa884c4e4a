/**
 * A cache as bytes, from which it goes on elsewhere, also in another language.
 *
 * The format is that of safetensors: metadata say what kind and sizes of cache it is, tensors what it holds,
 * slot by slot with its position, whatever memory it has here. How much it has room for is not part of it.
 *
 * Letters: B batch, L slots of the longest row.
 */

import type { Cache, CacheState } from "./cache.ts";
import { checkDescription, checkOurs, checkRows, checkTensors, FORMAT, parsed, ROWS } from "./checks_file.ts";
import { positionTable } from "./held.ts";
import { formatTensors, type Stored, store } from "./safetensors.ts";
import { Slots } from "./slots.ts";
import { type FloatDtype, int64, SHORT_NAMES, type Tensor, type TensorArray } from "./tensor.ts";

/** What the cache holds, as a file. */
export function saveCache(cache: Cache): Uint8Array {
  const { positions, next, tensors } = cache.state();

  // 1. describe: what another cache must be to take it
  const metadata = describe(cache);

  // 2. write: exactly what is held
  const counts = positions.map((row) => row.length); // (B,)
  const contents = Object.entries(tensors).map(([name, x]): [string, Stored] => [name, store(x, "U8")]);
  const rows = { lengths: int64(counts), next: int64(next), positions: positionTable(positions) };
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
  const { tensors, metadata } = parsed("load", file);
  checkOurs("load", metadata, Object.keys(SHORT_NAMES));
  checkDescription("load", metadata, describe(cache));
  checkTensors("load", tensors, Object.entries(cache.state().tensors));
  const [lengths, next, table] = ROWS.map((name) => Array.from(tensors.get(name)!.data, Number));
  const L = tensors.get("positions")!.shape[1]!;
  checkRows("load", lengths!, next!, table!, L, cache.description.kind as string);

  // 4. restore: up to the longest row
  const positions = lengths!.map((n, b) => table!.slice(b * L, b * L + n)); // (B,) lists
  const contents = [...tensors].filter(([name]) => !ROWS.includes(name));
  const state: CacheState = {
    positions,
    next: next!,
    tensors: Object.fromEntries(contents.map(([name, x]) => [name, upTo(x, positions)])),
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

/** (B, ..., L, n) without what no row reaches. */
function upTo({ data, shape }: Stored, positions: readonly (readonly number[])[]): Tensor<TensorArray> {
  const whole = new Slots({ x: { data, shape } }, positions, []);
  return whole.trimmed().x!;
}
