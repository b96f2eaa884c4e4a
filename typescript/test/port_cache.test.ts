/** Cache scripts through the port as a process: kinds, named caches, files. */

import assert from "node:assert/strict";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { readTensors, writeTensors } from "../port/safetensors.ts";
import { type Answer, type PortClient, startPort } from "./port_client.ts";
import { f32, f64, int64 } from "./stored.ts";

const folder = mkdtempSync(join(tmpdir(), "port-cache-"));
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

const TENSORS = {
  x: f64([1, 1, 2, 1], [1, 3]),
  nan: f64([1, 1, 1, 1], [NaN]),
  zero: f64([1, 1, 1, 1], [0]),
  narrow: f32([1, 1, 2, 1], [1, 3]),
  tokens: int64([1, 2], [7, 8]),
  c: f64([1, 2, 1], [1, 3]),
  none: f64([1, 2, 0], []),
};

const SIZES = { batch: 1, num_kv_heads: 1, head_dim: 1 };
const APPEND = { do: "append", k: "x", v: "x" };
const NEEDED: Record<string, object> = {
  contiguous: SIZES,
  per_head: SIZES,
  rotating: { ...SIZES, window: 2 },
  paged: { ...SIZES, page_size: 2, num_pages: 4 },
  quantised: { ...SIZES, format: "int8" },
  latent: { batch: 1, latent_dim: 1, rope_dim: 0 },
  cross: SIZES,
};

async function play(kind: string, steps: object[], more: object = {}): Promise<Answer> {
  const inputs = join(folder, "in.safetensors");
  writeTensors(inputs, new Map(Object.entries(TENSORS)));
  rmSync(outputs, { force: true });
  const config = { kind, ...NEEDED[kind], ...more, steps };
  return port.ask({ cmd: "run", op: "kv_cache", config, inputs, outputs });
}

function written(): Record<string, number[]> {
  return Object.fromEntries(
    [...readTensors(outputs)].map(([name, { data }]) => [name, Array.from(data, Number)]),
  );
}

test("every kind, and the steps that it does not know", async () => {
  const lacking: Record<string, string[]> = {
    ...{ rotating: ["evict", "shift"], paged: ["evict", "shift"], latent: ["evict", "shift"] },
    cross: ["truncate", "append_attend", "evict", "shift"],
    per_head: ["truncate"],
  };
  for (const kind of Object.keys(NEEDED)) {
    const append = kind === "latent" ? { do: "append", latent: "c", rope_key: "none" } : APPEND;
    const answer = await play(kind, [append, { do: "attend", q: "zero", out: "y" }]);
    assert.deepEqual(answer.steps, ["ok", "ok"], JSON.stringify(answer));
    assert.deepEqual(written(), { y: [2] });
    for (const step of lacking[kind] ?? []) {
      const refused = await play(kind, [append, { do: step }]);
      assert.deepEqual(refused, { status: "unsupported", feature: `step.${step}` });
    }
    for (const name of Object.keys(NEEDED[kind]!)) {
      assert.equal((await play(kind, [], { [name]: null })).code, "invalid_request", name);
    }
  }
  assert.equal((await play("tree", [])).feature, "kind.tree");
  assert.equal((await play("toString", [])).feature, "kind.toString");
  const bad = [
    ["rotating", { window: 0 }],
    ["rotating", { keep: -1 }],
    ["paged", { page_size: 0 }],
    ["quantised", { format: "int9" }],
    ["quantised", { group: 0 }],
    ["quantised", { format: "f16", zero_point: true }],
    ["latent", { rope_dim: -1 }],
    ["contiguous", { rope: 5 }],
    ["contiguous", { rope_at: "attend" }],
    ["contiguous", { track: 1 }],
    ["per_head", { track: "true" }],
    ["quantised", { key_groups: 0 }],
    ["quantised", { key_groups: 2, format: "f16" }],
  ] as const;
  for (const [kind, config] of bad) assert.equal((await play(kind, [], config)).code, "invalid_config");
});

