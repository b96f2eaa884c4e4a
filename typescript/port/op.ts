/** What every op of the port is: its claims, and the way from a request to a call of the library. */

import { type Tensor, type TensorArray, Unsupported } from "../src/index.ts";
import { SHORT_NAMES } from "../src/tensor.ts";
import { type Config, camel } from "./config.ts";
import { InvalidRequest } from "./errors.ts";
import { store, type Tensors } from "./safetensors.ts";

/** `evaluate` is the library call alone; `outputs` and `steps` turn its result into what is answered. */
export interface Call<R = unknown> {
  evaluate(): R;
  outputs(result: R): Tensors;
  steps?(result: R): string[];
}

/** What the answer to `start` says about an op. */
export interface Claims {
  readonly variants: readonly string[];
  /** The variants that are held to all features, like the first one. */
  readonly complete?: readonly string[];
  readonly dtypes: readonly string[];
  readonly features: readonly string[];
}

export interface Op {
  readonly claims: Claims;
  /** The variant is one of those claimed. @throws InvalidRequest, and the library's errors. */
  prepare(variant: string, config: Config, tensors: Tensors, want: string[] | null, outputs: unknown): Call;
}

/** What a library call gives, by the library's names. */
export type Results = Readonly<Record<string, Tensor<TensorArray>>>;

/** Reads config and tensors once, and gives the call that can be repeated and timed. */
export type Reader = (config: Config, tensors: Tensors, want: readonly string[]) => () => object;

/** A variant that gives fewer outputs; a partial one also refuses some features or types. */
export interface Rung {
  readonly reader: Reader;
  readonly outputs: readonly string[];
  readonly partial?: boolean;
}

export interface OpTable {
  /** By the names of the protocol, in snake case. */
  readonly outputs: readonly string[];
  readonly features: readonly string[];
  /** The first is the readable one; the others may give fewer outputs than it, or end somewhere else too. */
  readonly variants: Readonly<Record<string, Reader | Rung>>;
}

/** What every op takes. */
export const DTYPES: readonly string[] = Object.keys(SHORT_NAMES);

/** An op whose variants are all complete, but for those that say they are partial. */
export function op({ outputs, features, variants }: OpTable): Op {
  const names = Object.keys(variants);
  const whole = names.slice(1).filter((name) => !(variants[name] as Rung).partial);
  const complete = whole.length > 0 ? { complete: whole } : {};
  return {
    claims: { variants: names, ...complete, dtypes: DTYPES, features },
    prepare(variant, config, tensors, want) {
      const wanted = want ?? ["output"];
      const entry = variants[variant]!;
      const given = typeof entry === "function" ? outputs : entry.outputs;
      for (const name of wanted) {
        if (!outputs.includes(name)) {
          throw new InvalidRequest(`want: expected some of ${outputs}, got ${name}`);
        }
        if (!given.includes(name)) throw new Unsupported(`want.${name}`);
      }
      const evaluate = (typeof entry === "function" ? entry : entry.reader)(config, tensors, wanted);
      const call: Call<object> = {
        evaluate,
        outputs: (result) => new Map(wanted.map((name) => [name, store((result as Results)[camel(name)]!)])),
      };
      return call as Call;
    },
  };
}

/** An op with the readable rung only. */
export function plainOp(outputs: readonly string[], features: readonly string[], reader: Reader): Op {
  return op({ outputs, features, variants: { naive: reader } });
}
