/**
 * The port `typescript`: answers one JSON request a line on stdin with one line on stdout (docs/protocol.md),
 * until `stop` or the end of the input. Logs go to stderr.
 */

import { readFileSync, writeSync } from "node:fs";
import { Unsupported } from "../src/index.ts";
import { type Plan, timeCall } from "./bench.ts";
import { codeOf, InvalidRequest } from "./errors.ts";
import type { Call } from "./op.ts";
import { OPS, prepare } from "./ops.ts";
import { readTensors, type Tensors, writeTensors } from "./safetensors.ts";
import { binary, endThreads, grantThreads } from "./threads.ts";

type Json = Record<string, unknown>;

const PROTOCOL = 1;
const NEWLINE = 0x0a;
/** Each has memory of its own; more than a machine has are of no use. */
const MOST_THREADS = 64;

/** The state between requests: whether it was started, and the case that was benched last. */
class Port {
  stopped = false;
  #started = false;
  #benched: { key: string; call: Call } | null = null;

  /** The answer to one line; never throws. */
  answer(line: Uint8Array): Json {
    let echo: Json = {};
    try {
      const request = parse(line);
      if ("seq" in request) echo = { seq: request.seq };
      return { ...echo, ...this.#dispatch(request) };
    } catch (error) {
      if (error instanceof Unsupported) return { ...echo, status: "unsupported", feature: error.feature };
      const code = codeOf(error);
      if (code === "internal") console.error(error);
      const message = code === "internal" ? String(error) : (error as Error).message;
      return { ...echo, status: "error", code, message };
    }
  }

  #dispatch(request: Json): Json {
    const { cmd } = request;
    if (cmd === "start") return this.#start(request);
    if (cmd === "stop") {
      this.stopped = true;
      endThreads();
      return { status: "ok" };
    }
    if (cmd !== "run" && cmd !== "bench") {
      throw new InvalidRequest(`cmd: expected start, run, bench or stop, got ${cmd}`);
    }
    if (!this.#started) throw new InvalidRequest(`cmd: expected start first, got ${cmd}`);
    return cmd === "run" ? this.#run(request) : this.#bench(request);
  }

  #start({ protocol, threads }: Json): Json {
    if (protocol !== PROTOCOL) throw new InvalidRequest(`protocol: expected ${PROTOCOL}, got ${protocol}`);
    const granted = Math.min(whole("threads", threads ?? 1, 1), MOST_THREADS);
    grantThreads(granted);
    this.#started = true;
    return {
      status: "ok",
      protocol: PROTOCOL,
      name: "typescript",
      language: "TypeScript",
      version: JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")).version,
      runtime: `Node.js ${process.version}, V8 ${process.versions.v8}`,
      threads: granted,
      isa: binary() === "relaxed" ? ["simd128", "relaxed_simd"] : ["simd128"],
      ops: OPS,
    };
  }

  #run(request: Json): Json {
    const outputs = path("outputs", request.outputs);
    const call = prepare(request, readFor(request));
    const result = call.evaluate();
    writeTensors(outputs, call.outputs(result));
    const steps = call.steps?.(result);
    return steps === undefined ? { status: "ok" } : { status: "ok", steps };
  }

  #bench(request: Json): Json {
    const { warmup, samples, min_sample_ns, outputs } = request;
    const plan: Plan = {
      warmup: whole("warmup", warmup ?? 1, 0),
      samples: whole("samples", samples ?? 5, 1),
      minSampleNs: whole("min_sample_ns", min_sample_ns ?? 0, 0),
    };
    const call = this.#prepareOnce(request);
    const { firstNs, evals, samplesNs, cpuNs, peakBytes, last } = timeCall(() => call.evaluate(), plan);
    if (outputs != null) writeTensors(path("outputs", outputs), call.outputs(last));
    const times = { first_ns: firstNs, evals, samples_ns: samplesNs, cpu_ns: cpuNs };
    const measured = { status: "ok", ...times, peak_bytes: peakBytes };
    const steps = call.steps?.(last);
    return steps === undefined ? measured : { ...measured, steps };
  }

  /** The call that was prepared for the same case before, so that repeated requests read nothing again. */
  #prepareOnce(request: Json): Call {
    const inputs = path("inputs", request.inputs);
    const { case: id, op, variant, config, want } = request;
    const key = JSON.stringify([id, op, variant, config, want, inputs]);
    if (this.#benched?.key !== key) {
      this.#benched = null; // frees the old tensors before the new ones are read
      this.#benched = { key, call: prepare(request, readFor(request)) };
    }
    return this.#benched.call;
  }
}

const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function parse(line: Uint8Array): Json {
  let text: string;
  let request: unknown;
  try {
    text = UTF8.decode(line);
    request = JSON.parse(text);
  } catch (error) {
    throw new InvalidRequest(`request: expected a line of JSON, got ${(error as Error).message}`);
  }
  if (typeof request !== "object" || request === null || Array.isArray(request)) {
    throw new InvalidRequest(`request: expected a JSON object, got ${text}`);
  }
  const { seq } = request as Json;
  if (typeof seq === "number" && !Number.isSafeInteger(seq)) return { ...request, seq: asWritten(text) };
  return request as Json;
}

/** Newer than the types of `JSON`. */
const { rawJSON } = JSON as unknown as { rawJSON(text: string): unknown };

/** The `seq` of a request digit by digit, where float64 would round it. */
function asWritten(text: string): unknown {
  const { seq } = JSON.parse(text, (key, value, context?: { source: string }) =>
    key === "seq" && Number.isFinite(value) ? rawJSON(context!.source) : value,
  );
  if (seq === Infinity || seq === -Infinity) throw new InvalidRequest(`seq: expected a number, got ${seq}`);
  return seq;
}

/** The tensors of a request: threads read them where they lie, all others from memory of their own. */
function readFor({ inputs, variant }: Json): Tensors {
  return readTensors(path("inputs", inputs), variant === "threads");
}

function path(name: string, value: unknown): string {
  if (typeof value === "string") return value;
  throw new InvalidRequest(`${name}: expected a path, got ${value}`);
}

function whole(name: string, value: unknown, least: number): number {
  if (Number.isInteger(value) && (value as number) >= least) return value as number;
  throw new InvalidRequest(`${name}: expected an integer >= ${least}, got ${value}`);
}

/** The lines of stdin, split at the byte: a chunk may end inside a character. */
async function* lines(): AsyncGenerator<Uint8Array> {
  let pending: Buffer[] = [];
  for await (const chunk of process.stdin as AsyncIterable<Buffer>) {
    let start = 0;
    for (let end = chunk.indexOf(NEWLINE); end >= 0; end = chunk.indexOf(NEWLINE, start)) {
      yield Buffer.concat([...pending, chunk.subarray(start, end)]);
      pending = [];
      start = end + 1;
    }
    if (start < chunk.length) pending.push(chunk.subarray(start));
  }
  if (pending.length > 0) yield Buffer.concat(pending);
}

/** Written before the next request is looked at; a pipe that is full for the moment is tried again. */
function writeLine(answer: Json): void {
  const bytes = Buffer.from(`${JSON.stringify(answer)}\n`);
  for (let sent = 0; sent < bytes.length; ) {
    try {
      sent += writeSync(1, bytes, sent);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EAGAIN") throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1); // a millisecond
    }
  }
}

const port = new Port();
for await (const line of lines()) {
  writeLine(port.answer(line));
  if (port.stopped) break;
}
endThreads();
