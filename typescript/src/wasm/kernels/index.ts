/**
 * Everything that a binary exports. Lengths and sizes are 32-bit integers, addresses are bytes in its memory, and
 * nothing is allocated here: the caller lays the memory out (../rows.ts).
 *
 * The sources are AssemblyScript, which looks like TypeScript and compiles to WebAssembly.
 */

import { BLOCK } from "./vector";

export { decode, finishRows } from "./decode";
export { mathOf } from "./math";
export { pack } from "./pack";
export { attend, finish } from "./prefill";

/** Where the data of the binary ends, and memory begins that is the caller's. */
export function base(): usize {
  return __heap_base;
}

/** Keys in a block, for the build: the text around the kernels is given it as a constant. */
export function block(): i32 {
  return BLOCK;
}
