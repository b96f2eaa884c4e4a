// TensorFlow.js as a peer: the protocol of docs/protocol.md around its plain JavaScript backend.

import { createInterface } from "node:readline";
import "@tensorflow/tfjs-backend-cpu";
import * as tf from "@tensorflow/tfjs-core";
import { readTensors, writeTensors } from "../node/safetensors.js";
import { timeCall } from "../node/timing.js";
import { sdpa, softmax } from "./attention.js";

const CONDITIONS = "causal window q_offset q_offset_tensor kv_lengths mask bias";
const OTHERS = "scale softcap gqa value_dim scores capped biased weights lse";
const OPS = {
  softmax: { answer: softmax, inputs: ["x"], features: ["lse"] },
  sdpa: {
    answer: sdpa,
    inputs: ["q", "k", "v"],
    features: `${CONDITIONS} ${OTHERS}`.split(" "),
  },
};

class Unsupported extends Error {}
class InvalidRequest extends Error {}

function start() {
  const ops = Object.entries(OPS).map(([name, { features }]) => [
    name,
    { variants: ["cpu"], dtypes: ["f32"], features },
  ]);
  return {
    status: "ok",
    protocol: 1,
    name: "tfjs",
    language: "JavaScript",
    version: tf.version_core,
    runtime: `TensorFlow.js ${tf.version_core}, ${tf.getBackend()}, Node ${process.version}`,
    threads: 1,
    ops: Object.fromEntries(ops),
  };
}

/** One question, answered into the file of outputs; `bench` also says how long the answer takes. */
async function run({ cmd, op: name, config, inputs, outputs, want, ...plan }) {
  const op = OPS[name];
  if (op === undefined) throw new Unsupported(`op.${name}`);
  let stored;
  try {
    stored = readTensors(inputs);
  } catch (error) {
    throw new InvalidRequest(`inputs: expected a safetensors file, got ${error.message}`);
  }
  for (const input of op.inputs) {
    const names = [...stored.keys()];
    if (!names.includes(input)) throw new InvalidRequest(`inputs: expected ${op.inputs}, got ${names}`);
  }
  const names = want ?? ["output"];
  const offered = ["output", ...op.features];
  if (names.some((output) => !offered.includes(output))) {
    throw new InvalidRequest(`want: expected some of ${offered}, got ${names}`);
  }
  tf.engine().startScope();
  try {
    const tensors = Object.fromEntries([...stored].map(([input, tensor]) => [input, toTfjs(input, tensor)]));
    // The backend computes as it is called; what a call made is let go before the next.
    const compute = () => {
      tf.engine().startScope();
      try {
        const found = op.answer(config ?? {}, tensors);
        return Object.fromEntries(names.map((output) => [output, toStored(found[output])]));
      } finally {
        tf.engine().endScope();
      }
    };
    const { timing, last } = cmd === "bench" ? await timeCall(compute, plan) : { last: compute() };
    if (outputs !== undefined) writeTensors(outputs, last);
    return { status: "ok", ...timing };
  } finally {
    tf.engine().endScope();
  }
}

/** TensorFlow.js has float32, int32 and bool. */
function toTfjs(name, { dtype, shape, data }) {
  if (dtype === "F32") return tf.tensor(data, shape, "float32");
  if (dtype === "BOOL") return tf.tensor(data, shape, "bool");
  if (dtype === "I64") return tf.tensor(Int32Array.from(data, Number), shape, "int32");
  throw new Unsupported(`dtype.${dtype.toLowerCase()} of ${name}`);
}

function toStored(tensor) {
  return { dtype: "F32", shape: tensor.shape, data: Float32Array.from(tensor.dataSync()) };
}

/** The answer to one line; never throws. */
async function answer(line) {
  let echo = {};
  try {
    let request;
    try {
      request = JSON.parse(line);
    } catch (error) {
      throw new InvalidRequest(`expected a line of JSON, got ${error.message}`);
    }
    if (typeof request !== "object" || request === null) throw new InvalidRequest("expected a JSON object");
    echo = request.seq === undefined ? {} : { seq: request.seq };
    if (request.cmd === "start") return { ...echo, ...start() };
    if (request.cmd === "run" || request.cmd === "bench") return { ...echo, ...(await run(request)) };
    if (request.cmd === "stop") return { ...echo, status: "ok", stop: true };
    throw new InvalidRequest(`cmd: expected start, run, bench or stop, got ${request.cmd}`);
  } catch (error) {
    if (error instanceof Unsupported) return { ...echo, status: "unsupported", feature: error.message };
    const code = error instanceof InvalidRequest ? "invalid_request" : "internal";
    return { ...echo, status: "error", code, message: `${error?.message ?? error}`.slice(0, 500) };
  }
}

console.log = console.warn = console.error; // stdout is for answers
await tf.setBackend("cpu");
for await (const line of createInterface({ input: process.stdin })) {
  const { stop, ...reply } = await answer(line);
  process.stdout.write(`${JSON.stringify(reply)}\n`);
  if (stop) break;
}
