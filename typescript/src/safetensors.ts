/**
 * The safetensors format: eight bytes with the length of the header, the header in JSON, then the data,
 * everything little-endian. Offsets count from the end of the header, which may stand at any byte: every
 * tensor is read into memory of its own, since a typed array cannot begin at an odd address.
 *
 * Source: the format's page, https://huggingface.co/docs/safetensors.
 */

import { dtypeOf, newArray, sizeOf, type Tensor, type TensorArray } from "./tensor.ts";

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

/** Text by name, beside the tensors. */
export type Metadata = Readonly<Record<string, string>>;

/** The types with arrays of their own, by the names that {@link dtypeOf} gives; the others are bytes. */
const ARRAYS: Readonly<Record<string, string>> = {
  F32: "float32",
  F64: "float64",
  F16: "float16",
  BF16: "bfloat16",
  I64: "int64",
  I8: "int8",
  U8: "bool",
  BOOL: "bool",
};

/** All that the format knows. */
const DTYPE_NAME = /^(BOOL|C64|F4|F6_E[23]M[23]|F8_E[458]M[0-3](FNUZ)?|BF16|F(16|32|64)|[IU](8|16|32|64))$/;

/** Every runtime has them, but they are not of the language, nor among its types. */
declare const TextEncoder: new () => { encode(text: string): Uint8Array };
declare const TextDecoder: new (
  label: string,
  options: { fatal: boolean },
) => { decode(bytes: Uint8Array): string };

const LITTLE_ENDIAN = new Uint8Array(Uint16Array.of(1).buffer)[0] === 1;

/** A tensor as it goes into a file; `bytes` says what those of a Uint8Array are. */
export function store(x: Tensor<TensorArray>, bytes: "BOOL" | "U8" = "BOOL"): Stored {
  const dtype = dtypeOf(x);
  const name =
    dtype === "bool" ? bytes : Object.keys(ARRAYS).find((candidate) => ARRAYS[candidate] === dtype)!;
  return { dtype: name, shape: x.shape, data: x.data };
}

interface Entry {
  dtype: string;
  shape: number[];
  data_offsets: [number, number];
}

/** A file in memory or elsewhere: from one on a disk each tensor can be read straight to where it will be. */
export interface Source {
  /** Bytes. */
  readonly length: number;
  /** Fills `into` with what stands from byte `at` on. */
  read(at: number, into: Uint8Array): void;
  /** Memory of a tensor. Absent: an array as any other. */
  allocate?(dtype: string, n: number): TensorArray;
}

/** Every tensor of the file, in the order of the header, and its metadata. @throws Error for a broken file. */
export function parseSource(file: Source): { tensors: Tensors; metadata: Metadata } {
  if (file.length < 8) throw new Error(`${file.length} bytes`);
  const size = new DataView(new ArrayBuffer(8));
  file.read(0, new Uint8Array(size.buffer));
  const start = 8 + Number(size.getBigUint64(0, true));
  if (start > file.length) throw new Error(`a header of ${start - 8} bytes in a file of ${file.length}`);
  const text = new Uint8Array(start - 8);
  file.read(8, text);
  const header: unknown = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(text));
  if (typeof header !== "object" || header === null) throw new Error("a header that is no object");
  const { __metadata__: metadata, ...entries } = header as Record<string, unknown>;
  const tensors = new Map<string, Stored>();
  for (const [name, entry] of Object.entries(entries)) {
    tensors.set(name, readEntry(name, entry as Entry, file, start));
  }
  requireNoHoles(Object.values(entries) as Entry[], file.length - start);
  return { tensors, metadata: (metadata ?? {}) as Metadata };
}

/** {@link parseSource} of a file in memory. */
export function parseFile(file: Uint8Array): { tensors: Tensors; metadata: Metadata } {
  return parseSource({
    length: file.length,
    read: (at, into) => into.set(file.subarray(at, at + into.length)),
  });
}

