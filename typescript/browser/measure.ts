/** Times the rungs of attention on one shape, and checks each against plain attention in float64. */

import {
  bestBinary,
  blocked,
  Engine,
  flash,
  type SdpaOptions,
  sdpa,
  type Tensor,
  Threads,
  wasm,
} from "../src/index.ts";
import { operationsOf, type Shape } from "./shape.ts";

type F32 = Tensor<Float32Array>;

/** What came out for a rung. */
export interface Measured {
  readonly rung: string;
  /** Of a call over all queries. */
  readonly milliseconds: number;
  /** Queries a head that were computed for it. Where they are not all, the time is that of all by the operations. */
  readonly rows: number;
  readonly gflops: number;
  /** The largest error beside what rounding allows there: above 1 the result is wrong. */
  readonly error: number;
}

/** The rungs in plain loops compute no more than so many operations: a longer call would only be waited for. */
const PLAIN_OPERATIONS = 1e7;
/** Queries a head that are checked. */
const CHECKED = 16;
/** Whether threads may share memory. */
const isolated = (globalThis as { crossOriginIsolated?: boolean }).crossOriginIsolated ?? false;

/** A sample of a rung takes at least so long, since a page's clock is coarse. */
const SAMPLE_MS = 2;
/** How many times as long as it waits for a faster call it goes on at most. */
const MOST_PATIENCE = 8;

/** Rung after rung, each as soon as it is there: see {@link fastest} for `patience`, in milliseconds. */
export async function* measure(shape: Shape, patience: number = 400): AsyncGenerator<Measured> {
  const { queries } = shape;
  const plainRows = rowsWithin(shape, PLAIN_OPERATIONS);
  const [q, k, v] = draw(shape);
  const options = optionsOf(shape, queries);
  const some = lastRows(q, plainRows);
  const someOptions = optionsOf(shape, plainRows);
  const want = expected(shape, lastRows(q, Math.min(CHECKED, plainRows)), k, v);

  const plain: Record<string, () => F32> = {
    naive: () => sdpa(some, k, v, someOptions),
    flash: () => flash(some, k, v, someOptions).output,
    blocked: () => blocked(some, k, v, someOptions).output,
  };
  for (const [rung, call] of Object.entries(plain)) yield timed(rung, shape, plainRows, call, want, patience);

  const plainEngine = new Engine("plain");
  const call = (engine: Engine) => () => wasm(q, k, v, options, engine).output;
  yield timed("wasm, SIMD128", shape, queries, call(plainEngine), want, patience);
  if (bestBinary() === "relaxed") {
    yield timed("wasm, relaxed SIMD", shape, queries, call(new Engine("relaxed")), want, patience);
  }
  if (shape.threads > 1 && isolated) {
    const pool = new Threads(shape.threads);
    const alike = () => pool.sdpa(q, k, v, options).output;
    await awake(pool, alike);
    yield timed(`${shape.threads} threads`, shape, queries, alike, want, patience);
    pool.close();
  }
}

/** How many of the last queries take at most so many operations: all, or at least as many as are checked. */
function rowsWithin(shape: Shape, operations: number): number {
  let rows = shape.queries;
  while (rows > CHECKED && operationsOf(shape, rows) > operations) rows = Math.max(CHECKED, rows >> 1);
  return rows;
}

