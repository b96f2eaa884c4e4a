/**
 * The rows of one KV head, through the kernels: what is copied into their memory, and in which order.
 *
 * Keys and values go in by *panels*. Many rows share a panel that is as large as a cache further out; few rows
 * (decoding) take small ones, which stay in the nearest caches, so that copying costs little beside reading.
 * However long the keys are, the memory is that of a panel and of one block of queries.
 *
 * Blocks of keys begin at multiples of BLOCK and tiles at multiples of their rows, so the bits of a row do not
 * depend on which rows are asked for together.
 */

import { type Interval, intervals } from "../intervals.ts";
import { broadcastIndex } from "../tensor.ts";
import { BLOCK } from "./binary.ts";
import type { Engine } from "./engine.ts";
import { type Problem, rowsOf, type Spread } from "./problem.ts";

/** Rows in a tile of lanes. */
export const TILE: number = 8;
/** So many rows or fewer, of one KV head, are decoded. */
const FEW = 4;
/** Rows whose state is held at once, a multiple of TILE. */
const QUERIES = 512;
/** Bytes of K and V in a panel for many rows and for few: 8 MiB, 128 KiB. */
const PANEL = { many: 1 << 23, few: 1 << 17 };
/**
 * Bytes of K and V that all tiles meet before any meets the next: 128 KiB stay in a cache that is the core's own, where
 * each tile would read the whole panel anew. It gained 4 to 7 % at D = 128, and a half where others used the outer cache.
 */
const WAVE = 1 << 17;
/** Where in a state, in numbers, l stands, the first key, the one after the last, and the sums. */
const [L, FROM, TO, SUMS] = [8, 16, 24, 40];

/** A call with its place in an engine's memory. */
export interface Plan {
  readonly engine: Engine;
  readonly problem: Problem;
  readonly sees: Interval;
  /** Rows of each KV head. */
  readonly R: number;
  readonly few: boolean;
  /** Rows in a tile. */
  readonly lanes: number;
  /** Keys in a panel, and in a wave. */
  readonly panel: number;
  readonly wave: number;
  /** Bytes of the state of a tile. */
  readonly stateBytes: number;
  /** Addresses. */
  readonly work: number;
  readonly bias: number;
  readonly mask: number;
  readonly finite: number;
  readonly K: number;
  readonly V: number;
  readonly raw: number;
  readonly output: number;
  readonly packed: number;
  readonly states: number;
}

/** Makes room for calls of at most `most` rows at once. @throws InvalidConfig when the memory is not enough. */
export function planRows(engine: Engine, problem: Problem, most: number): Plan {
  const { D, Dv } = problem.sizes;
  const R = rowsOf(problem);
  const few = R <= FEW;
  const lanes = few ? (R === 1 ? 1 : FEW) : TILE;
  const panel = keysIn(few ? PANEL.few : PANEL.many, problem);
  const wave = keysIn(WAVE, problem);
  const rows = Math.ceil(Math.min(QUERIES, most) / lanes) * lanes;
  const stateBytes = SUMS * 4 + lanes * Dv * 4;
  const places = engine.layOut([
    2 * BLOCK * 32 + 64,
    TILE * BLOCK * 4,
    TILE * BLOCK,
    panel / BLOCK,
    (panel + 6) * D * 4,
    panel * Dv * 4,
    rows * D * 4,
    rows * Dv * 4,
    rows * D * 4,
    (rows / lanes) * stateBytes,
  ]) as [number, number, number, number, number, number, number, number, number, number];
  const [work, bias, mask, finite, K, V, raw, output, packed, states] = places;
  const room = { work, bias, mask, finite, K, V, raw, output, packed, states };
  engine.resident = { head: -1, start: 0, count: 0 }; // what another call left
  return {
    engine,
    problem,
    sees: intervals(problem.positions),
    R,
    few,
    lanes,
    panel,
    wave,
    stateBytes,
    ...room,
  };
}

/** Rows r0 to r1 of KV head `head` (of B · Hkv): their output and lse. r0 is a multiple of TILE. */
export function attendRows(plan: Plan, head: number, r0: number, r1: number): void {
  for (let first = r0; first < r1; first += QUERIES) {
    attendQueries(plan, head, first, Math.min(QUERIES, r1 - first));
  }
}

