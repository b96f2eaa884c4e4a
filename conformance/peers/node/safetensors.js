// Tensors in safetensors files, for the peers that run in Node: eight bytes with the header's length, a JSON header with
// type, shape and byte offsets, then the bytes, row-major.

import { readFileSync, writeFileSync } from "node:fs";

const ARRAYS = {
  F64: Float64Array,
  F32: Float32Array,
  F16: Uint16Array, // as bits
  BF16: Uint16Array,
  I64: BigInt64Array,
  BOOL: Uint8Array,
};

/** Every tensor of a file, by name: its type, its shape and its elements. */
export function readTensors(path) {
  const bytes = readFileSync(path);
  const start = 8 + Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.toString("utf8", 8, start));
  delete header.__metadata__;
  return new Map(
    Object.entries(header).map(([name, { dtype, shape, data_offsets: offsets }]) => {
      const [from, to] = offsets;
      if (!(dtype in ARRAYS)) throw new Error(`${name}: expected ${Object.keys(ARRAYS)}, got ${dtype}`);
      // A copy, since a typed array must begin at a multiple of its element's size.
      const own = new Uint8Array(bytes.subarray(start + from, start + to)).buffer;
      return [name, { dtype, shape, data: new ARRAYS[dtype](own) }];
    }),
  );
}

/** Writes tensors, given as {name: {dtype, shape, data}}. */
export function writeTensors(path, tensors) {
  const header = {};
  const parts = [];
  let end = 0;
  for (const [name, { dtype, shape, data }] of Object.entries(tensors)) {
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    header[name] = { dtype, shape, data_offsets: [end, end + bytes.length] };
    parts.push(bytes);
    end += bytes.length;
  }
  const text = JSON.stringify(header);
  const padded = text + " ".repeat((8 - (text.length % 8)) % 8);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(padded.length));
  writeFileSync(path, Buffer.concat([length, Buffer.from(padded), ...parts]));
}
