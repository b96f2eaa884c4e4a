/**
 * The kernels of {@link wasm} on several threads, with the same bits for any number of them.
 *
 * What it changes: batch rows, KV heads and tiles of queries are tasks, which the calling thread and its workers
 * take one after the other from a counter in shared memory. A row is computed by one thread, in the order in which
 * it would be alone. A call is synchronous.
 *
 * What that gained: 1.3 to 1.7 times the speed of one thread on two for many queries, and up to 1.3 in decode beyond half
 * a millisecond, on a machine of two cores that others used as well (`node experiments/wasm_ratio.ts 30`).
 *
 * Tensors on a SharedArrayBuffer are read where they lie; others are copied to shared memory first, which for
 * decoding costs more than a second thread brings.
 */

import { requireInteger } from "./checks.ts";
import { checkSdpa } from "./checks_attention.ts";
import { InvalidConfig, Unsupported } from "./errors.ts";
import type { Attended } from "./merge.ts";
import type { SdpaOptions } from "./sdpa.ts";
import type { Tensor } from "./tensor.ts";
import { type Binary, bestBinary, Engine } from "./wasm/engine.ts";
import { canShare, startThread, type Thread } from "./wasm/host.ts";
import { type Problem, problemOf } from "./wasm/problem.ts";
import { chunkOf, countOf, FAILED, FINISHED, type Job, MEMORY, takeTasks } from "./wasm/tasks.ts";
import { attended, solve } from "./wasm.ts";

/**
 * For less than so many nanoseconds of work no thread is woken: two are slower than one up to 0.3 ms of prefill or of
 * decode, and 1.2 to 1.3 times as fast from 0.5 on. Work is operations and bytes of K and V, at what one thread does.
 */
const WORTH_IT = 4e5;
const [OPERATIONS_A_NS, BYTES_A_NS] = [33, 13];

/** A number of threads, the calling one among them, that attend together. `close` ends them. */
export class Threads {
  readonly count: number;
  /** How many tasks of the last shared call other threads than the calling one took. */
  helped: number = 0;
  readonly #engine: Engine;
  readonly #binary: Binary;
  #workers: Thread[] = [];
  #scratch: SharedArrayBuffer | null = null;

  /** @throws InvalidConfig, Unsupported where memory cannot be shared between threads. */
  constructor(count: number, binary: Binary = bestBinary()) {
    requireInteger("threads", "count", count, 1);
    if (!canShare()) throw new Unsupported("threads");
    this.count = count;
    this.#binary = binary;
    this.#engine = new Engine(binary);
    for (let n = 1; n < count; n++) this.#workers.push(startThread());
  }

  /** As {@link wasm}; same arguments, errors and bits. */
  sdpa(
    q: Tensor<Float32Array>,
    k: Tensor<Float32Array>,
    v: Tensor<Float32Array>,
    options: SdpaOptions<Float32Array> = {},
  ): Attended<Float32Array> {
    checkSdpa("threads", q, k, v, options);
    const problem = problemOf(q, k, v, options);
    const { B, Hq, Hkv, Tq, Tk, D, Dv } = problem.sizes;
    const [operations, bytes] = [2 * B * Hq * Tq * Tk * (D + Dv), 4 * B * Hkv * Tk * (D + Dv)];
    const chunk = chunkOf(problem, this.count);
    const idle = operations / OPERATIONS_A_NS + bytes / BYTES_A_NS < WORTH_IT;
    const small = idle || countOf({ problem, chunk }) < 2;
    if (this.#workers.length === 0 || small) solve(this.#engine, problem);
    else this.#share(problem, chunk);
    return attended(problem);
  }

  /** Ends the threads; a later call runs on the calling one alone. */
  close(): void {
    for (const worker of this.#workers) worker.terminate();
    this.#workers = [];
    this.#scratch = null;
  }

  #share(problem: Problem, chunk: number): void {
    const shared = this.#inSharedMemory(problem);
    const control = new SharedArrayBuffer(12);
    const job: Job = { problem: shared, chunk, control };
    const message = { job, binary: this.#binary };
    for (const worker of this.#workers) worker.postMessage(message);
    const count = countOf(job);
    this.helped = count - takeTasks(this.#engine, job);

    // A worker that comes too late finds no task, so only those that were taken are waited for.
    const state = new Int32Array(control);
    for (let done = Atomics.load(state, FINISHED); done < count; done = Atomics.load(state, FINISHED)) {
      waitFor(state, FINISHED, done);
    }
    const failed = Atomics.load(state, FAILED);
    if (failed === MEMORY) {
      throw new InvalidConfig(
        "threads: memory: expected heads that fit into 4 GiB a thread, got larger ones",
      );
    }
    if (failed !== 0) throw new Error("threads: a task ended with an error that it should never have");
    problem.output.set(shared.output);
    problem.lse.set(shared.lse);
  }

  /** The same problem with every array in shared memory. */
  #inSharedMemory(problem: Problem): Problem {
    const { q, k, v, output, lse, keep, bias, sinks } = problem;
    const arrays = [q, k, v, output, lse, keep?.data, bias?.data, sinks].filter((x) => x != null);
    const bytes = arrays.reduce((sum, x) => sum + padded(x.byteLength), 0);
    if (this.#scratch === null || this.#scratch.byteLength < bytes) {
      try {
        this.#scratch = new SharedArrayBuffer(bytes);
      } catch (error) {
        if (!(error instanceof RangeError)) throw error;
        throw new InvalidConfig(
          `threads: memory: expected inputs that fit into it once more, got ${bytes} bytes`,
        );
      }
    }
    const scratch = this.#scratch;
    let end = 0;
    const move = <A extends Float32Array | Uint8Array>(x: A): A => {
      if (x.buffer instanceof SharedArrayBuffer) return x;
      const Kind = x.constructor as new (buffer: SharedArrayBuffer, at: number, n: number) => A;
      const copy = new Kind(scratch, end, x.length);
      end += padded(x.byteLength);
      copy.set(x);
      return copy;
    };
    return {
      ...problem,
      q: move(q),
      k: move(k),
      v: move(v),
      output: move(output),
      lse: move(lse),
      keep: keep && { ...keep, data: move(keep.data) },
      bias: bias && { ...bias, data: move(bias.data) },
      sinks: sinks && move(sinks),
    };
  }
}

/** Up to the next cache line, so that no two threads write to the same one. */
function padded(bytes: number): number {
  return Math.ceil(bytes / 64) * 64;
}

/** Until the number is no longer `value`. The main thread of a page may not sleep, and looks again and again. */
function waitFor(state: Int32Array, index: number, value: number): void {
  try {
    Atomics.wait(state, index, value);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
  }
}