/** Keys whose K and V are so many bytes: a multiple of BLOCK, and no more than there are. */
function keysIn(bytes: number, { sizes }: Problem): number {
  const blocks = Math.floor(bytes / ((sizes.D + sizes.Dv) * 4 * BLOCK));
  return Math.max(1, Math.min(blocks, Math.ceil(sizes.Tk / BLOCK))) * BLOCK;
}

/** The keys of one tile: [from, to) that one of its rows sees, and [allFrom, allTo) that all of them see. */
interface Span {
  readonly from: number;
  readonly to: number;
  readonly allFrom: number;
  readonly allTo: number;
}

function attendQueries(plan: Plan, head: number, first: number, rows: number): void {
  const { engine, problem, lanes, panel, wave } = plan;
  const { Tk, D, Dv } = problem.sizes;
  const q = (head * plan.R + first) * D;
  engine.f32.set(problem.q.subarray(q, q + rows * D), plan.raw / 4);
  const spans: Span[] = [];
  let [begin, end] = [Tk, 0];
  for (let row = 0; row < rows; row += lanes) {
    const span = open(plan, head, first + row, Math.min(lanes, rows - row), spans.length);
    spans.push(span);
    if (span.from >= span.to) continue;
    begin = Math.min(begin, span.from);
    end = Math.max(end, span.to);
  }
  end = Math.min(Tk, Math.ceil(end / BLOCK) * BLOCK);
  for (let start = Math.floor(begin / BLOCK) * BLOCK; start < end; start += panel) {
    const stop = Math.min(start + panel, end);
    load(plan, head, start, stop - start);
    for (let near = start; near < stop; near += wave) {
      const far = Math.min(near + wave, stop);
      for (let t = 0; t < spans.length; t++) {
        const { from, to } = spans[t]!;
        const [a, z] = [Math.max(near, Math.floor(from / BLOCK) * BLOCK), Math.min(far, to)];
        if (from < to && a < z) attendTile(plan, head, t, spans[t]!, first + t * lanes, a, z, start, stop);
      }
    }
  }
  finish(plan, head, first, rows);
  const at = head * plan.R + first;
  const from = plan.output / 4;
  problem.output.set(engine.f32.subarray(from, from + rows * Dv), at * Dv);
}

/** Queries of a tile into their place, and its state at the beginning; which keys it will see. */
function open(plan: Plan, head: number, first: number, rows: number, t: number): Span {
  const { engine, problem, sees, few, lanes } = plan;
  const { Hkv, Hq, Tq, Tk, D, Dv } = problem.sizes;
  const { f32, i32 } = engine;
  const [b, h] = [Math.floor(head / Hkv), (head % Hkv) * (Hq / Hkv)];
  const [raw, packed] = [plan.raw + t * lanes * D * 4, plan.packed + t * lanes * D * 4];
  if (few) {
    const scale = Math.fround(problem.scale);
    f32.fill(0, packed / 4 + rows * D, packed / 4 + lanes * D);
    for (let n = 0; n < rows * D; n++) f32[packed / 4 + n] = f32[raw / 4 + n]! * scale;
  } else {
    engine.kernels.pack(raw, rows, D, problem.scale, packed);
  }

  const state = (plan.states + t * plan.stateBytes) / 4;
  f32.fill(0, state, state + SUMS + lanes * Dv);
  let [from, to, allFrom, allTo] = [Tk, 0, 0, Tk];
  for (let r = 0; r < lanes; r++) {
    // A lane without a row of its own begins as the last one does, and sees all.
    const row = first + Math.min(r, rows - 1);
    const [start, stop] = r < rows ? sees(b, row % Tq) : [0, Tk];
    const sink = problem.sinks?.[h + Math.floor(row / Tq)] ?? -Infinity;
    f32[state + r] = sink;
    f32[state + L + r] = sink === -Infinity ? 0 : Math.exp(sink - sink);
    i32[state + FROM + r] = start;
    i32[state + TO + r] = stop;
    allFrom = Math.max(allFrom, start);
    allTo = Math.min(allTo, stop);
    if (r >= rows || start === stop) continue;
    from = Math.min(from, start);
    to = Math.max(to, stop);
  }
  return { from, to, allFrom, allTo };
}

