/** Files of tensors: the format is the library's, here it meets the disk, without a copy in between. */

import {
  closeSync,
  existsSync,
  fstatSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  writeSync,
} from "node:fs";
import { formatParts, parseSource, type Source, type Tensors } from "../src/safetensors.ts";
import { newArray } from "../src/tensor.ts";
import { InvalidRequest } from "./errors.ts";

export { formatTensors, parseTensors, type Stored, store, type Tensors } from "../src/safetensors.ts";

/**
 * Every tensor of the file, in the order of the header; in `shared` memory those of float32, so that threads read them
 * where they lie. @throws InvalidRequest when it cannot be read.
 */
export function readTensors(path: string, shared = false): Tensors {
  let file: number | null = null;
  try {
    file = openSync(path, "r");
    return parseSource(sourceOf(file, shared)).tensors;
  } catch (error) {
    throw new InvalidRequest(`inputs: expected a safetensors file, got ${(error as Error).message}`);
  } finally {
    if (file !== null) closeSync(file);
  }
}

function sourceOf(file: number, shared: boolean): Source {
  return {
    length: fstatSync(file).size,
    read(at, into) {
      for (let done = 0; done < into.length; ) {
        const count = readSync(file, into, done, into.length - done, at + done);
        if (count === 0) throw new Error("a file that ends while it is read");
        done += count;
      }
    },
    allocate(dtype, n) {
      if (!shared || dtype !== "float32") return newArray(dtype, n);
      return new Float32Array(new SharedArrayBuffer(4 * n));
    },
  };
}

/** Writes exactly these tensors. @throws InvalidRequest. */
export function writeTensors(path: string, tensors: Tensors): void {
  writeWhole("outputs", path, ...formatParts(tensors));
}

/** The bytes of a file that a request names. @throws InvalidRequest. */
export function readWhole(argument: string, path: string): Uint8Array {
  try {
    return readFileSync(path);
  } catch (error) {
    throw new InvalidRequest(`${argument}: expected a file, got ${(error as Error).message}`);
  }
}

/** The file appears whole or not at all. @throws InvalidRequest. */
export function writeWhole(argument: string, path: string, ...parts: Uint8Array[]): void {
  const unfinished = `${path}.${process.pid}.unfinished`;
  try {
    writeParts(unfinished, parts);
    renameSync(unfinished, path);
  } catch (error) {
    if (existsSync(unfinished)) rmSync(unfinished);
    throw new InvalidRequest(`${argument}: expected a path to write to, got ${(error as Error).message}`);
  }
}

function writeParts(path: string, parts: readonly Uint8Array[]): void {
  const file = openSync(path, "w");
  try {
    for (const part of parts) {
      for (let done = 0; done < part.length; ) done += writeSync(file, part, done);
    }
  } finally {
    closeSync(file);
  }
}
