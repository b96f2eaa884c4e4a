/**
 * Tensors in safetensors files: eight bytes with the length of the header, the header in JSON, then the data,
 * everything little-endian. Offsets count from the end of the header, which may stand at any byte: every
 * tensor is copied to memory of its own, since a typed array cannot begin at an odd address.
 */

import { existsSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { endianness } from "node:os";
import { Bfloat16Array, type Tensor, type TensorArray } from "../src/index.ts";
import { InvalidRequest } from "./errors.ts";

/**
 * A tensor as it stands in a file; `data` fits `dtype` where {@link ARRAYS} has it, and is plain bytes
 * elsewhere.
 */
export interface Stored {
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly data: TensorArray;
}

export type Tensors = ReadonlyMap<string, Stored>;

/** The element types that this port computes with; the others are carried as bytes. */
const ARRAYS = {
  F32: Float32Array,
  F64: Float64Array,
  F16: Float16Array,
  BF16: Bfloat16Array,
  I64: BigInt64Array,
  BOOL: Uint8Array,
};

/** All that the format knows. */
const DTYPE_NAME = /^(BOOL|C64|F4|F6_E[23]M[23]|F8_E[458]M[0-3](FNUZ)?|BF16|F(16|32|64)|[IU](8|16|32|64))$/;

export function isReadable(dtype: string): boolean {
  return Object.hasOwn(ARRAYS, dtype);
}

/** A tensor as it goes into a file. */
export function store({ data, shape }: Tensor<TensorArray>): Stored {
  const [dtype] = Object.entries(ARRAYS).find(([, ArrayType]) => data instanceof ArrayType)!;
  return { dtype, shape, data };
}

interface Entry {
  dtype: string;
  shape: number[];
  data_offsets: [number, number];
}

/** Every tensor of the file, in the order of the header. @throws InvalidRequest when it cannot be read. */
export function readTensors(path: string): Tensors {
  try {
    return parseTensors(readFileSync(path));
  } catch (error) {
    throw new InvalidRequest(`inputs: expected a safetensors file, got ${(error as Error).message}`);
  }
}

export function parseTensors(file: Uint8Array): Tensors {
  if (file.length < 8) throw new Error(`${file.length} bytes`);
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const start = 8 + Number(view.getBigUint64(0, true));
  if (start > file.length) throw new Error(`a header of ${start - 8} bytes in a file of ${file.length}`);
  const header: unknown = JSON.parse(
    new TextDecoder("utf-8", { fatal: true }).decode(file.subarray(8, start)),
  );
  if (typeof header !== "object" || header === null) throw new Error("a header that is no object");
  const data = file.subarray(start);
  const tensors = new Map<string, Stored>();
  for (const [name, entry] of Object.entries(header)) {
    if (name !== "__metadata__") tensors.set(name, readEntry(name, entry as Entry, data));
  }
  return tensors;
}

function readEntry(name: string, entry: Entry, file: Uint8Array): Stored {
  const { dtype, shape, data_offsets } = entry;
  if (!DTYPE_NAME.test(dtype)) throw new Error(`${name}: the dtype ${dtype}`);
  const [begin, end] = data_offsets;
  const inside =
    Number.isInteger(begin) && Number.isInteger(end) && 0 <= begin && begin <= end && end <= file.length;
  if (!inside) throw new Error(`${name}: bytes ${begin} to ${end} of ${file.length}`);
  const bytes = new Uint8Array(file.subarray(begin, end)); // a copy, which Buffer.slice would not be
  if (!isReadable(dtype)) return { dtype, shape, data: bytes };
  const ArrayType = ARRAYS[dtype as keyof typeof ARRAYS];
  const expected = shape.reduce((product, n) => product * n, ArrayType.BYTES_PER_ELEMENT);
  if (bytes.length !== expected) throw new Error(`${name}: ${bytes.length} bytes for the shape [${shape}]`);
  return { dtype, shape, data: new ArrayType(inHostOrder(bytes.buffer, ArrayType.BYTES_PER_ELEMENT)) };
}

/** Writes exactly these tensors; the file appears whole or not at all. @throws InvalidRequest. */
export function writeTensors(path: string, tensors: Tensors): void {
  const unfinished = `${path}.${process.pid}.unfinished`;
  try {
    writeFileSync(unfinished, formatTensors(tensors));
    renameSync(unfinished, path);
  } catch (error) {
    if (existsSync(unfinished)) rmSync(unfinished);
    throw new InvalidRequest(`outputs: expected a path to write to, got ${(error as Error).message}`);
  }
}

/**
 * Wide elements first, so that every tensor is aligned in the file: the header is padded with spaces to that
 * end.
 */
export function formatTensors(tensors: Tensors): Uint8Array {
  const sorted = [...tensors].sort(([, a], [, b]) => b.data.BYTES_PER_ELEMENT - a.data.BYTES_PER_ELEMENT);
  const header: Record<string, Entry> = Object.create(null);
  let end = 0;
  for (const [name, { dtype, shape, data }] of sorted) {
    header[name] = { dtype, shape: [...shape], data_offsets: [end, end + data.byteLength] };
    end += data.byteLength;
  }
  const json = Buffer.from(JSON.stringify(header));
  const start = 8 + Math.ceil(json.length / 8) * 8;
  const file = new Uint8Array(start + end).fill(0x20, 8, start);
  new DataView(file.buffer).setBigUint64(0, BigInt(start - 8), true);
  file.set(json, 8);
  for (const [name, { data }] of sorted) {
    const bytes = data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength) as ArrayBuffer;
    file.set(
      new Uint8Array(inHostOrder(bytes, data.BYTES_PER_ELEMENT)),
      start + header[name]!.data_offsets[0],
    );
  }
  return file;
}

/** Between the little-endian file and this machine, in place. */
function inHostOrder(bytes: ArrayBuffer, size: number): ArrayBuffer {
  if (endianness() === "BE" && size === 2) Buffer.from(bytes).swap16();
  if (endianness() === "BE" && size === 4) Buffer.from(bytes).swap32();
  if (endianness() === "BE" && size === 8) Buffer.from(bytes).swap64();
  return bytes;
}
