/** What the file of a cache must be before anything is taken from it. */

import { ensure } from "./checks.ts";
import { DtypeMismatch, InvalidConfig, InvalidFile } from "./errors.ts";
import { type Metadata, parseFile, store, type Tensors } from "./safetensors.ts";
import { longest, type Tensor, type TensorArray } from "./tensor.ts";

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

/** What a file need not say: that something is not so. */
function said(value: string | undefined): string | undefined {
  return value === "false" ? undefined : value;
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
    const same = said(metadata[name]) === said(expected[name]);
    ensure(same, InvalidConfig, fn, name, `${expected[name]} as in the cache`, metadata[name]);
  }
  const same = metadata.dtype === expected.dtype;
  ensure(same, DtypeMismatch, fn, "dtype", `${expected.dtype} as in the cache`, metadata.dtype);
}

/** The names, types and shapes that this cache would write, but for the number of slots, L, or of other entries. */
export function checkTensors(
  fn: string,
  tensors: Tensors,
  own: readonly [name: string, tensor: Tensor<TensorArray>][],
  rowAxes: readonly number[],
  entries: (name: string, slots: number) => number,
): void {
  const names = [...ROWS, ...own.map(([name]) => name)].sort();
  const given = [...tensors.keys()].sort();
  ensure(String(given) === String(names), InvalidFile, fn, "tensors", names.join(", "), given);
  const L = tensors.get("positions")!.shape[rowAxes.length] ?? 0;
  const slots = (name: string) => (entries(name, L) === L ? L : (tensors.get(name)!.shape.at(-2) ?? 0));
  const expected: [name: string, dtype: string, shape: readonly number[]][] = [
    ["lengths", "I64", rowAxes],
    ["next", "I64", rowAxes],
    ["positions", "I64", [...rowAxes, L]],
    ...own.map(
      ([name, x]) =>
        [name, store(x, "U8").dtype, x.shape.with(-2, slots(name))] as [string, string, number[]],
    ),
  ];
  for (const [name, dtype, shape] of expected) {
    const stored = tensors.get(name)!;
    const same = stored.dtype === dtype && String(stored.shape) === String(shape);
    ensure(same, InvalidFile, fn, name, `${dtype} (${shape})`, `${stored.dtype} (${stored.shape})`);
  }
}

/** Each tensor (B, ..., count, n) has as many entries as its rows need. */
export function checkEntries(
  fn: string,
  tensors: readonly [name: string, tensor: Tensor<TensorArray>][],
  countsOf: (name: string) => readonly number[],
): void {
  for (const [name, { shape }] of tensors) {
    const needed = longest(countsOf(name));
    ensure(shape.at(-2)! >= needed, InvalidFile, fn, name, `at least ${needed} entries a row`, shape.at(-2));
  }
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
