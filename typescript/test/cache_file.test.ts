import assert from "node:assert/strict";
import { test } from "node:test";
import {
  type Cache,
  dtypeOfFile,
  KVCache,
  loadCache,
  PagedCache,
  QuantisedCache,
  saveCache,
} from "../src/index.ts";
import { formatTensors, type Metadata, parseFile, type Stored } from "../src/safetensors.ts";
import { assertUnchanged, cross, draw, KINDS, latent, ONE, paged, push, SIZES } from "./caches.ts";
import { assertFails, Random } from "./helpers.ts";
import { int64 } from "./stored.ts";

const MESSAGE = /^load: \w+: expected .+, got .+$/;

/** A file of this cache with another description or other tensors. */
function changed(
  cache: Cache,
  { metadata = {}, tensors = {}, drop = [] }: { metadata?: Metadata; tensors?: object; drop?: string[] },
): Uint8Array {
  const file = parseFile(saveCache(cache));
  const described = Object.entries({ ...file.metadata, ...metadata });
  const kept = [...Object.entries({ ...Object.fromEntries(file.tensors), ...tensors })];
  return formatTensors(
    new Map(kept.filter(([name]) => !drop.includes(name)) as [string, Stored][]),
    Object.fromEntries(described.filter(([name]) => !drop.includes(name))),
  );
}

function filled(): KVCache {
  const cache = new KVCache({ ...SIZES, batch: 2 });
  const { k, v } = draw(new Random(100), "float32", 2, 4);
  cache.append(k, v, [4, 2]);
  cache.evict([1]);
  return cache;
}

test("what a file says, and what it holds", () => {
  const { tensors, metadata } = parseFile(saveCache(filled()));
  assert.deepEqual(metadata, {
    ...{ format: "rosetta-kv-cache", version: "1", kind: "contiguous", dtype: "f32", batch: "2" },
    ...{ num_kv_heads: "2", head_dim: "4", value_dim: "3", rope: "false" },
  });
  assert.deepEqual(tensors.get("lengths"), int64([2], [3, 1]));
  assert.deepEqual(tensors.get("next"), int64([2], [4, 2]));
  assert.deepEqual(tensors.get("positions"), int64([2, 3], [0, 2, 3, 0, -1, -1]));
  assert.deepEqual(tensors.get("k")!.shape, [2, 2, 3, 4]);
  assert.equal(dtypeOfFile(saveCache(filled())), "float32");

  const int4 = new QuantisedCache({
    ...SIZES,
    batch: 1,
    format: "int4",
    group: 3,
    zeroPoint: true,
    dtype: "bfloat16",
  });
  const quantised = parseFile(saveCache(int4));
  assert.deepEqual(quantised.metadata, {
    ...{ format: "rosetta-kv-cache", version: "1", kind: "quantised", dtype: "bf16", batch: "1" },
    ...{ num_kv_heads: "2", head_dim: "4", value_dim: "3", rope: "false" },
    ...{ quantised_format: "int4", group: "3", zero_point: "true" },
  });
  assert.equal(quantised.tensors.get("k_codes")!.dtype, "U8");
  const whole = new QuantisedCache({ ...ONE, format: "int8", group: 1 });
  assert.equal(parseFile(saveCache(whole)).metadata.group, undefined);
  assert.equal(parseFile(saveCache(whole)).tensors.get("k_codes")!.dtype, "I8");
  const { metadata: pages } = parseFile(saveCache(paged(2, "float64", 7)));
  assert.deepEqual([pages.page_size, pages.num_pages, pages.dtype], ["3", "7", "f64"]);
});

