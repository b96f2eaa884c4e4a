/** The work of a call in tasks that any thread may take: rows of one KV head each. */

import { InvalidConfig } from "../errors.ts";
import type { Engine } from "./engine.ts";
import { type Problem, rowsOf } from "./problem.ts";
import { attendRows, type Plan, planRows, TILE } from "./rows.ts";

/** A call as the threads share it: all arrays are views of shared memory. */
export interface Job {
  readonly problem: Problem;
  /** Rows of a task, a multiple of TILE. */
  readonly chunk: number;
  /** Int32: the next task, how many are finished, whether one has failed and how. New for every call. */
  readonly control: SharedArrayBuffer;
}

/** Where they stand in `control`. */
export const NEXT: number = 0;
export const FINISHED: number = 1;
export const FAILED: number = 2;
/** How: there was not enough memory, or in a way that nobody expects. */
export const MEMORY: number = 1;
export const UNKNOWN: number = 2;

/** Tasks for each thread: so many that none waits long for the last. */
const TASKS_A_THREAD = 4;
/** Fewer rows would not be worth copying a panel of keys for. */
const LEAST_ROWS = 64;

/** Rows of a task when `threads` share the work. The bits of the result do not depend on it. */
export function chunkOf(problem: Problem, threads: number): number {
  const heads = problem.sizes.B * problem.sizes.Hkv;
  const parts = Math.ceil((TASKS_A_THREAD * threads) / Math.max(heads, 1));
  return Math.ceil(Math.max(LEAST_ROWS, rowsOf(problem) / parts) / TILE) * TILE;
}

/** How many tasks there are. */
export function countOf({ problem, chunk }: Omit<Job, "control">): number {
  return problem.sizes.B * problem.sizes.Hkv * Math.ceil(rowsOf(problem) / chunk);
}

/** Takes tasks until none is left, and says how many. One that fails is noted, and counts as finished. */
export function takeTasks(engine: Engine, job: Job): number {
  let taken = 0;
  const { problem, chunk } = job;
  const control = new Int32Array(job.control);
  const rows = rowsOf(problem);
  const parts = Math.ceil(rows / chunk);
  const count = countOf(job);
  let plan: Plan | null = null;
  for (let task = Atomics.add(control, NEXT, 1); task < count; task = Atomics.add(control, NEXT, 1)) {
    const [head, first] = [Math.floor(task / parts), (task % parts) * chunk];
    try {
      plan ??= planRows(engine, problem, Math.min(rows, chunk));
      attendRows(plan, head, first, Math.min(rows, first + chunk));
    } catch (error) {
      Atomics.store(control, FAILED, error instanceof InvalidConfig ? MEMORY : UNKNOWN);
    }
    taken += 1;
    Atomics.add(control, FINISHED, 1);
    Atomics.notify(control, FINISHED);
  }
  return taken;
}
