/** The op `kv_cache`: a script of steps, replayed on fresh caches by every evaluation. */

import { type FloatDtype, Unsupported } from "../src/index.ts";
import { SHORT_NAMES } from "../src/tensor.ts";
import { checkNeeds, kindOf } from "./cache_kinds.ts";
import { checkKnown } from "./cache_policy.ts";
import { type Caches, cacheOf, folderOf, STEPS } from "./cache_steps.ts";
import type { Config } from "./config.ts";
import { codeOf, InvalidRequest } from "./errors.ts";
import type { Call } from "./op.ts";
import type { Stored, Tensors } from "./safetensors.ts";

interface Played {
  readonly codes: string[];
  readonly written: Map<string, Stored>;
}

/** Refuses at once what the whole script cannot do; a step that fails only gets its code. */
export function prepareCache(
  config: Config,
  tensors: Tensors,
  want: string[] | null,
  outputs: unknown,
): Call {
  const kind = kindOf(config);
  const steps = stepList(config.steps, kind.lacks);
  if (want !== null) checkWant(want, steps);
  checkNeeds(config, kind);
  const dtype = firstDtype(tensors);
  kind.build(config, dtype); // a bad configuration is an error of the call, not of a step

  const fresh = (): Caches => ({
    named: new Map([["main", kind.build(config, dtype)]]),
    tensors,
    parts: kind.parts,
    folder: folderOf(outputs),
    typed: false,
    build: (other) => kind.build(config, other),
  });
  const script: Call<Played> = {
    evaluate: () => play(steps, fresh()),
    outputs: ({ written }) => new Map([...written].filter(([name]) => want === null || want.includes(name))),
    steps: ({ codes }) => codes,
  };
  return script as Call;
}

function play(steps: Config[], caches: Caches): Played {
  const codes: string[] = [];
  const written = new Map<string, Stored>();
  for (const step of steps) {
    try {
      const { play: playStep } = STEPS[step.do as string]!;
      for (const [name, tensor] of playStep(cacheOf(step, caches), step, caches)) written.set(name, tensor);
      codes.push("ok");
    } catch (error) {
      const code = codeOf(error);
      if (code === "unsupported" || code === "internal") throw error; // concerns the whole request
      codes.push(code);
    }
  }
  return { codes, written };
}

function stepList(steps: unknown, lacks: readonly string[]): Config[] {
  if (!Array.isArray(steps)) throw new InvalidRequest(`config: expected steps, a list, got ${steps}`);
  for (const step of steps) {
    if (typeof step !== "object" || step === null)
      throw new InvalidRequest(`steps: expected objects, got ${step}`);
    if (typeof step.do !== "string") throw new InvalidRequest("steps: expected do, got nothing");
    if (!Object.hasOwn(STEPS, step.do) || lacks.includes(step.do)) throw new Unsupported(`step.${step.do}`);
    if (step.do === "evict") checkKnown(step.policy);
  }
  return steps;
}

/** What the caches begin with: of the first float tensor by name, else float32. */
function firstDtype(tensors: Tensors): FloatDtype {
  const byName = [...tensors.keys()].sort().map((name) => tensors.get(name)!.dtype.toLowerCase());
  return SHORT_NAMES[byName.find((dtype) => Object.hasOwn(SHORT_NAMES, dtype)) ?? "f32"]!;
}

/** Every wanted name is one that some step writes. */
function checkWant(want: string[], steps: Config[]): void {
  const offered = steps.flatMap((step) => STEPS[step.do as string]!.writes?.(step) ?? []);
  for (const name of want) {
    if (!offered.includes(name)) throw new InvalidRequest(`want: expected some of ${offered}, got ${name}`);
  }
}
