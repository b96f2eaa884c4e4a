/** The op `kv_cache`: a script of steps, replayed on a fresh cache by every evaluation. */

import { type FloatDtype, type IntTensor, KVCache, type KVCacheOptions, Unsupported } from "../src/index.ts";
import { type Config, required, stepOptions } from "./config.ts";
import { codeOf, InvalidRequest } from "./errors.ts";
import type { Call } from "./op.ts";
import { type Stored, store, type Tensors } from "./safetensors.ts";

interface Played {
  readonly codes: string[];
  readonly written: Map<string, Stored>;
}

type Cache = KVCache<FloatDtype>;
type Written = [name: string, tensor: Stored][];

/** What each step does; gives what it writes. */
const STEPS: Readonly<Record<string, (cache: Cache, step: Config, tensors: Tensors) => Written>> = {
  append(cache, step, tensors) {
    const lengths: IntTensor | null = step.lengths == null ? null : required(tensors, step.lengths);
    cache.append(required(tensors, step.k), required(tensors, step.v), lengths);
    return [];
  },
  attend(cache, step, tensors) {
    const out = outName(step, "out");
    const lseName = step.lse == null ? null : outName(step, "lse");
    const { output, lse } = cache.attendSteps(required(tensors, step.q), stepOptions(step, tensors));
    const written: Written = [[out, store(output)]];
    if (lseName !== null) written.push([lseName, store(lse)]);
    return written;
  },
  truncate(cache, step) {
    cache.truncate(step.lengths as number[]);
    return [];
  },
  reset(cache) {
    cache.reset();
    return [];
  },
  read(cache, step) {
    const out = outName(step, "out");
    const { k, v, lengths } = cache.read();
    const counts = BigInt64Array.from(lengths, BigInt);
    return [
      [`${out}.k`, store(k)],
      [`${out}.v`, store(v)],
      [`${out}.lengths`, { dtype: "I64", shape: [counts.length], data: counts }],
    ];
  },
};

/** Refuses at once what the whole script cannot do; a step that fails only gets its code. */
export function prepareCache(config: Config, tensors: Tensors, want: string[] | null): Call {
  const kind = config.kind ?? "contiguous";
  if (kind !== "contiguous") throw new Unsupported(`kind.${kind}`);
  if (config.rope != null) throw new Unsupported("rope");
  const steps = stepList(config.steps);
  if (want !== null) checkWant(want, steps);
  for (const name of ["batch", "num_kv_heads", "head_dim"]) {
    if (config[name] == null) throw new InvalidRequest(`config: expected ${name}, got nothing`);
  }
  const options = {
    batch: config.batch,
    numKvHeads: config.num_kv_heads,
    headDim: config.head_dim,
    valueDim: config.value_dim,
    capacity: config.capacity,
    dtype: cacheDtype(steps, tensors),
  } as KVCacheOptions<FloatDtype>;
  new KVCache(options); // a bad configuration is an error of the call, not of a step

  const script: Call<Played> = {
    evaluate: () => play(steps, new KVCache(options), tensors),
    outputs: ({ written }) => new Map([...written].filter(([name]) => want === null || want.includes(name))),
    steps: ({ codes }) => codes,
  };
  return script as Call;
}

function play(steps: Config[], cache: Cache, tensors: Tensors): Played {
  const codes: string[] = [];
  const written = new Map<string, Stored>();
  for (const step of steps) {
    try {
      for (const [name, tensor] of STEPS[step.do as string]!(cache, step, tensors)) written.set(name, tensor);
      codes.push("ok");
    } catch (error) {
      const code = codeOf(error);
      if (code === "unsupported" || code === "internal") throw error; // concerns the whole request
      codes.push(code);
    }
  }
  return { codes, written };
}

function stepList(steps: unknown): Config[] {
  if (!Array.isArray(steps)) throw new InvalidRequest(`config: expected steps, a list, got ${steps}`);
  for (const step of steps) {
    if (typeof step !== "object" || step === null)
      throw new InvalidRequest(`steps: expected objects, got ${step}`);
    if (typeof step.do !== "string") throw new InvalidRequest("steps: expected do, got nothing");
    if (!Object.hasOwn(STEPS, step.do)) throw new Unsupported(`step.${step.do}`);
    if ((step.cache ?? "main") !== "main") throw new Unsupported("step.cache");
  }
  return steps;
}

const DTYPES: Readonly<Record<string, FloatDtype>> = {
  F32: "float32",
  F64: "float64",
  F16: "float16",
  BF16: "bfloat16",
};

/** Of the keys of the first append; without one, of the first float tensor by name; else float32. */
function cacheDtype(steps: Config[], tensors: Tensors): FloatDtype {
  const keys = tensors.get(steps.find((step) => step.do === "append")?.k as string);
  const byName = [...tensors.keys()].sort().map((name) => tensors.get(name));
  for (const tensor of [keys, ...byName]) {
    if (tensor !== undefined && Object.hasOwn(DTYPES, tensor.dtype)) return DTYPES[tensor.dtype]!;
  }
  return "float32";
}

function outName(step: Config, field: string): string {
  const name = step[field];
  if (typeof name === "string") return name;
  throw new InvalidRequest(`${step.do}: ${field}: expected the name of a tensor, got ${name}`);
}

/** Every wanted name is one that some step writes. */
function checkWant(want: string[], steps: Config[]): void {
  const offered = steps.flatMap(({ do: name, out, lse }) => {
    if (name === "read") return [`${out}.k`, `${out}.v`, `${out}.lengths`];
    return name === "attend" ? [out, lse] : [];
  });
  for (const name of want) {
    if (!offered.includes(name)) throw new InvalidRequest(`want: expected some of ${offered}, got ${name}`);
  }
}