/** Copies K and V of `count` keys into the panel, but for those that are there already. */
function load({ engine, problem, K, V, finite }: Plan, head: number, start: number, count: number): void {
  const { Tk, D, Dv } = problem.sizes;
  const { resident } = engine;
  const same = resident.head === head && resident.start === start;
  const have = same ? Math.min(resident.count, count) : 0;
  if (have < count) {
    const [from, to] = [head * Tk + start + have, head * Tk + start + count];
    engine.f32.set(problem.k.subarray(from * D, to * D), K / 4 + have * D);
    engine.f32.set(problem.v.subarray(from * Dv, to * Dv), V / 4 + have * Dv);
    engine.u8.fill(0, finite + Math.floor(have / BLOCK), finite + Math.ceil(count / BLOCK));
    engine.resident = { head, start, count };
  }
}

/** Keys a to z of the panel [start, stop) for tile t, whose first row is `first`. */
function attendTile(
  plan: Plan,
  head: number,
  t: number,
  span: Span,
  first: number,
  a: number,
  z: number,
  start: number,
  stop: number,
): void {
  const { engine, problem, few, lanes, work } = plan;
  const { D, Dv } = problem.sizes;
  const { kernels } = engine;
  const { softcap, sinks } = problem;
  const { allFrom, allTo } = span;
  const [bias, mask] = [problem.bias ? plan.bias : 0, problem.keep ? plan.mask : 0];
  const state = plan.states + t * plan.stateBytes;
  const queries = plan.packed + t * lanes * D * 4;
  const step = bias || mask ? BLOCK : z - a;
  for (let at = a; at < z; at += step) {
    const n = Math.min(step, z - at);
    const [k, v] = [plan.K + (at - start) * D * 4, plan.V + (at - start) * Dv * 4];
    if (bias) gather(plan, head, engine.f32, bias / 4, problem.bias!, first, at, n, 0);
    if (mask) gather(plan, head, engine.u8, mask, problem.keep!, first, at, n, 1);
    if (few) {
      kernels.decode(state, queries, lanes, k, v, at, n, D, Dv, work, softcap, bias, mask);
    } else {
      const finite = plan.finite + (at - start) / BLOCK;
      // biome-ignore format: one line for what is attended to, one for how
      kernels.attend(
        state, queries, k, v, at, n, stop - at, D, Dv, work, finite,
        allFrom, allTo, softcap, bias, mask, sinks ? 1 : 0,
      );
    }
  }
}

/** Keys `at` to at + n of what broadcasts to (B, Hq, Tq, Tk), for the rows of a tile: (rows, BLOCK). */
function gather<A extends Float32Array | Uint8Array>(
  { problem, R, lanes }: Plan,
  head: number,
  heap: A,
  place: number,
  spread: Spread<A>,
  first: number,
  at: number,
  n: number,
  otherwise: number,
): void {
  const { Hkv, Hq, Tq } = problem.sizes;
  const placeOf = broadcastIndex(spread.shape);
  const alike = (spread.shape.at(-1) ?? 1) === 1; // one value for all keys
  for (let r = 0; r < lanes; r++) {
    const to = place + r * BLOCK;
    const row = first + r;
    if (row >= R) {
      heap.fill(otherwise, to, to + n);
      continue;
    }
    const h = (head % Hkv) * (Hq / Hkv) + Math.floor(row / Tq);
    const from = placeOf(Math.floor(head / Hkv), h, row % Tq, alike ? 0 : at);
    if (alike) heap.fill(spread.data[from]!, to, to + n);
    else heap.set(spread.data.subarray(from, from + n), to);
  }
}

/** Divides, and takes the logarithm. */
function finish(plan: Plan, head: number, first: number, rows: number): void {
  const { engine, problem, R, few, lanes } = plan;
  const { Dv } = problem.sizes;
  const { f32, kernels } = engine;
  for (let t = 0; t * lanes < rows; t++) {
    const n = Math.min(lanes, rows - t * lanes);
    const state = plan.states + t * plan.stateBytes;
    const output = plan.output + t * lanes * Dv * 4;
    if (few) kernels.finishRows(state, n, Dv, output);
    else kernels.finish(state, n, Dv, problem.sinks ? 1 : 0, output);
    for (let r = 0; r < n; r++) {
      const at = state / 4 + r;
      problem.lse[head * R + first + t * lanes + r] = f32[at]! + Math.log(f32[at + L]!);
    }
  }
}
