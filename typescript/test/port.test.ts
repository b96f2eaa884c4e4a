/** The port as a process, held against docs/protocol.md. */

import assert from "node:assert/strict";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { readTensors, type Stored, writeTensors } from "../port/safetensors.ts";
import { assertClose } from "./helpers.ts";
import { PortClient, startPort } from "./port_client.ts";
import { f32, f64, int64 } from "./stored.ts";

const folder = mkdtempSync(join(tmpdir(), "port-"));
const outputs = join(folder, "out.safetensors");
let port: PortClient;

before(async () => {
  port = await startPort();
});
after(async () => {
  port.end();
  assert.equal(await port.exited, 0);
  rmSync(folder, { recursive: true });
});

/** An inputs file; the name is that of the case. */
function inputs(name: string, tensors: Record<string, Stored>): string {
  const path = join(folder, `${name}.safetensors`);
  writeTensors(path, new Map(Object.entries(tensors)));
  return path;
}

/** Score form: weights 1/3 and 2/3, output 5. */
const small = {
  q: f64([1, 1, 1, 1], [1]),
  k: f64([1, 1, 2, 1], [0, Math.LN2]),
  v: f64([1, 1, 2, 1], [3, 6]),
};

async function run(
  op: string,
  tensors: Record<string, Stored>,
  more: object = {},
): Promise<Record<string, unknown>> {
  rmSync(outputs, { force: true });
  const answer = await port.ask({ cmd: "run", op, inputs: inputs("run", tensors), outputs, ...more });
  assert.equal(existsSync(outputs), answer.status === "ok", JSON.stringify(answer));
  return answer;
}

function written(name: string): ArrayLike<number> {
  return readTensors(outputs).get(name)!.data as Float64Array;
}

test("start describes the port; a second start is fine; threads are what is in force", async () => {
  const answer = await port.ask({ cmd: "start", protocol: 1, threads: 2, unknown: true, seq: 1 });
  assert.deepEqual(
    [answer.status, answer.protocol, answer.name, answer.threads, answer.seq],
    ["ok", 1, "typescript", 2, 1],
  );
  const ops = answer.ops as Record<string, { variants: string[]; dtypes: string[]; features: string[] }>;
  assert.equal(Object.keys(ops).length, 25);
  for (const { dtypes } of Object.values(ops)) assert.deepEqual(dtypes, ["f32", "f64", "f16", "bf16"]);
});

test("run and bench want a start first", async () => {
  const fresh = new PortClient();
  for (const cmd of ["run", "bench"]) {
    const answer = await fresh.ask({ cmd, seq: 4, op: "sdpa", inputs: "/nowhere", outputs });
    assert.deepEqual([answer.status, answer.code, answer.seq], ["error", "invalid_request", 4]);
  }
  for (const start of [
    { cmd: "start" },
    { cmd: "start", protocol: 2 },
    { cmd: "start", protocol: 1, threads: 0 },
    { cmd: "start", protocol: 1, threads: 1.5 },
  ]) {
    assert.equal((await fresh.ask(start)).code, "invalid_request");
  }
  assert.equal((await fresh.ask({ cmd: "start", protocol: 1, threads: null })).status, "ok");
  assert.deepEqual(await fresh.ask({ cmd: "stop" }), { status: "ok" });
  assert.equal(await fresh.exited, 0);
});

test("what is no request is answered, and the process goes on", async () => {
  for (const line of ["no JSON", "{", "", "3", "null", "[]", '"run"', '{"cmd":NaN}', "\u0000"]) {
    port.send(`${line}\n`);
    const answer = await port.receive();
    assert.deepEqual([answer!.status, answer!.code], ["error", "invalid_request"], line);
    assert.equal("seq" in answer!, false);
  }
  for (const bytes of [[0xff], [0xef, 0xbb, 0xbf, 0x7b, 0x7d]]) {
    port.send(Uint8Array.from([...bytes, 0x0a])); // no UTF-8; a byte order mark
    assert.equal((await port.receive())!.code, "invalid_request");
  }
  assert.deepEqual((await port.ask({ cmd: "jump", seq: "a" })).seq, "a");
  assert.equal((await port.ask({ seq: 0 })).seq, 0);
  assert.equal((await port.ask({ cmd: "toString" })).code, "invalid_request");
  assert.equal((await run("sdpa", small)).status, "ok");
});

