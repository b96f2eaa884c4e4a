/**
 * The safetensors format: eight bytes with the length of the header, the header in JSON, then the data,
 * everything little-endian. Offsets count from the end of the header, which may stand at any byte: every
 * tensor is copied to memory of its own, since a typed array cannot begin at an odd address.
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

/** Every tensor of the file, in the order of the header, and its metadata. @throws Error for a broken file. */
export function parseFile(file: Uint8Array): { tensors: Tensors; metadata: Metadata } {
  if (file.length < 8) throw new Error(`${file.length} bytes`);
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const start = 8 + Number(view.getBigUint64(0, true));
  if (start > file.length) throw new Error(`a header of ${start - 8} bytes in a file of ${file.length}`);
  const header: unknown = JSON.parse(
    new TextDecoder("utf-8", { fatal: true }).decode(file.subarray(8, start)),
  );
  if (typeof header !== "object" || header === null) throw new Error("a header that is no object");
  const data = file.subarray(start);
  const { __metadata__: metadata, ...entries } = header as Record<string, unknown>;
  const tensors = new Map<string, Stored>();
  for (const [name, entry] of Object.entries(entries)) {
    tensors.set(name, readEntry(name, entry as Entry, data));
  }
  requireNoHoles(Object.values(entries) as Entry[], data.length);
  return { tensors, metadata: (metadata ?? {}) as Metadata };
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

function readEntry(name: string, entry: Entry, file: Uint8Array): Stored {
  const { dtype, shape, data_offsets } = entry;
  if (!DTYPE_NAME.test(dtype)) throw new Error(`${name}: the dtype ${dtype}`);
  const [begin, end] = data_offsets;
  const inside =
    Number.isInteger(begin) && Number.isInteger(end) && 0 <= begin && begin <= end && end <= file.length;
  if (!inside) throw new Error(`${name}: bytes ${begin} to ${end} of ${file.length}`);
  const bytes = new Uint8Array(file.subarray(begin, end)); // a copy, which Buffer.slice would not be
  if (!Object.hasOwn(ARRAYS, dtype)) return { dtype, shape, data: bytes };
  const width = newArray(ARRAYS[dtype]!, 0).BYTES_PER_ELEMENT;
  const sizes = shape.every((n) => Number.isInteger(n) && n >= 0);
  if (!sizes || bytes.length !== sizeOf(shape) * width) {
    throw new Error(`${name}: ${bytes.length} bytes for the shape [${shape}]`);
  }
  const data = newArray(ARRAYS[dtype]!, sizeOf(shape));
  new Uint8Array(data.buffer).set(inHostOrder(bytes, data.BYTES_PER_ELEMENT));
  return { dtype, shape, data };
}

/**
 * Exactly these tensors as a file. Wide elements come first, so that every tensor is aligned in it: the
 * header is padded with spaces to that end.
 */
export function formatTensors(tensors: Tensors, metadata?: Metadata): Uint8Array {
  const sorted = [...tensors].sort(([, a], [, b]) => b.data.BYTES_PER_ELEMENT - a.data.BYTES_PER_ELEMENT);
  const header: Record<string, Entry | Metadata> = Object.create(null);
  if (metadata !== undefined) header.__metadata__ = metadata;
  const begins: number[] = [];
  let end = 0;
  for (const [name, { dtype, shape, data }] of sorted) {
    header[name] = { dtype, shape: [...shape], data_offsets: [end, end + data.byteLength] };
    begins.push(end);
    end += data.byteLength;
  }
  const json = new TextEncoder().encode(JSON.stringify(header));
  const start = 8 + Math.ceil(json.length / 8) * 8;
  const file = new Uint8Array(start + end).fill(0x20, 8, start);
  new DataView(file.buffer).setBigUint64(0, BigInt(start - 8), true);
  file.set(json, 8);
  for (const [n, [, { data }]] of sorted.entries()) {
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength).slice();
    file.set(inHostOrder(bytes, data.BYTES_PER_ELEMENT), start + begins[n]!);
  }
  return file;
}

/** Between the little-endian file and this machine, in place. */
function inHostOrder(bytes: Uint8Array, size: number): Uint8Array {
  if (LITTLE_ENDIAN || size === 1) return bytes;
  for (let at = 0; at < bytes.length; at += size) bytes.subarray(at, at + size).reverse();
  return bytes;
}
