/** What the file of a cache must be before anything is taken from it. */

import { ensure } from "./checks.ts";
import { DtypeMismatch, InvalidConfig, InvalidFile } from "./errors.ts";
import { type Metadata, parseFile, store, type Tensors } from "./safetensors.ts";
import type { Tensor, TensorArray } from "./tensor.ts";

/** What every file says of itself. */
export const FORMAT: Metadata = { format: "rosetta-kv-cache", version: "1" };

/** What a file has for the rows, beside what they hold. */
export const ROWS: readonly string[] = ["lengths", "next", "positions"];

/** Kinds whose slots stand at 0, 1, 2, ... */
const CONSECUTIVE: readonly unknown[] = ["paged", "latent", "cross"];

/** How much there is room for is a cache's own business. */
const NOT_COMPARED: readonly string[] = ["num_pages"];

/** Only where it is not what it would be anyway. */
const OPTIONAL: readonly string[] = ["group", "key_groups", "track"];

export function parsed(fn: string, file: Uint8Array): { tensors: Tensors; metadata: Metadata } {
  try {
    return parseFile(file);
  } catch (error) {
    throw new InvalidFile(`${fn}: file: expected safetensors, got ${(error as Error).message}`);
  }
}

/** A cache of this version, in one of the types. */
export function checkOurs(fn: string, metadata: Metadata, dtypes: readonly string[]): void {
  for (const [name, expected] of Object.entries(FORMAT)) {
    ensure(metadata[name] === expected, InvalidFile, fn, name, expected, metadata[name]);
  }
  ensure(dtypes.includes(metadata.dtype!), InvalidFile, fn, "dtype", dtypes.join(" or "), metadata.dtype);
}

/** First whether the file says what it must, then whether it fits this cache, its element type last. */
export function checkDescription(
  fn: string,
  metadata: Metadata,
  expected: Readonly<Record<string, string>>,
): void {
  const named = metadata.kind === expected.kind ? Object.keys(expected) : ["kind", "batch"];
  for (const name of named) {
    const present = OPTIONAL.includes(name) || typeof metadata[name] === "string";
    ensure(present, InvalidFile, fn, name, "a value", metadata[name]);
  }
  for (const name of new Set([...OPTIONAL, ...Object.keys(expected)])) {
    if (name === "dtype" || NOT_COMPARED.includes(name)) continue;
    const same = metadata[name] === expected[name];
    ensure(same, InvalidConfig, fn, name, `${expected[name]} as in the cache`, metadata[name]);
  }
  const same = metadata.dtype === expected.dtype;
  ensure(same, DtypeMismatch, fn, "dtype", `${expected.dtype} as in the cache`, metadata.dtype);
}

/** The names that this cache would write, and of the rows types and shapes; L is the file's. */
export function checkNames(
  fn: string,
  tensors: Tensors,
  own: readonly [name: string, tensor: Tensor<TensorArray>][],
  rowAxes: readonly number[],
): void {
  const names = [...ROWS, ...own.map(([name]) => name)].sort();
  const given = [...tensors.keys()].sort();
  ensure(String(given) === String(names), InvalidFile, fn, "tensors", names.join(", "), given);
  const L = tensors.get("positions")!.shape[rowAxes.length] ?? 0;
  for (const name of ROWS) {
    checkTensor(fn, tensors, name, "I64", name === "positions" ? [...rowAxes, L] : rowAxes);
  }
}

/** Types and shapes of what the rows hold, whose lengths are checked already. */
export function checkContents(
  fn: string,
  tensors: Tensors,
  own: readonly [name: string, tensor: Tensor<TensorArray>][],
  entries: (name: string) => number,
): void {
  for (const [name, x] of own) {
    checkTensor(fn, tensors, name, store(x, "U8").dtype, x.shape.with(-2, entries(name)));
  }
}

function checkTensor(
  fn: string,
  tensors: Tensors,
  name: string,
  dtype: string,
  shape: readonly number[],
): void {
  const stored = tensors.get(name)!;
  const same = stored.dtype === dtype && String(stored.shape) === String(shape);
  ensure(same, InvalidFile, fn, name, `${dtype} (${shape})`, `${stored.dtype} (${stored.shape})`);
}

/** lengths (B,), next (B,) and table (B, L): ascending positions below the next one, -1 beyond a row. */
export function checkRows(
  fn: string,
  lengths: readonly number[],
  next: readonly number[],
  table: readonly number[],
  L: number,
  kind: string,
): void {
  for (const [b, length] of lengths.entries()) {
    ensure(0 <= length && length <= L, InvalidFile, fn, "lengths", `values from 0 to ${L}`, length);
    const row = table.slice(b * L, b * L + length);
    const rest = table.slice(b * L + length, (b + 1) * L);
    const steps = [...row, next[b]!];
    const safe = steps.every(Number.isSafeInteger);
    const ascending = safe && steps.every((j, n) => j > (n === 0 ? -1 : steps[n - 1]!));
    ensure(ascending, InvalidFile, fn, "positions", `ascending ones from 0 to below ${next[b]}`, row);
    const blank = rest.every((j) => j === -1);
    ensure(blank, InvalidFile, fn, "positions", "-1 beyond a row", rest);
    if (!CONSECUTIVE.includes(kind)) continue;
    const whole = steps.every((j, n) => j === n);
    ensure(whole, InvalidFile, fn, "positions", `0 to ${length - 1}, then ${length}`, steps);
  }
}