test("lines in pieces, several in one piece, and one without a line break at the end", async () => {
  const fresh = await startPort();
  const bytes = Buffer.from('{"cmd":"ö","seq":"ö"}\n{"cmd":"x","seq":2}\n{"cmd":"stop","seq":3}');
  for (let at = 0; at < 12; at++) {
    fresh.send(bytes.subarray(at, at + 1)); // also between the two bytes of the first ö
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
  fresh.send(bytes.subarray(12));
  fresh.end();
  assert.equal((await fresh.receive())!.seq, "ö");
  assert.equal((await fresh.receive())!.seq, 2);
  assert.deepEqual(await fresh.receive(), { seq: 3, status: "ok" });
  assert.equal(await fresh.exited, 0);
});

test("seq comes back digit by digit", async () => {
  const fresh = new PortClient();
  const printed: Buffer[] = [];
  fresh.process.stdout.on("data", (chunk) => printed.push(chunk));
  fresh.send('{"seq":9007199254740993,"config":{"seq":1e999}}\n{"seq":1e999}\n{"seq":1.5}\n');
  fresh.end();
  await fresh.exited;
  const lines = Buffer.concat(printed).toString().trim().split("\n");
  assert.match(lines[0]!, /"seq":9007199254740993,/);
  assert.doesNotMatch(lines[1]!, /"seq"/);
  assert.match(lines[2]!, /"seq":1.5,/);
});

test("end of input means stop", async () => {
  const fresh = await startPort();
  fresh.end();
  assert.equal(await fresh.receive(), null);
  assert.equal(await fresh.exited, 0);
});

test("long lines and many requests at once come out in order", async () => {
  const filler = "x".repeat(300_000);
  for (let seq = 0; seq < 200; seq++)
    port.send(`${JSON.stringify({ cmd: seq % 50 === 0 ? filler : "x", seq })}\n`);
  for (let seq = 0; seq < 200; seq++) assert.equal((await port.receive())!.seq, seq);
});

test("sdpa writes exactly what is wanted", async () => {
  assert.deepEqual(await run("sdpa", small, { seq: 9 }), { seq: 9, status: "ok" });
  assert.deepEqual([...readTensors(outputs).keys()], ["output"]);
  assertClose(written("output"), [5], 1e-15);
  const want = ["lse", "weights", "scores", "capped", "biased", "output"];
  await run("sdpa", small, { want, config: { softcap: null, scale: 1 }, variant: "naive" });
  assert.deepEqual(new Set(readTensors(outputs).keys()), new Set(want));
  assertClose(written("weights"), [1 / 3, 2 / 3], 1e-15);
  assert.deepEqual(readTensors(outputs).get("lse")!.shape, [1, 1, 1]);
});

test("sdpa reads every option, and the dtype of the tensors is that of the result", async () => {
  const tensors = {
    q: f32([1, 2, 1, 1], [1, 1]),
    k: f32([1, 1, 4, 1], [0, Math.LN2, NaN, NaN]),
    v: f32([1, 1, 4, 1], [3, 6, NaN, NaN]),
    mask: { dtype: "BOOL", shape: [4], data: Uint8Array.of(1, 1, 1, 0) },
    bias: f32([2, 1, 1], [0, 0]),
    kv_lengths: int64([1], [3]),
    q_offset: int64([1], [1]),
    sinks: f32([2], [-Infinity, 0]),
  };
  const config = { causal: true, window: [1, null], scale: 1, softcap: 1e6 };
  assert.equal((await run("sdpa", tensors, { config, want: ["output", "lse"] })).status, "ok");
  assert.equal(readTensors(outputs).get("output")!.dtype, "F32");
  assertClose(written("output"), [5, 3.75], 1e-5);
});

test("softmax and mha", async () => {
  await run("softmax", { x: f64([2], [0, Math.LN2]) }, { want: ["output", "lse"] });
  assertClose(written("output"), [1 / 3, 2 / 3], 1e-15);
  assert.deepEqual(readTensors(outputs).get("lse")!.shape, []);
  const eye = f64([2, 2], [1, 0, 0, 1]);
  const tensors = {
    x: f64([1, 1, 2], [1, 2]),
    w_q: eye,
    w_k: eye,
    w_v: eye,
    w_o: eye,
    b_o: f64([2], [0.5, 0]),
  };
  await run("mha", tensors, { config: { num_heads: 2, num_kv_heads: null }, want: ["output", "weights"] });
  assertClose(written("output"), [1.5, 2], 0);
  assert.deepEqual(readTensors(outputs).get("weights")!.shape, [1, 2, 1, 1]);
  const context = f64([1, 1, 2], [7, 9]);
  await run("mha", { ...tensors, context }, { config: { num_heads: 1 } });
  assertClose(written("output"), [7.5, 9], 0);
});

test("a cache script goes on after a failed step and tells the code of each", async () => {
  const ones = f64([1, 1, 2, 1], [1, 2]);
  const q = f64([1, 1, 1, 1], [0]);
  const config = {
    ...{ kind: "contiguous", batch: 1, num_kv_heads: 1, head_dim: 1, capacity: 3 },
    steps: [
      { do: "append", k: "ones", v: "ones" },
      { do: "append", k: "ones", v: "ones" },
      { do: "append", k: "ones", v: "ones", lengths: "one" },
      { do: "attend", q: "q", out: "a", lse: "a_lse", causal: true },
      { do: "truncate", lengths: [4] },
      { do: "truncate", lengths: [2] },
      { do: "attend", q: "q", out: "b", q_offset: "zero", causal: true },
      { do: "attend", q: "q", out: "c", q_offset: 0, window: [0, 0] },
      { do: "attend", q: "absent", out: "d" },
      { do: "append", k: "ones" },
      { do: "attend", q: "q", out: "e", softcap: 0 },
      { do: "attend", q: "q", out: "e", lse: 5 },
      { do: "read", out: "r" },
      { do: "reset" },
      { do: "attend", q: "q", out: "f" },
    ],
  };
  const tensors = { ones, q, one: int64([1], [1]), zero: int64([1], [0]) };
  const answer = await run("kv_cache", tensors, { config });
  assert.deepEqual(answer.steps, [
    ...["ok", "capacity_exceeded", "ok", "ok", "invalid_config", "ok", "ok", "ok"],
    ...["invalid_request", "invalid_request", "invalid_config", "invalid_request", "ok", "ok", "ok"],
  ]);
  const names = ["a", "a_lse", "b", "c", "r.k", "r.v", "r.lengths", "f"];
  assert.deepEqual(new Set(readTensors(outputs).keys()), new Set(names));
  assertClose(written("a"), [4 / 3], 1e-15);
  assertClose(written("b"), [1], 0);
  assertClose(written("f"), [0], 0);
  assertClose(written("r.k"), [1, 2], 0);
  assert.deepEqual(readTensors(outputs).get("r.lengths"), int64([1], [2]));
  await run("kv_cache", tensors, { config, want: ["r.lengths", "d"] });
  assert.deepEqual([...readTensors(outputs).keys()], ["r.lengths"]);
});

test("unsupported names the feature", async () => {
  const cache = { batch: 1, num_kv_heads: 1, head_dim: 1, steps: [] as object[] };
  const tiny = { dtype: "F8_E4M3", shape: [1, 1, 2, 1], data: new Uint8Array(2) };
  const cases: [string, string, Record<string, Stored>, object][] = [
    ["op.paged", "paged", small, {}],
    ["op.toString", "toString", small, {}],
    ["variant.simd", "sdpa", small, { variant: "simd" }],
    ["want.weights", "sdpa", small, { variant: "flash", want: ["output", "weights"] }],
    ["cast.f8", "cast", { x: small.q }, { config: { to: "f8" } }],
    ["dtype.f8_e4m3", "sdpa", { ...small, k: tiny }, {}],
    ["dtype.f8_e5m2", "softmax", { x: { ...tiny, dtype: "F8_E5M2" } }, {}],
    ["kind.tree", "kv_cache", small, { config: { ...cache, kind: "tree" } }],
    ["step.jump", "kv_cache", small, { config: { ...cache, steps: [{ do: "jump" }] } }],
    [
      "dtype.f8_e4m3",
      "kv_cache",
      { h: tiny },
      { config: { ...cache, steps: [{ do: "append", k: "h", v: "h" }] } },
    ],
  ];
  for (const [feature, op, tensors, more] of cases) {
    assert.deepEqual(await run(op, tensors, { ...more, seq: 1 }), { seq: 1, status: "unsupported", feature });
  }
  assert.equal((await run("sdpa", { ...small, unused: tiny })).status, "ok");
});

test("each code", async () => {
  const cache = { batch: 1, num_kv_heads: 1, head_dim: 1, steps: [] };
  const eye = f64([1, 1], [1]);
  const mha = { x: f64([1, 1, 1], [1]), w_q: eye, w_k: eye, w_v: eye, w_o: eye };
  const cases: [string, string, Record<string, Stored>, object][] = [
    ["invalid_request", "sdpa", { q: small.q, k: small.k }, {}],
    ["invalid_request", "sdpa", small, { op: 5 }],
    ["invalid_request", "sdpa", small, { variant: 5 }],
    ["invalid_request", "sdpa", small, { want: ["gradient"] }],
    ["invalid_request", "sdpa", small, { want: "output" }],
    ["invalid_request", "sdpa", small, { config: [] }],
    ["invalid_request", "softmax", small, {}],
    ["invalid_request", "mha", mha, {}],
    ["invalid_request", "kv_cache", small, { config: { ...cache, steps: undefined } }],
    ["invalid_request", "kv_cache", small, { config: { ...cache, batch: null } }],
    ["invalid_request", "kv_cache", small, { config: cache, want: ["x"] }],
    ["invalid_request", "sdpa", small, { inputs: join(folder, "absent") }],
    ["invalid_request", "sdpa", small, { outputs: 3 }],
    ["shape_mismatch", "sdpa", { ...small, k: f64([1, 1, 2, 2], [1, 2, 3, 4]) }, {}],
    ["shape_mismatch", "sdpa", { ...small, kv_lengths: int64([2], [1, 1]) }, {}],
    ["dtype_mismatch", "sdpa", { ...small, k: f32([1, 1, 2, 1], [1, 2]) }, {}],
    ["dtype_mismatch", "sdpa", { ...small, mask: f64([2], [1, 1]) }, {}],
    [
      "dtype_mismatch",
      "sdpa",
      { ...small, mask: { dtype: "U8", shape: [2], data: Uint8Array.of(1, 1) } },
      {},
    ],
    [
      "dtype_mismatch",
      "sdpa",
      { ...small, kv_lengths: { dtype: "I32", shape: [1], data: new Uint8Array(4) } },
      {},
    ],
    ["invalid_config", "sdpa", { ...small, q_offset: int64([1], [0]) }, { config: { q_offset: 0 } }],
    ["invalid_config", "sdpa", { ...small, kv_lengths: int64([1], [3]) }, {}],
    ["invalid_config", "mha", mha, { config: { num_heads: 1, num_kv_heads: 2 } }],
    ["invalid_config", "kv_cache", small, { config: { ...cache, batch: -1 } }],
    ["invalid_config", "kv_cache", small, { config: { ...cache, capacity: "9" } }],
  ];
  const wrong = { causal: 1, softcap: "x", scale: true, window: 3, q_offset: [0] };
  for (const [name, value] of Object.entries(wrong)) {
    cases.push(["invalid_config", "sdpa", small, { config: { [name]: value } }]);
  }
  for (const [code, op, tensors, more] of cases) {
    const answer = await run(op, tensors, more);
    assert.deepEqual([answer.status, answer.code], ["error", code], JSON.stringify({ answer, more }));
    assert.match(answer.message as string, /expected .+, got .+/);
  }
});

test("outputs that cannot be written leave nothing", async () => {
  const answer = await port.ask({ cmd: "run", op: "sdpa", inputs: inputs("run", small), outputs: folder });
  assert.equal(answer.code, "invalid_request");
  assert.equal(existsSync(`${folder}.${port.process.pid}.unfinished`), false);
});

test("a failed run leaves an older file of outputs alone", async () => {
  await run("sdpa", small);
  const answer = await port.ask({ cmd: "run", op: "sdpa", inputs: join(folder, "absent"), outputs });
  assert.equal(answer.status, "error");
  assertClose(written("output"), [5], 1e-15);
});

test("bench times the call, keeps its case, and writes the last result", async () => {
  const path = inputs("bench", small);
  const request = {
    cmd: "bench",
    op: "sdpa",
    case: "a",
    inputs: path,
    warmup: 2,
    samples: 4,
    min_sample_ns: 200_000,
  };
  for (let round = 0; round < 2; round++) {
    const answer = await port.ask({ ...request, seq: round, outputs: round === 0 ? undefined : outputs });
    assert.deepEqual([answer.status, answer.seq], ["ok", round]);
    const samples = answer.samples_ns as number[];
    assert.equal(samples.length, 4);
    assert.ok((answer.first_ns as number) > 0);
    for (const sample of samples) assert.ok(sample * (answer.evals as number) >= 199_999);
    assert.ok(Number.isFinite(answer.cpu_ns) && (answer.cpu_ns as number) >= 0);
    assert.ok((answer.peak_bytes as number) > 2 ** 20);
    rmSync(path, { force: true }); // what is kept is not read again
  }
  assertClose(written("output"), [5], 1e-15);
  assert.equal((await port.ask({ ...request, case: "b" })).code, "invalid_request");
  const cache = {
    batch: 1,
    num_kv_heads: 1,
    head_dim: 1,
    capacity: 2,
    steps: [{ do: "append", k: "k", v: "v" }],
  };
  const script = await port.ask({
    ...request,
    op: "kv_cache",
    config: cache,
    inputs: inputs("bench", small),
    outputs,
  });
  assert.deepEqual(
    [script.status, script.steps],
    ["ok", ["ok"]],
    "each evaluation begins with a fresh cache",
  );
  assert.equal((await port.ask({ ...request, samples: 0 })).code, "invalid_request");
});
