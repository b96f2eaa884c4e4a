/**
 * The committed cases of the conformance harness, each through the port's own preparation: a quick local
 * check with a plain tolerance. The harness, with its derived bounds, is the judge.
 */

import assert from "node:assert/strict";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";
import { codeOf } from "../port/errors.ts";
import { OPS, type OpRequest, prepare } from "../port/ops.ts";
import { readTensors, type Stored, type Tensors } from "../port/safetensors.ts";
import { cast, type FloatArray, type FloatDtype, type Tensor, Unsupported, widen } from "../src/index.ts";
import { dtypeOf } from "../src/tensor.ts";

const FIXTURES = fileURLToPath(new URL("../../conformance/fixtures/", import.meta.url));

/** Where scripts save their caches. */
const folder = mkdtempSync(join(tmpdir(), "fixtures-"));
after(() => rmSync(folder, { recursive: true }));

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

/** The plain tolerance of each type; half types are those of one rounding at the end. */
const RTOL: Readonly<Record<string, number>> = { f64: 1e-7, f32: 1e-4, f16: 1e-3, bf16: 8e-3 };

function play({ op, config, want }: Case, variant: string, tensors: Tensors): Outcome {
  try {
    const call = prepareWhatItHas({ op, config, variant, want, outputs: join(folder, "out") }, tensors);
    const result = call.evaluate();
    return { error: null, steps: call.steps?.(result), tensors: call.outputs(result) };
  } catch (error) {
    const code = codeOf(error);
    if (code === "internal") throw error;
    return { error: code, steps: undefined, tensors: new Map() };
  }
}

/** A variant that lacks an output is asked for the others. */
function prepareWhatItHas(
  request: { want?: string[] } & OpRequest,
  tensors: Tensors,
): ReturnType<typeof prepare> {
  try {
    return prepare(request, tensors);
  } catch (error) {
    const missing = error instanceof Unsupported ? /^want\.(.*)/.exec(error.feature)?.[1] : undefined;
    if (missing === undefined) throw error;
    return prepareWhatItHas({ ...request, want: request.want!.filter((name) => name !== missing) }, tensors);
  }
}

function compare(name: string, got: Stored, want: Stored, rtol: number): void {
  assert.deepEqual(got.shape, want.shape, `${name}: shape`);
  if (!want.dtype.includes("F")) {
    assert.deepEqual(got.data, want.data, name);
    return;
  }
  const results = widen(got as Tensor<FloatArray>).data;
  const rounded = cast(want as Tensor<FloatArray>, dtypeOf(got) as FloatDtype); // perhaps infinite
  const expected = widen(rounded).data;
  let largest = 0;
  for (const x of expected) if (Number.isFinite(x)) largest = Math.max(largest, Math.abs(x));
  for (const [n, x] of expected.entries()) {
    const y = results[n]!;
    const same = Object.is(x, y) || Math.abs(x - y) <= rtol * (1 + largest); // not for NaN and infinities
    if (!same) assert.fail(`${name}: element ${n}: got ${y}, want ${x}`);
  }
}

/** What a fast rung says no to, though the case is a good one. */
function refuses(variant: string, { dropout }: Record<string, unknown>, dtype: string): boolean {
  const kernels = variant === "wasm" || variant === "threads";
  return (dropout != null && (kernels || variant === "blocked")) || (kernels && dtype !== "f32");
}

let walked = 0;

for (const manifest of manifests(FIXTURES)) {
  const { suite, cases } = JSON.parse(readFileSync(manifest, "utf8")) as { suite: string; cases: Case[] };
  test(`the cases of the suite ${suite}`, async (context) => {
    for (const one of cases) {
      for (const [dtype, { inputs, expected }] of Object.entries(one.files)) {
        const [input, output] = [inputs, expected].map((path) => path && join(dirname(manifest), path));
        if (!existsSync(input!) || (output && !existsSync(output))) continue;
        for (const variant of OPS[one.op]!.variants) {
          walked++;
          await context.test(`${one.id} ${dtype} ${variant}`, () => {
            const { error, steps, tensors } = play(one, variant, readTensors(input!));
            assert.equal(error, one.error ?? (refuses(variant, one.config, dtype) ? "unsupported" : null));
            if (error === "unsupported") return;
            if (one.steps != null) assert.deepEqual(steps, one.steps);
            if (!output) return;
            const answers = readTensors(output);
            if (variant === OPS[one.op]!.variants[0]) {
              assert.deepEqual(new Set(tensors.keys()), new Set(answers.keys()));
            }
            const rtol = Math.max(RTOL[dtype]!, one.native_rtol ?? 0);
            for (const [name, got] of tensors) compare(name, got, answers.get(name)!, rtol);
          });
        }
      }
    }
  });
}

test("the committed cases were there", { skip: !existsSync(FIXTURES) && "no fixtures in this copy" }, () => {
  assert.ok(walked > 100, `${walked} cases`);
});