test("a policy instead of positions", async () => {
  const evict = (policy: unknown, more: object = {}) => ({ do: "evict", policy, ...more });
  const answer = await play(
    "contiguous",
    [
      APPEND,
      { do: "attend", q: "zero", out: "y" },
      evict({ type: "window", budget: 1 }, { positions: [0] }),
      evict(null),
      evict(5),
      evict([]),
      evict({ type: "window" }),
      evict({ budget: 1 }),
      evict({ type: 5, budget: 1 }),
      evict({ type: "snapkv", budget: 1 }),
      evict({ type: "snapkv", budget: 1, q: "missing" }),
      evict({ type: "snapkv", budget: 1, q: "narrow" }),
      evict({ type: "window", budget: [1] }),
      evict({ type: "window", budget: 1e300, sinks: 1e300 }),
      evict({ type: "key_norm", budget: 1 }),
      { do: "read", out: "r", tracked: true },
      evict({ type: "snapkv", budget: 0, q: "zero" }),
      { do: "read", out: "s" },
    ],
    { track: true },
  );
  assert.deepEqual(answer.steps, [
    ...["ok", "ok", "invalid_config", "invalid_request", "invalid_config", "invalid_config"],
    ...["invalid_request", "invalid_request", "invalid_config", "invalid_request", "invalid_request"],
    ...["dtype_mismatch", "invalid_config", "ok", "ok", "ok", "ok", "ok"],
  ]);
  const tensors = written();
  assert.deepEqual([tensors["r.k"], tensors["r.tracked"], tensors["s.lengths"]], [[1], [0.5], [0]]);
  const refused = await play("contiguous", [APPEND, evict({ type: "random", budget: 1 })]);
  assert.deepEqual(refused, { status: "unsupported", feature: "policy.random" });
  const untracked = await play("contiguous", [APPEND, { do: "read", out: "r", tracked: true }]);
  assert.deepEqual(untracked.steps, ["ok", "invalid_config"]);
  for (const flag of ["codes", "positions", "tracked"]) {
    const answer = await play("contiguous", [{ do: "read", out: "r", [flag]: 1 }], { track: true });
    assert.deepEqual(answer.steps, ["invalid_config"], flag);
  }
});

test("slots of every head, and keys in groups", async () => {
  const heads = await play("per_head", [
    APPEND,
    { do: "evict", policy: { type: "window", budget: [1] } },
    { do: "read", out: "r", positions: true },
    { do: "stats", out: "s" },
    { do: "save", file: "heads" },
    { do: "reset" },
    { do: "load", file: "heads" },
    { do: "attend", q: "zero", out: "y" },
  ]);
  assert.deepEqual(heads.steps, new Array(8).fill("ok"));
  const tensors = readTensors(outputs);
  const shapes = ["r.lengths", "r.positions", "s.positions", "r.k"].map((name) => tensors.get(name)!.shape);
  assert.deepEqual(shapes, [
    [1, 1],
    [1, 1, 1],
    [1, 1],
    [1, 1, 1, 1],
  ]);
  assert.deepEqual([written().y, written()["r.positions"]], [[3], [1]]);
  const groups = await play(
    "quantised",
    [APPEND, { ...APPEND, k: "zero", v: "zero" }, { do: "read", out: "r", codes: true }],
    { key_groups: 2 },
  );
  assert.deepEqual(groups.steps, ["ok", "ok", "ok"]);
  const { "r.k_codes": codes, "r.k_tail": tail, "r.k_scale": scale } = written();
  assert.deepEqual([codes, tail, scale!.length], [[42, 127, 0], [0], 1]); // 127/3 and 127
});

test("caches have names", async () => {
  const mean = (out: string, cache: unknown = null) => ({ do: "attend", q: "zero", out, cache });
  const answer = await play("paged", [
    { ...APPEND, tokens: "tokens" },
    { do: "fork", into: "b" },
    { do: "fork", into: "b" },
    { do: "fork", into: "main" },
    { do: "fork" },
    { ...APPEND, k: "zero", v: "zero", cache: "b" },
    { ...APPEND, tokens: "x" },
    mean("a", "main"),
    mean("b", "b"),
    mean("c", "c"),
    mean("c", 5),
    { do: "stats", out: "s" },
    { do: "drop" },
    mean("d"),
    { do: "stats", out: "t", cache: "b" },
  ]);
  assert.deepEqual(answer.steps, [
    ...[
      "ok",
      "ok",
      "invalid_config",
      "invalid_config",
      "invalid_request",
      "ok",
      "dtype_mismatch",
      "ok",
      "ok",
    ],
    ...["invalid_config", "invalid_config", "ok", "ok", "invalid_config", "ok"],
  ]);
  const { a, b, ...stats } = written();
  assert.deepEqual([a, b!.map((x) => Math.fround(x))], [[2], [Math.fround(4 / 3)]]);
  assert.deepEqual(stats, {
    ...{ "s.positions": [2], "s.bytes": [64], "s.pages": [2, 1, 2] },
    ...{ "t.positions": [3], "t.bytes": [64], "t.pages": [2, 0, 2] },
  });
});

