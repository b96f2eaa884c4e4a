/**
 * The committed cases of the conformance harness, each through the port's own preparation: a quick local
 * check with a plain tolerance. The harness, with its derived bounds, is the judge.
 */

import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { codeOf } from "../port/errors.ts";
import { prepare } from "../port/ops.ts";
import { readTensors, type Stored } from "../port/safetensors.ts";

const FIXTURES = fileURLToPath(new URL("../../conformance/fixtures/", import.meta.url));

interface Case {
  id: string;
  op: string;
  config: Record<string, unknown>;
  want?: string[];
  error?: string | null;
  steps?: string[];
  native_rtol?: number;
  files: Record<string, { inputs: string; expected?: string | null }>;
}

interface Outcome {
  error: string | null;
  steps: string[] | undefined;
  tensors: ReadonlyMap<string, Stored>;
}

/** Every manifest below the folder of fixtures. */
function manifests(folder: string): string[] {
  if (!existsSync(folder)) return [];
  return readdirSync(folder, { recursive: true, encoding: "utf8" })
    .filter((path) => path.endsWith("manifest.json"))
    .map((path) => join(folder, path));
}

function play({ op, config, want }: Case, inputs: string): Outcome {
  try {
    const call = prepare({ op, config, want }, readTensors(inputs));
    const result = call.evaluate();
    return { error: null, steps: call.steps?.(result), tensors: call.outputs(result) };
  } catch (error) {
    const code = codeOf(error);
    if (code === "internal") throw error;
    return { error: code, steps: undefined, tensors: new Map() };
  }
}

function compare(name: string, got: Stored, want: Stored, rtol: number): void {
  assert.deepEqual(got.shape, want.shape, `${name}: shape`);
  if (want.dtype === "I64") {
    assert.deepEqual(got.data, want.data, name);
    return;
  }
  const expected = want.data as Float64Array;
  const largest = expected.reduce((most, x) => (Number.isFinite(x) ? Math.max(most, Math.abs(x)) : most), 0);
  expected.forEach((x, n) => {
    const y = Number(got.data[n]);
    const same = Object.is(x, y) || Math.abs(x - y) <= rtol * (1 + largest); // not for NaN and infinities
    if (!same) assert.fail(`${name}: element ${n}: got ${y}, want ${x}`);
  });
}

let walked = 0;

for (const manifest of manifests(FIXTURES)) {
  const { suite, cases } = JSON.parse(readFileSync(manifest, "utf8")) as { suite: string; cases: Case[] };
  test(`the cases of the suite ${suite}`, async (context) => {
    for (const one of cases) {
      for (const [dtype, { inputs, expected }] of Object.entries(one.files)) {
        const [input, output] = [inputs, expected].map((path) => path && join(dirname(manifest), path));
        if (!["f32", "f64"].includes(dtype) || !existsSync(input!) || (output && !existsSync(output)))
          continue;
        walked++;
        await context.test(`${one.id} ${dtype}`, () => {
          const { error, steps, tensors } = play(one, input!);
          assert.equal(error, one.error ?? null);
          if (one.steps != null) assert.deepEqual(steps, one.steps);
          if (!output) return;
          const answers = readTensors(output);
          assert.deepEqual(new Set(tensors.keys()), new Set(answers.keys()));
          const rtol = dtype === "f64" ? 1e-10 : (one.native_rtol ?? 1e-4);
          for (const [name, want] of answers) compare(name, tensors.get(name)!, want, rtol);
        });
      }
    }
  });
}

test("the committed cases were there", { skip: !existsSync(FIXTURES) && "no fixtures in this copy" }, () => {
  assert.ok(walked > 100, `${walked} cases`);
});
