/**
 * Attention in WebAssembly: the same result as {@link sdpa}, by kernels in SIMD128.
 *
 * What it changes: lanes are queries, eight to a tile, whose scores against six keys stay in registers; softmax is
 * online, over blocks of 96 keys, which all tiles meet while they are in a near cache; exp is a polynomial; slots that causality, windows and lengths hide are
 * intervals, so that whole tiles of them are never computed; and where four queries or fewer share their keys
 * (decoding), lanes are channels and a key is loaded once for all of them. float32 only.
 *
 * What that gained: 33 to 37 times the speed of {@link sdpa}, and 78 to 84 % of what a bare loop of multiply-adds
 * reaches (T 512 and 2048, D 64 and 128), by `node experiments/wasm_ratio.ts 30`.
 *
 * It runs wherever there is WebAssembly with SIMD, and takes fused multiply-adds where the engine has relaxed
 * SIMD. An engine compiles a kernel well only after some calls, so a first call is slow.
 *
 * Sources: as for flash.ts; Milakov and Gimelshein, 2018 (online softmax).
 */

import { checkSdpa } from "./checks_attention.ts";
import type { Attended } from "./merge.ts";
import type { SdpaOptions } from "./sdpa.ts";
import type { Tensor } from "./tensor.ts";
import { Engine } from "./wasm/engine.ts";
import { type Problem, problemOf, rowsOf } from "./wasm/problem.ts";
import { attendRows, planRows } from "./wasm/rows.ts";

let shared: Engine | null = null;

/** The one that calls without an engine of their own share. @throws Unsupported. */
function sharedEngine(): Engine {
  shared ??= new Engine();
  return shared;
}

/**
 * {@link sdpa} of `q` (B, Hq, Tq, D), `k` (B, Hkv, Tk, D) and `v` (B, Hkv, Tk, Dv), with its log-sum-exp.
 *
 * @param engine a binary of one's own choice. Absent: the better one that there is.
 * @throws ShapeMismatch, DtypeMismatch, InvalidConfig (also for heads that do not fit into 4 GiB), Unsupported for
 * types but float32, for dropout, and where there is no WebAssembly with SIMD.
 */
export function wasm(
  q: Tensor<Float32Array>,
  k: Tensor<Float32Array>,
  v: Tensor<Float32Array>,
  options: SdpaOptions<Float32Array> = {},
  engine?: Engine,
): Attended<Float32Array> {
  checkSdpa("wasm", q, k, v, options);
  const problem = problemOf(q, k, v, options);
  solve(engine ?? sharedEngine(), problem);
  return attended(problem);
}

/** All rows of all heads. */
export function solve(engine: Engine, problem: Problem): void {
  const { B, Hkv } = problem.sizes;
  const rows = rowsOf(problem);
  if (B * rows === 0) return;
  const plan = planRows(engine, problem, rows);
  for (let head = 0; head < B * Hkv; head++) attendRows(plan, head, 0, rows);
}

/** What a solved problem gives. */
export function attended({ output, lse, sizes }: Problem): Attended<Float32Array> {
  const { B, Hq, Tq, Dv } = sizes;
  return { output: { data: output, shape: [B, Hq, Tq, Dv] }, lse: { data: lse, shape: [B, Hq, Tq] } };
}