/** The format has every byte of the data belong to one tensor: what is left over was cut off, or put in. */
function requireNoHoles(entries: readonly Entry[], length: number): void {
  const parts = entries.map(({ data_offsets }) => data_offsets).sort(([a, b], [c, d]) => a - c || b - d);
  let at = 0;
  for (const [begin, end] of parts) {
    if (begin !== at)
      throw new Error(`a tensor from byte ${begin} on, where the one before it ends at ${at}`);
    at = end;
  }
  if (at !== length) throw new Error(`${length} bytes of data, of which tensors take ${at}`);
}

export function parseTensors(file: Uint8Array): Tensors {
  return parseFile(file).tensors;
}

function readEntry(name: string, entry: Entry, file: Source, start: number): Stored {
  const { dtype, shape, data_offsets } = entry;
  if (!DTYPE_NAME.test(dtype)) throw new Error(`${name}: the dtype ${dtype}`);
  const [begin, end] = data_offsets;
  const most = file.length - start;
  const inside =
    Number.isInteger(begin) && Number.isInteger(end) && 0 <= begin && begin <= end && end <= most;
  if (!inside) throw new Error(`${name}: bytes ${begin} to ${end} of ${most}`);
  const known = Object.hasOwn(ARRAYS, dtype) ? ARRAYS[dtype]! : null;
  const width = known === null ? 1 : newArray(known, 0).BYTES_PER_ELEMENT;
  const sizes = shape.every((n) => Number.isInteger(n) && n >= 0);
  if (known !== null && (!sizes || end - begin !== sizeOf(shape) * width)) {
    throw new Error(`${name}: ${end - begin} bytes for the shape [${shape}]`);
  }
  const data = (file.allocate ?? newArray)(known ?? "bool", (end - begin) / width);
  const bytes = bytesOf(data);
  file.read(start + begin, bytes);
  inHostOrder(bytes, width);
  return { dtype, shape, data };
}

/**
 * Exactly these tensors as a file, in parts that follow each other: the header, and the bytes of each tensor, where
 * they lie. Wide elements come first, so that every tensor is aligned in it: the header is padded with spaces to that
 * end.
 */
export function formatParts(tensors: Tensors, metadata?: Metadata): Uint8Array[] {
  const sorted = [...tensors].sort(([, a], [, b]) => b.data.BYTES_PER_ELEMENT - a.data.BYTES_PER_ELEMENT);
  const header: Record<string, Entry | Metadata> = Object.create(null);
  if (metadata !== undefined) header.__metadata__ = metadata;
  let end = 0;
  for (const [name, { dtype, shape, data }] of sorted) {
    header[name] = { dtype, shape: [...shape], data_offsets: [end, end + data.byteLength] };
    end += data.byteLength;
  }
  const json = new TextEncoder().encode(JSON.stringify(header));
  const begin = new Uint8Array(8 + Math.ceil(json.length / 8) * 8).fill(0x20, 8);
  new DataView(begin.buffer).setBigUint64(0, BigInt(begin.length - 8), true);
  begin.set(json, 8);
  const parts = sorted.map(([, { data }]) => {
    const bytes = bytesOf(data);
    return LITTLE_ENDIAN ? bytes : inHostOrder(bytes.slice(), data.BYTES_PER_ELEMENT);
  });
  return [begin, ...parts];
}

/** {@link formatParts} in one piece. */
export function formatTensors(tensors: Tensors, metadata?: Metadata): Uint8Array {
  const parts = formatParts(tensors, metadata);
  const file = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    file.set(part, at);
    at += part.length;
  }
  return file;
}

function bytesOf({ buffer, byteOffset, byteLength }: TensorArray): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}

/** Between the little-endian file and this machine, in place. */
function inHostOrder(bytes: Uint8Array, size: number): Uint8Array {
  if (LITTLE_ENDIAN || size === 1) return bytes;
  for (let at = 0; at < bytes.length; at += size) bytes.subarray(at, at + size).reverse();
  return bytes;
}
