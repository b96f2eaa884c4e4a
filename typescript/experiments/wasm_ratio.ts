/**
 * How fast each rung of sdpa is beside the plain one and beside the machine's limit in WebAssembly.
 *
 *     node experiments/wasm_ratio.ts [ROUNDS]
 *
 * The limit is a loop of multiply-adds and nothing else, the one that the bench measures too; its best of before each
 * row of the table counts. The rungs take turns, many short calls each, and the fastest of each counts: on a machine
 * with other work every longer call is interrupted. That is why a long sequence is measured by some of its rows: they
 * are computed alike.
 *
 * Prefill counts 4 · rows · Tk · D operations (half of it when causal), decoding the bytes of K and V.
 */

import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { blocked, Engine, sdpaSteps, type Tensor, Threads, wasm } from "../src/index.ts";

type F32 = Tensor<Float32Array>;

interface Cell {
  readonly name: string;
  /** B, Hq, Hkv, Tq, Tk, D */
  readonly sizes: readonly [number, number, number, number, number, number];
  readonly causal?: boolean;
}

const CELLS: readonly Cell[] = [
  { name: "T 512, D 64", sizes: [1, 1, 1, 128, 512, 64] },
  { name: "T 2048, D 64", sizes: [1, 1, 1, 128, 2048, 64] },
  { name: "T 2048, D 128", sizes: [1, 1, 1, 128, 2048, 128] },
  { name: "T 256, D 80", sizes: [1, 1, 1, 256, 256, 80] },
  { name: "T 256, D 64, causal", sizes: [1, 1, 1, 256, 256, 64], causal: true },
  { name: "decode G 4, Tk 4096, D 128", sizes: [1, 4, 1, 1, 4096, 128] },
  { name: "decode G 1, Tk 512, D 64", sizes: [1, 8, 8, 1, 512, 64] },
  { name: "a single key, D 64", sizes: [1, 8, 8, 1, 1, 64] },
  { name: "T 16, D 32, 4 heads", sizes: [1, 4, 4, 16, 16, 32] },
];

function tensor(shape: readonly number[]): F32 {
  const data = new Float32Array(shape.reduce((product, n) => product * n, 1));
  for (let n = 0; n < data.length; n++) data[n] = Math.sin(n * n + shape.length); // signed, without a pattern
  return { data, shape };
}

/** The same in memory that threads share. */
function shared({ data, shape }: F32): F32 {
  const copy = new Float32Array(new SharedArrayBuffer(data.byteLength));
  copy.set(data);
  return { data: copy, shape };
}

function nanoseconds(call: () => unknown): number {
  const start = process.hrtime.bigint();
  call();
  return Number(process.hrtime.bigint() - start);
}

const rounds = Number(process.argv[2] ?? 200);
const [plain, best, pool] = [new Engine("plain"), new Engine(), new Threads(2)];

const LIMIT = fileURLToPath(new URL("../../conformance/peers/node/wasm_limit.js", import.meta.url));
/** Seconds that each of its measurements takes. */
const LIMIT_S = "0.2";

/** Operations a nanosecond. */
function limit(): number {
  return JSON.parse(execFileSync(process.execPath, [LIMIT, LIMIT_S], { encoding: "utf8" })).gflops;
}

/** Rows that the rungs in plain loops are given: a longer call would always be interrupted. */
const FEW_ROWS = 64;

let peak = 0;
const table: (() => string)[] = [];
for (const { name, sizes, causal } of CELLS) {
  const [B, Hq, Hkv, Tq, Tk, D] = sizes;
  const [q, k, v] = [tensor([B, Hq, Tq, D]), tensor([B, Hkv, Tk, D]), tensor([B, Hkv, Tk, D])];
  const [sharedQ, sharedK, sharedV] = [shared(q), shared(k), shared(v)];
  const rows = Math.min(Tq, FEW_ROWS);
  const last = tensor([B, Hq, rows, D]);
  const options = { mask: { causal: causal ?? false, qOffset: Tk - Tq } };
  const lastOptions = { mask: { causal: causal ?? false, qOffset: Tk - rows } };
  const calls: Record<string, () => unknown> = {
    naive: () => sdpaSteps(last, k, v, lastOptions),
    blocked: () => blocked(last, k, v, lastOptions),
    "wasm, plain": () => wasm(q, k, v, options, plain),
    wasm: () => wasm(q, k, v, options, best),
    threads: () => pool.sdpa(sharedQ, sharedK, sharedV, options),
  };
  const fastest: Record<string, number> = {};
  peak = Math.max(peak, limit());
  for (let round = 0; round < rounds; round++) {
    for (const [rung, call] of Object.entries(calls)) {
      for (let n = 0; n < (rung === "naive" || rung === "blocked" ? 1 : 8); n++) {
        fastest[rung] = Math.min(fastest[rung] ?? Infinity, nanoseconds(call));
      }
    }
  }

  table.push(() => name);
  /** Operations, or when decoding bytes, of a call with so many rows. */
  const work = (rows: number) => {
    if (Tq === 1) return 8 * B * Hkv * Tk * D;
    return 4 * B * Hq * D * rows * (causal ? Tk - (rows - 1) / 2 : Tk);
  };
  const speeds = Object.entries(fastest).map(([rung, took]) => {
    const slow = rung === "naive" || rung === "blocked";
    return [rung, work(slow ? rows : Tq) / took] as const;
  });
  for (const [rung, speed] of speeds) {
    const times = (speed / speeds[0]![1]).toFixed(1);
    const share = () => (Tq === 1 ? "GB/s" : `GFLOP/s, ${((100 * speed) / peak).toFixed(0)} % of the limit`);
    table.push(() => `  ${rung.padEnd(12)} ${speed.toFixed(2).padStart(6)} ${share()}, ${times} times naive`);
  }
}
pool.close();
console.log(`${rounds} rounds, the fastest call of each; ${best.binary} SIMD beside plain SIMD128`);
console.log(`the limit, a loop of multiply-adds: ${peak.toFixed(1)} GFLOP/s`);
for (const line of table) console.log(line());
