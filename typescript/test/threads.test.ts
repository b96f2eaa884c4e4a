/** Several threads give the bits of one. */

import assert from "node:assert/strict";
import { after, test } from "node:test";
import { type SdpaOptions, type Tensor, Threads, wasm } from "../src/index.ts";
import { assertFails, assertSame, f32, Random } from "./helpers.ts";

const pools = [1, 2, 3].map((count) => new Threads(count));
after(() => {
  for (const pool of pools) pool.close();
});

const random = new Random(80);
const draw = (shape: number[]) => random.tensor("float32", shape);

/** The same tensor in memory that threads share. */
function shared(x: Tensor<Float32Array>): Tensor<Float32Array> {
  const data = new Float32Array(new SharedArrayBuffer(x.data.byteLength));
  data.set(x.data);
  return { data, shape: x.shape };
}

test("the same bits for any number of threads, whoever owns the memory", () => {
  const [q, k, v] = [draw([2, 4, 300, 24]), draw([2, 2, 310, 24]), draw([2, 2, 310, 20])];
  const few = draw([2, 2, 1, 24]);
  const [bias, sinks] = [draw([300, 310]), draw([4])];
  const calls: [Tensor<Float32Array>, SdpaOptions<Float32Array>][] = [
    [q, {}],
    [q, { mask: { causal: true, qOffset: 10 }, sinks }],
    [q, { mask: { window: [40, 3], kvLengths: [310, 150] }, bias }],
    [q, { mask: { keep: random.mask([300, 310]) }, softcap: 2 }],
    [few, {}],
  ];
  // The first rounds may be over before the threads have come up.
  for (let round = 0; round < 6; round++) {
    for (const [queries, options] of calls) {
      const want = wasm(queries, k, v, options);
      for (const pool of pools) {
        const move = round % 2 ? shared : (x: Tensor<Float32Array>) => x;
        const got = pool.sdpa(move(queries), move(k), move(v), options);
        assertSame(got.output, want.output);
        assertSame(got.lse, want.lse);
        assert.equal(got.output.data.buffer instanceof ArrayBuffer, true);
      }
    }
  }
});

test("workers take part", async () => {
  const pool = new Threads(2);
  const [q, k, v] = [draw([1, 8, 256, 64]), draw([1, 8, 256, 64]), draw([1, 8, 256, 64])];
  // A worker takes a moment to come up, and on a busy machine perhaps a long one.
  for (let call = 0; call < 2000 && pool.helped === 0; call++) {
    pool.sdpa(q, k, v);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  assert.ok(pool.helped > 0);
  pool.close();
  assertSame(pool.sdpa(q, k, v).output, wasm(q, k, v).output); // alone from now on
});

test("bad calls", () => {
  for (const count of [0, -1, 1.5, "2"]) assertFails(() => new Threads(count as number), "invalid_config");
  const x = f32([1, 1, 1, 1], [1]);
  for (const pool of pools) {
    assertFails(() => pool.sdpa(x, f32([1, 1, 1, 2], [1, 2]), x), "shape_mismatch", /^threads: k: /);
    assert.throws(() => pool.sdpa(x, x, x, { dropout: { p: 0, seed: 0 } }), { code: "unsupported" });
  }
});