/** A worker begins when the caller has waited a moment; a small call may never need one. */
async function awake(pool: Threads, call: () => unknown): Promise<void> {
  for (let n = 0; n < 100 && pool.helped === 0; n++) {
    call();
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

function timed(
  rung: string,
  shape: Shape,
  rows: number,
  call: () => F32,
  want: Expected,
  patience: number,
): Measured {
  const error = errorOf(call(), want);
  const milliseconds = fastest(call, patience);
  const operations = operationsOf(shape, rows);
  const share = operations === 0 ? 1 : operationsOf(shape, shape.queries) / operations;
  return {
    rung,
    milliseconds: milliseconds * share,
    rows,
    gflops: operations / milliseconds / 1e6,
    error,
  };
}

/**
 * Milliseconds of the fastest call: calls go on until for `patience` milliseconds none was faster, since an engine compiles
 * what is called often, and goes on compiling meanwhile. As many make a sample as the clock can tell apart.
 */
function fastest(call: () => unknown, patience: number): number {
  const start = performance.now();
  let [calls, best, since] = [1, Infinity, start];
  for (let now = start; now - since < patience && now - start < MOST_PATIENCE * patience; ) {
    const before = now;
    for (let n = 0; n < calls; n++) call();
    now = performance.now();
    const each = (now - before) / calls;
    if (now - before < SAMPLE_MS) calls *= 2;
    else if (each < 0.98 * best) [best, since] = [each, now];
    else best = Math.min(best, each);
  }
  return best;
}

/** Queries, keys and values between -√3 and √3, so that scores have a variance of 1; the same ones every time. */
function draw({ heads, kvHeads, queries, keys, headDim }: Shape): [F32, F32, F32] {
  let state = 1;
  const next = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return (state / 2 ** 31 - 1) * Math.sqrt(3);
  };
  const tensor = (head: number, tokens: number): F32 => {
    const shape = [1, head, tokens, headDim];
    const data = numbers(head * tokens * headDim);
    for (let n = 0; n < data.length; n++) data[n] = next();
    return { data, shape };
  };
  return [tensor(heads, queries), tensor(kvHeads, keys), tensor(kvHeads, keys)];
}

/** In memory that threads share, where there is some. */
function numbers(count: number): Float32Array {
  if (!isolated) return new Float32Array(count);
  return new Float32Array(new SharedArrayBuffer(4 * count));
}

/** The last `rows` queries of each head. */
function lastRows({ data, shape }: F32, rows: number): F32 {
  const [, heads, queries, headDim] = shape as [number, number, number, number];
  const part = new Float32Array(heads * rows * headDim);
  for (let h = 0; h < heads; h++) {
    const end = (h + 1) * queries * headDim;
    part.set(data.subarray(end - rows * headDim, end), h * rows * headDim);
  }
  return { data: part, shape: [1, heads, rows, headDim] };
}

function optionsOf({ keys, causal }: Shape, rows: number): SdpaOptions<never> {
  return { mask: { causal, qOffset: keys - rows } };
}

interface Expected {
  readonly output: Float64Array; // (Hq, rows, D)
  /** What rounding may make of each. */
  readonly allowed: Float64Array; // (Hq, rows, D)
  readonly rows: number;
}

/**
 * The result in float64, and how far float32 may be off whatever the order of its sums: with u = 2^-24, a score of D
 * products by at most (D + 4) u times the sum of their sizes, its weight relatively by twice the largest such error of
 * its row, and a weighted sum over Tk keys by (Tk + 64) u more, which also covers exp and the rescaling of an online
 * softmax. All of it times the sum of the sizes of what is summed.
 *
 * The formula once more, and not the library's: what is judged should not judge, and an engine compiles loops that have
 * seen both float64 and float32 for both, at half the speed.
 */
function expected({ heads, kvHeads, keys, causal }: Shape, q: F32, k: F32, v: F32): Expected {
  const [rows, D] = [q.shape[2]!, q.shape[3]!];
  const u = 2 ** -24;
  const output = new Float64Array(heads * rows * D);
  const allowed = new Float64Array(heads * rows * D);
  const weights = new Float64Array(keys);
  for (let row = 0; row < heads * rows; row++) {
    const at = Math.floor(row / rows / (heads / kvHeads)) * keys; // the first key of its head
    const seen = causal ? Math.max(0, keys - rows + (row % rows) + 1) : keys;
    let [largest, size] = [-Infinity, 0];
    for (let j = 0; j < seen; j++) {
      let [score, sizes] = [0, 0];
      for (let c = 0; c < D; c++) {
        const product = q.data[row * D + c]! * k.data[(at + j) * D + c]!;
        score += product;
        sizes += Math.abs(product);
      }
      weights[j] = score / Math.sqrt(D);
      largest = Math.max(largest, weights[j]!);
      size = Math.max(size, sizes / Math.sqrt(D));
    }
    let total = 0;
    for (let j = 0; j < seen; j++) {
      weights[j] = Math.exp(weights[j]! - largest);
      total += weights[j]!;
    }
    const relative = (2 * (D + 4) * size + keys + 64) * u;
    for (let j = 0; j < seen; j++) {
      const weight = weights[j]! / total;
      for (let c = 0; c < D; c++) {
        const value = v.data[(at + j) * D + c]!;
        output[row * D + c]! += weight * value;
        allowed[row * D + c]! += weight * Math.abs(value) * relative;
      }
    }
  }
  return { output, allowed, rows };
}

/** The largest error of the checked rows, in units of what is allowed; NaN counts as infinite. */
function errorOf(output: F32, want: Expected): number {
  const got = lastRows(output, want.rows).data;
  return got.reduce((worst, x, n) => {
    const error = Math.abs(x - want.output[n]!);
    if (error === 0) return worst;
    const share = error / want.allowed[n]!;
    return Number.isNaN(share) ? Infinity : Math.max(worst, share);
  }, 0);
}
