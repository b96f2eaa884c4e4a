/** What each step of a cache script does, and the names of what it writes. */

import { dirname, resolve } from "node:path";
import { positionTable } from "../src/cache_rope.ts";
import {
  type AppendOptions,
  allOrNothing,
  type Cache,
  dtypeOfFile,
  type FloatDtype,
  type IntTensor,
  InvalidConfig,
  type KVCache,
  loadCache,
  PagedCache,
  saveCache,
  type Tensor,
  type TensorArray,
} from "../src/index.ts";
import { dtypeOf, FLOATS, int64 } from "../src/tensor.ts";
import { policyOf } from "./cache_policy.ts";
import { type AnyTensor, type Config, camel, required, stepOptions } from "./config.ts";
import { InvalidRequest } from "./errors.ts";
import { readWhole, type Stored, store, type Tensors, writeWhole } from "./safetensors.ts";

/** The caches of a script while it is played. All have one type: that of what is appended or loaded first. */
export interface Caches {
  readonly named: Map<string, Cache>;
  readonly tensors: Tensors;
  /** The tensors of an append. */
  readonly parts: readonly [string, string];
  /** The folder of relative paths; null where the request names none. */
  readonly folder: string | null;
  /** Whether they have it. */
  typed: boolean;
  build(dtype: FloatDtype): Cache;
}

type Written = [name: string, tensor: Stored][];

interface Step {
  /** Gives what it writes. */
  play(cache: Cache, step: Config, caches: Caches): Written;
  /** All that it could write. */
  writes?(step: Config): unknown[];
}

const CODES = ["k_codes", "v_codes", "k_scale", "v_scale", "k_zero", "v_zero", "k_tail"];
const CONTENTS = ["k", "v", "latent", "rope_key"];

export const STEPS: Readonly<Record<string, Step>> = {
  append: {
    play(cache, step, caches) {
      const [k, v] = caches.parts.map((part) => required(caches.tensors, step[part]));
      append(asType(typeOf(k!, cache), cache, step, caches), k!, v!, step, caches);
      caches.typed = true;
      return [];
    },
  },
  attend: {
    play(cache, step, caches) {
      const q = required(caches.tensors, step.q);
      return attend(asType(typeOf(q, cache), cache, step, caches), q, step, caches);
    },
    writes: ({ out, lse }) => [out, lse],
  },
  append_attend: {
    play(cache, step, caches) {
      const [k, v] = caches.parts.map((part) => required(caches.tensors, step[part]));
      const target = asType(typeOf(k!, cache), cache, step, caches);
      const written = allOrNothing(target, () => {
        append(target, k!, v!, step, caches);
        return attend(target, required(caches.tensors, step.q), step, caches);
      });
      caches.typed = true;
      return written;
    },
    writes: ({ out, lse }) => [out, lse],
  },
  truncate: {
    play(cache, step) {
      cache.truncate(step.lengths as number[]);
      return [];
    },
  },
  reset: {
    play(cache) {
      cache.reset();
      return [];
    },
  },
  read: {
    play: read,
    writes: ({ out }) =>
      [...CONTENTS, ...CODES, "tracked", "lengths", "positions"].map((part) => `${out}.${part}`),
  },
  reorder: {
    play(cache, step) {
      cache.reorder(list(step, "index"));
      return [];
    },
  },
  fork: {
    play(cache, step, { named }) {
      const into = text(step, "into");
      if (named.has(into)) throw new InvalidConfig(`fork: into: expected a name that is free, got ${into}`);
      named.set(into, cache.fork());
      return [];
    },
  },
  drop: {
    play(cache, step, { named }) {
      if (cache instanceof PagedCache) cache.drop();
      named.delete(cacheName(step));
      return [];
    },
  },
  evict: {
    play(cache, step, caches) {
      if (step.policy == null) {
        (cache as KVCache<FloatDtype>).evict(list(step, "positions"));
        return [];
      }
      if (step.positions != null) {
        throw new InvalidConfig("evict: policy: expected nothing beside positions, got both");
      }
      const policy = policyOf(step.policy, caches.tensors);
      const dtype = policy.type === "snapkv" ? typeOf(policy.q, cache) : cache.dtype;
      (asType(dtype, cache, step, caches) as KVCache<FloatDtype>).evictBy(policy);
      return [];
    },
  },
  shift: {
    play(cache, step) {
      const [by, from] = [present(step, "by"), present(step, "from")];
      (cache as KVCache<FloatDtype>).shift(by as number, from as number);
      return [];
    },
  },
  save: {
    play(cache, step, { folder }) {
      writeWhole("file", pathOf(step, folder), saveCache(cache));
      return [];
    },
  },
  load: {
    play(cache, step, caches) {
      const file = readWhole("file", pathOf(step, caches.folder));
      loadCache(asType(dtypeOfFile(file), cache, step, caches), file);
      caches.typed = true;
      return [];
    },
  },
  stats: {
    play(cache, step) {
      const out = text(step, "out");
      const { positions, bytes, pages } = cache.stats();
      const written: Written = [
        [`${out}.positions`, store(byRow(cache, int64(positions)))],
        [`${out}.bytes`, store(int64([bytes]))],
      ];
      if (pages) written.push([`${out}.pages`, store(int64([pages.used, pages.shared, pages.free]))]);
      return written;
    },
    writes: ({ out }) => ["positions", "bytes", "pages"].map((part) => `${out}.${part}`),
  },
};