test("damaged and foreign files are refused, and nothing changes", () => {
  const cache = filled();
  const file = saveCache(cache);
  const bad: Uint8Array[] = [
    new Uint8Array(0),
    new Uint8Array(64),
    file.subarray(0, file.length - 1),
    file.subarray(0, 40),
    formatTensors(new Map()),
    formatTensors(parseFile(file).tensors),
    changed(cache, { metadata: { format: "pt" } }),
    changed(cache, { metadata: { version: "2" } }),
    changed(cache, { metadata: { dtype: "f8" } }),
    changed(cache, { tensors: { extra: int64([1], [1]) } }),
    changed(cache, { tensors: { lengths: int64([2], [4, 1]) } }),
    changed(cache, { tensors: { lengths: int64([2], [-1, 1]) } }),
    changed(cache, { tensors: { lengths: int64([1], [3]) } }),
    changed(cache, { tensors: { next: int64([2], [3, 2]) } }),
    changed(cache, { tensors: { next: int64([2], [4, 0]) } }),
    changed(cache, { tensors: { positions: int64([2, 3], [0, 0, 3, 0, -1, -1]) } }),
    changed(cache, { tensors: { positions: int64([2, 3], [0, 3, 2, 0, -1, -1]) } }),
    changed(cache, { tensors: { positions: int64([2, 3], [-1, 2, 3, 0, -1, -1]) } }),
    changed(cache, { tensors: { positions: int64([2, 3], [0, 2, 3, 0, 1, -1]) } }),
    changed(cache, { tensors: { positions: int64([6], [0, 2, 3, 0, -1, -1]) } }),
    changed(cache, { tensors: { k: int64([2], [0, 2]) } }),
    changed(cache, { tensors: { k: parseFile(file).tensors.get("v") } }),
    ...["format", "kind", "dtype", "batch", "rope", "lengths", "positions", "v"].map((name) =>
      changed(cache, { drop: [name] }),
    ),
  ];
  for (const bytes of bad) {
    assertUnchanged(cache, () => assertFails(() => loadCache(cache, bytes), "invalid_request", MESSAGE));
  }
  for (let cut = 0; cut < file.length; cut += 7) {
    assertFails(() => loadCache(cache, file.subarray(0, cut)), "invalid_request", MESSAGE);
  }
  loadCache(cache, file);
});

test("a kind without gaps refuses a file with some", () => {
  const { k, v } = draw(new Random(101), "float32", 1, 2);
  const c = latent(1, "float32");
  c.append(new Random(1).tensor("float32", [1, 2, 3]), new Random(2).tensor("float32", [1, 2, 2]));
  for (const cache of [paged(1, "float32"), cross(1, "float32"), c]) {
    if (cache !== c) cache.append(k, v);
    const gap = changed(cache, { tensors: { positions: int64([1, 2], [0, 2]), next: int64([1], [3]) } });
    assertUnchanged(cache, () => assertFails(() => loadCache(cache, gap), "invalid_request", MESSAGE));
  }
});

test("another kind, size or config; another type; no room", () => {
  const file = saveCache(filled());
  const others: [string, Cache][] = [
    ["invalid_config", new KVCache({ ...SIZES, batch: 1 })],
    ["invalid_config", new KVCache({ ...SIZES, batch: 2, headDim: 2 })],
    ["invalid_config", new KVCache({ ...SIZES, batch: 2, rope: {} })],
    ["dtype_mismatch", new KVCache({ ...SIZES, batch: 2, dtype: "float64" })],
    ["capacity_exceeded", new KVCache({ ...SIZES, batch: 2, capacity: 2 })],
    ["invalid_config", paged(2, "float32")],
    ["invalid_config", new QuantisedCache({ ...SIZES, batch: 2, format: "f16" })],
  ];
  for (const [code, cache] of others) {
    assertUnchanged(cache, () => assertFails(() => loadCache(cache, file), code, MESSAGE));
  }
  loadCache(new KVCache({ ...SIZES, batch: 2, capacity: 3 }), file);
  for (const make of Object.values(KINDS)) {
    if (make === KINDS.contiguous || make === KINDS.bounded) continue;
    assertFails(() => loadCache(make(2, "float32"), file), "invalid_config", MESSAGE);
  }
});

test("pages are taken anew, from those that are free or given back", () => {
  const { k, v } = draw(new Random(102), "float32", 2, 6);
  const cache = paged(2, "float32", 5);
  cache.append(k, v, [6, 3]);
  const file = saveCache(cache);
  const fork = cache.fork();
  const loads = () => loadCache(cache, file);
  assertUnchanged(cache, () => assertFails(loads, "capacity_exceeded", MESSAGE));
  fork.drop();
  cache.append(k, v, [0, 4]);
  loads();
  assert.deepEqual([cache.lengths, cache.pool.counts], [[6, 3], { used: 3, shared: 0, free: 2 }]);
  assert.deepEqual(saveCache(cache), file);
  const small = new PagedCache({ pool: paged(2, "float32", 2).pool, batch: 2 });
  assertUnchanged(small, () => assertFails(() => loadCache(small, file), "capacity_exceeded", MESSAGE));
});

test("an empty cache, and rows that hold nothing", () => {
  const [full, empty] = [new KVCache(ONE), new KVCache(ONE)];
  push(full, 1, 2);
  loadCache(full, saveCache(empty));
  assert.deepEqual([full.lengths, full.next], [[0], [0]]);
  push(empty, 1, 2, 3);
  empty.evict([0, 1, 2]);
  loadCache(full, saveCache(empty));
  assert.deepEqual([full.lengths, full.next], [[0], [3]]);
});
