/** Files of tensors: the format is the library's, here it meets the disk. */

import { existsSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { formatTensors, parseTensors, type Tensors } from "../src/safetensors.ts";
import { InvalidRequest } from "./errors.ts";

export { formatTensors, parseTensors, type Stored, store, type Tensors } from "../src/safetensors.ts";

/** Every tensor of the file, in the order of the header. @throws InvalidRequest when it cannot be read. */
export function readTensors(path: string): Tensors {
  try {
    return parseTensors(readFileSync(path));
  } catch (error) {
    throw new InvalidRequest(`inputs: expected a safetensors file, got ${(error as Error).message}`);
  }
}

/** Writes exactly these tensors. @throws InvalidRequest. */
export function writeTensors(path: string, tensors: Tensors): void {
  writeWhole("outputs", path, formatTensors(tensors));
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
export function writeWhole(argument: string, path: string, bytes: Uint8Array): void {
  const unfinished = `${path}.${process.pid}.unfinished`;
  try {
    writeFileSync(unfinished, bytes);
    renameSync(unfinished, path);
  } catch (error) {
    if (existsSync(unfinished)) rmSync(unfinished);
    throw new InvalidRequest(`${argument}: expected a path to write to, got ${(error as Error).message}`);
  }
}
