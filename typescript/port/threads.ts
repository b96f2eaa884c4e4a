/** The engine and the threads behind the rungs in WebAssembly, made when they are first asked for. */

import { type Binary, bestBinary, Engine, Threads } from "../src/index.ts";
import { InvalidRequest } from "./errors.ts";

/** Which binary: the better one, unless the environment says ROSETTA_WASM=plain (or relaxed). @throws InvalidRequest. */
export function binary(): Binary {
  const forced = process.env.ROSETTA_WASM ?? "";
  if (forced === "") return bestBinary();
  if (forced === "plain" || forced === "relaxed") return forced;
  throw new InvalidRequest(`ROSETTA_WASM: expected plain or relaxed, got ${forced}`);
}

let single: Engine | null = null;

/** The engine of `wasm`. @throws Unsupported. */
export function engine(): Engine {
  single ??= new Engine(binary());
  return single;
}

/** The number of threads that `start` granted. */
let granted = 1;
let pool: Threads | null = null;

/** Sets the number, and ends the threads that there were. */
export function grantThreads(count: number): void {
  endThreads();
  granted = count;
}

/** The threads of `threads`. @throws Unsupported. */
export function threads(): Threads {
  pool ??= new Threads(granted, binary());
  return pool;
}

export function endThreads(): void {
  pool?.close();
  pool = null;
}
