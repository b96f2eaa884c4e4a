// Runs ONNX models in onnxruntime-web, compiled to WebAssembly, for the peer's port (../onnxruntime/engine.py): a line of
// JSON names a model, a file of inputs and a file for the outputs; the answer is a line that says how it went.

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import * as ort from "onnxruntime-web/wasm";
import { readTensors, writeTensors } from "../node/safetensors.js";
import { timeCall } from "../node/timing.js";

// What onnxruntime-web and a safetensors file call an element type.
const TYPES = { F64: "float64", F32: "float32", F16: "float16", I64: "int64", BOOL: "bool" };
const NAMES = Object.fromEntries(Object.entries(TYPES).map(([name, type]) => [type, name]));

ort.env.wasm.numThreads = 1;
ort.env.logLevel = "fatal";
console.log = console.error; // stdout is for answers

/** The outputs of a model, written to a file; with a plan also how long it takes. */
async function run({ model, inputs, outputs, plan }) {
  const session = await ort.InferenceSession.create(readFileSync(model), {
    executionProviders: ["wasm"],
    logSeverityLevel: 4,
  });
  try {
    const feeds = {};
    for (const [name, { dtype, shape, data }] of readTensors(inputs)) {
      const bits = dtype === "F16" ? new Float16Array(data.buffer) : data;
      feeds[name] = new ort.Tensor(TYPES[dtype], bits, shape);
    }
    const { timing, last } =
      plan === undefined
        ? { last: await session.run(feeds) }
        : await timeCall(() => session.run(feeds), plan);
    const written = Object.entries(last).map(([name, { type, dims, data }]) => [
      name,
      { dtype: NAMES[type], shape: [...dims], data },
    ]);
    writeTensors(outputs, Object.fromEntries(written));
    return timing === undefined ? {} : { timing };
  } finally {
    await session.release();
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  let answer = { version: ort.env.versions.web, node: process.version };
  try {
    const request = JSON.parse(line);
    if (request.model !== undefined) answer = { ...answer, ...(await run(request)) };
  } catch (error) {
    answer = { error: `${error?.message ?? error}` };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