/** The cache that a step is about. @throws InvalidConfig. */
export function cacheOf(step: Config, { named }: Caches): Cache {
  const cache = named.get(cacheName(step));
  if (cache !== undefined) return cache;
  throw new InvalidConfig(`${step.do}: cache: expected one of ${[...named.keys()]}, got ${step.cache}`);
}

function cacheName(step: Config): string {
  return (step.cache ?? "main") as string;
}

/** The cache of a step. While nothing has a type, all caches are empty, and become what is asked for. */
function asType(dtype: FloatDtype, cache: Cache, step: Config, { typed, named, build }: Caches): Cache {
  if (typed || dtype === cache.dtype) return cache;
  const empty = build(dtype);
  for (const name of named.keys()) named.set(name, empty.fork());
  return named.get(cacheName(step))!;
}

function typeOf(x: Tensor<TensorArray>, cache: Cache): FloatDtype {
  const dtype = dtypeOf(x);
  return FLOATS.includes(dtype) ? (dtype as FloatDtype) : cache.dtype; // the library refuses the others
}

function append(cache: Cache, k: AnyTensor, v: AnyTensor, step: Config, { tensors }: Caches): void {
  const named = (name: string) => (step[name] == null ? null : required(tensors, step[name]));
  const lengths: IntTensor | null = named("lengths");
  const options = { padding: step.padding, tokens: named("tokens") } as AppendOptions;
  cache.append(k, v, lengths, options);
}

function attend(cache: Cache, q: AnyTensor, step: Config, { tensors }: Caches): Written {
  const out = text(step, "out");
  const lseName = step.lse == null ? null : text(step, "lse");
  const { output, lse } = cache.attendSteps(q, stepOptions(step, tensors));
  const written: Written = [[out, store(output)]];
  if (lseName !== null) written.push([lseName, store(lse)]);
  return written;
}

function read(cache: Cache, step: Config): Written {
  const out = text(step, "out");
  const [codes, positions, tracked] = ["codes", "positions", "tracked"].map((name) => flag(step, name));
  const contents = cache.read() as ReturnType<Cache["read"]> & Record<string, Tensor<TensorArray>>;
  if (codes && contents.kCodes === undefined) {
    throw new InvalidConfig("read: codes: expected false where nothing is quantised, got true");
  }
  if (tracked && contents.tracked === undefined) {
    throw new InvalidConfig("read: tracked: expected false where nothing is tracked, got true");
  }
  const names = [...CONTENTS, ...(codes ? CODES : []), ...(tracked ? ["tracked"] : [])];
  const written = names.flatMap((name): Written => {
    const x = contents[camel(name)];
    return x === undefined ? [] : [[`${out}.${name}`, store(x, "U8")]];
  });
  written.push([`${out}.lengths`, store(byRow(cache, int64(contents.lengths)))]);
  if (positions) written.push([`${out}.positions`, store(byRow(cache, positionTable(contents.positions)))]);
  return written;
}

/** (B, ...) with all the axes of the rows of this cache. */
function byRow({ batch, rowAxes }: Cache, { data, shape }: IntTensor): IntTensor {
  return { data, shape: [...(rowAxes ?? [batch]), ...shape.slice(1)] };
}

/** A relative path is one in the folder of the request's outputs. */
function pathOf(step: Config, folder: string | null): string {
  const file = text(step, "file");
  if (folder === null && resolve(file) !== file) {
    throw new InvalidRequest(`${step.do}: file: expected an absolute path without outputs, got ${file}`);
  }
  return resolve(folder ?? "/", file);
}

/** The folder of a request's outputs. */
export function folderOf(outputs: unknown): string | null {
  return typeof outputs === "string" ? dirname(outputs) : null;
}

function text(step: Config, name: string): string {
  const value = step[name];
  if (typeof value === "string") return value;
  throw new InvalidRequest(`${step.do}: ${name}: expected a name, got ${value}`);
}

function list(step: Config, name: string): number[] {
  const value = step[name];
  if (Array.isArray(value)) return value;
  throw new InvalidRequest(`${step.do}: ${name}: expected a list, got ${value}`);
}

/** True or false, which it is when it is absent. */
function flag(step: Config, name: string): boolean {
  const value = step[name] ?? false;
  if (typeof value === "boolean") return value;
  throw new InvalidConfig(`${step.do}: ${name}: expected true or false, got ${JSON.stringify(value)}`);
}

function present(step: Config, name: string): unknown {
  if (step[name] !== undefined && step[name] !== null) return step[name];
  throw new InvalidRequest(`${step.do}: expected ${name}, got nothing`);
}
