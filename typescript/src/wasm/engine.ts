/**
 * The kernels and their memory: compiled at once and synchronously from bytes that come with the module, with
 * nothing of Node and nothing to fetch.
 *
 * There are two binaries. The one with relaxed SIMD fuses its multiply-adds and is taken where the engine
 * validates it; results differ in rounding alone.
 */

import { InvalidConfig, Unsupported } from "../errors.ts";
import { PLAIN, RELAXED } from "./binary.ts";

/** Which binary: "plain" rounds a product before it is added, "relaxed" does not where the machine can. */
export type Binary = "plain" | "relaxed";

/** What the binaries export; kernels/ documents each. Booleans are 0 or 1. */
export interface Kernels {
  readonly memory: { readonly buffer: ArrayBuffer; grow(pages: number): number };
  base(): number;
  pack(x: number, rows: number, D: number, scale: number, packed: number): void;
  attend(
    state: number,
    q: number,
    k: number,
    v: number,
    first: number,
    keys: number,
    held: number,
    D: number,
    Dv: number,
    work: number,
    finite: number,
    from: number,
    to: number,
    softcap: number,
    bias: number,
    mask: number,
    sinks: number,
  ): void;
  finish(state: number, rows: number, Dv: number, sinks: number, output: number): void;
  decode(
    state: number,
    q: number,
    rows: number,
    k: number,
    v: number,
    first: number,
    keys: number,
    D: number,
    Dv: number,
    work: number,
    softcap: number,
    bias: number,
    mask: number,
  ): void;
  finishRows(state: number, rows: number, Dv: number, output: number): void;
  mathOf(x: number, n: number, tangent: number): void;
}

/** The part of the engine's API that is used here: not every set of type declarations has it. */
interface WebAssemblyApi {
  validate(bytes: Uint8Array): boolean;
  Module: new (bytes: Uint8Array) => object;
  Instance: new (module: object) => { readonly exports: object };
}

interface Globals {
  readonly WebAssembly?: WebAssemblyApi;
  atob(text: string): string;
}

const { WebAssembly, atob } = globalThis as unknown as Globals;
const PAGE = 65536;

const modules = new Map<Binary, object>();

/** The compiled binary. @throws Unsupported where the engine does not know its instructions. */
function moduleOf(binary: Binary): object {
  const known = modules.get(binary);
  if (known !== undefined) return known;
  const text = atob(binary === "plain" ? PLAIN : RELAXED);
  const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  if (WebAssembly === undefined || !WebAssembly.validate(bytes)) throw new Unsupported(`wasm.${binary}`);
  const module = new WebAssembly.Module(bytes);
  modules.set(binary, module);
  return module;
}

/** The better binary that this engine takes. @throws Unsupported where it takes none. */
export function bestBinary(): Binary {
  try {
    moduleOf("relaxed");
    return "relaxed";
  } catch (error) {
    if (!(error instanceof Unsupported)) throw error;
    moduleOf("plain");
    return "plain";
  }
}

/** One instance of a binary, with a memory that grows to what a call needs and is kept for the next. */
export class Engine {
  readonly binary: Binary;
  readonly kernels: Kernels;
  f32: Float32Array<ArrayBuffer>;
  i32: Int32Array<ArrayBuffer>;
  u8: Uint8Array<ArrayBuffer>;
  /** Which keys the panel holds: of this head, from this one on, so many. */
  resident: { head: number; start: number; count: number } = { head: -1, start: 0, count: 0 };

  /** @throws Unsupported. */
  constructor(binary: Binary = bestBinary()) {
    this.binary = binary;
    this.kernels = new WebAssembly!.Instance(moduleOf(binary)).exports as Kernels;
    const { buffer } = this.kernels.memory;
    this.f32 = new Float32Array(buffer);
    this.i32 = new Int32Array(buffer);
    this.u8 = new Uint8Array(buffer);
  }

  /** Addresses of parts with these numbers of bytes, each on a cache line. @throws InvalidConfig. */
  layOut(sizes: readonly number[]): number[] {
    const places: number[] = [];
    let end = Math.ceil(this.kernels.base() / 64) * 64;
    for (const size of sizes) {
      places.push(end);
      end += Math.ceil(size / 64) * 64;
    }
    this.#reserve(end);
    return places;
  }

  #reserve(bytes: number): void {
    const { memory } = this.kernels;
    const missing = Math.ceil((bytes - memory.buffer.byteLength) / PAGE);
    if (missing <= 0) return;
    try {
      if (missing > 65536) throw new RangeError();
      memory.grow(missing);
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      throw new InvalidConfig(`wasm: memory: expected heads that fit into 4 GiB, got ${bytes} bytes`);
    }
    this.f32 = new Float32Array(memory.buffer);
    this.i32 = new Int32Array(memory.buffer);
    this.u8 = new Uint8Array(memory.buffer);
  }
}