test("what a read writes, and an append that failed with its attend", async () => {
  const steps = [
    { ...APPEND, do: "append_attend", q: "zero", out: "y" },
    { ...APPEND, do: "append_attend", q: "x", out: "z", softcap: 0 },
    { do: "append", k: "nan", v: "zero" },
    { do: "evict", positions: [0] },
    { do: "shift", by: -1, from: 1 },
    { do: "evict" },
    { do: "shift", by: 1 },
    { do: "reorder", index: [0] },
    { do: "reorder", index: 0 },
    { do: "read", out: "r", codes: true, positions: true },
  ];
  const answer = await play("quantised", steps, { zero_point: true });
  assert.deepEqual(answer.steps, [
    ...["ok", "invalid_config", "invalid_config", "ok", "ok"],
    ...["invalid_request", "invalid_request", "ok", "invalid_request", "ok"],
  ]);
  assert.deepEqual(written(), {
    ...{ y: [2], "r.k": [3], "r.v": [3], "r.lengths": [1], "r.positions": [0] },
    ...{ "r.k_codes": [0], "r.k_scale": [0], "r.k_zero": [3] },
    ...{ "r.v_codes": [0], "r.v_scale": [0], "r.v_zero": [3] },
  });
  const dtypes = [...readTensors(outputs)].map(([name, { dtype }]) => `${name} ${dtype}`);
  for (const one of ["r.k F64", "r.k_codes U8", "r.v_scale F32", "r.positions I64"]) {
    assert.ok(dtypes.includes(one), one);
  }
  const plain = await play("contiguous", [{ do: "read", out: "r", codes: true }]);
  assert.deepEqual(plain.steps, ["invalid_config"]);
});

test("files are beside the outputs; what has no type takes that of the file", async () => {
  writeFileSync(join(folder, "damaged"), "no tensors");
  const saved = await play("contiguous", [
    APPEND,
    { do: "save", file: "a.cache" },
    { do: "save", file: join(folder, "b.cache") },
    { do: "save" },
    { do: "save", file: "absent/c.cache" },
    { do: "load", file: "damaged" },
    { do: "load", file: "absent" },
    { do: "reset" },
    { do: "load", file: "a.cache" },
    { do: "attend", q: "zero", out: "y" },
  ]);
  const failed = "invalid_request";
  assert.deepEqual(saved.steps, ["ok", "ok", "ok", failed, failed, failed, failed, "ok", "ok", "ok"]);
  assert.deepEqual(written(), { y: [2] });
  assert.ok(existsSync(join(folder, "a.cache")));

  const narrow = { do: "append", k: "narrow", v: "narrow" };
  const typed = await play("contiguous", [
    { do: "fork", into: "b" },
    narrow,
    { do: "load", file: "b.cache" },
  ]);
  assert.deepEqual(typed.steps, ["ok", "ok", "dtype_mismatch"]);
  const loaded = await play("contiguous", [
    { do: "append", k: "narrow", v: "x" },
    { do: "fork", into: "b" },
    { do: "load", file: "b.cache", cache: "b" },
    { do: "read", out: "main" },
    { do: "read", out: "b", cache: "b" },
    narrow,
  ]);
  assert.deepEqual(loaded.steps, ["dtype_mismatch", "ok", "ok", "ok", "ok", "dtype_mismatch"]);
  assert.equal(readTensors(outputs).get("main.k")!.dtype, "F64");
  assert.deepEqual(written()["main.lengths"], [0]);
  assert.deepEqual(written()["b.k"], [1, 3]);
  assert.deepEqual((await play("cross", [{ do: "load", file: "a.cache" }])).steps, ["invalid_config"]);
});
