/** Each bad call of sdpa and its code. Every call has one fault. */

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  AttentionError,
  CapacityExceeded,
  DtypeMismatch,
  InvalidConfig,
  type SdpaOptions,
  ShapeMismatch,
  sdpa,
  type Tensor,
  Unsupported,
} from "../src/index.ts";
import { zeros } from "../src/tensor.ts";
import { assertFails, bool, f32, f64, int64 } from "./helpers.ts";

function call(shapes: { q?: number[]; k?: number[]; v?: number[] }, options: unknown = {}): () => unknown {
  const { q = [2, 4, 3, 5], k = [2, 2, 6, 5], v = [2, 2, 6, 7] } = shapes;
  const [Q, K, V] = [q, k, v].map((shape) => zeros("float32", shape));
  return () => sdpa<Float32Array>(Q!, K!, V!, options as SdpaOptions<Float32Array>);
}

test("the good call that the others spoil", () => {
  assert.doesNotThrow(call({}));
});

test("shape_mismatch", () => {
  const fails = (shapes: Parameters<typeof call>[0], options?: unknown) =>
    assertFails(call(shapes, options), "shape_mismatch");
  fails({ q: [4, 3, 5] });
  fails({ k: [2, 6, 5] });
  fails({ v: [2, 2, 6, 7, 1] });
  fails({ k: [1, 2, 6, 5] });
  fails({ v: [1, 2, 6, 7] });
  fails({ k: [2, 2, 6, 4] });
  fails({ v: [2, 4, 6, 7] });
  fails({ v: [2, 2, 5, 7] });
  fails({ q: [2, 3, 3, 5] });
  fails({ q: [2, 4, 3, 0], k: [2, 2, 6, 0] });
  fails({ k: [2, 0, 6, 5], v: [2, 0, 6, 7] });
  fails({}, { mask: { keep: bool([2], [1, 1]) } });
  fails({}, { bias: f32([5], [1, 1, 1, 1, 1]) });
  fails({}, { bias: zeros("float32", [1, 1, 1, 1, 6]) });
  fails({}, { sinks: f32([2], [0, 0]) });
  fails({}, { sinks: zeros("float32", [1, 4]) });
  fails({}, { mask: { kvLengths: int64([1], [3]) } });
  fails({}, { mask: { qOffset: int64([3], [0, 0, 0]) } });
});

test("the message names function, argument, expected and got", () => {
  assertFails(call({ k: [2, 2, 6, 4] }), "shape_mismatch", /^sdpa: k: expected head size 5 as in q, got 4$/);
  assertFails(
    call({ q: [4, 3, 5] }),
    "shape_mismatch",
    /^sdpa: q: expected rank 4 \(B, Hq, Tq, D\), got \(4, 3, 5\)$/,
  );
});

test("dtype_mismatch", () => {
  const [q, k, v] = [
    zeros("float32", [1, 1, 2, 3]),
    zeros("float32", [1, 1, 4, 3]),
    zeros("float32", [1, 1, 4, 3]),
  ];
  const fails = (call: () => unknown) => assertFails(call, "dtype_mismatch");
  const wide = (x: Tensor): never => f64([...x.shape], x.data) as never;
  fails(() => sdpa(q, wide(k), v));
  fails(() => sdpa(q, k, wide(v)));
  fails(() => sdpa(wide(q), k as never, v as never));
  fails(() => sdpa(int64([1, 1, 1, 1], [1]) as never, k, v));
  fails(() => sdpa(bool([1, 1, 1, 1], [1]) as never, k, v));
  fails(() => sdpa({ data: new Int32Array(6), shape: [1, 1, 2, 3] } as never, k, v));
  fails(() => sdpa(q, k, v, { bias: f64([4], [0, 0, 0, 0]) as never }));
  fails(() => sdpa(q, k, v, { bias: bool([4], [1, 1, 1, 1]) as never }));
  fails(() => sdpa(q, k, v, { sinks: f64([1], [0]) as never }));
  fails(() => sdpa(q, k, v, { mask: { keep: f32([4], [0, 0, 0, 0]) as never } }));
  fails(() => sdpa(q, k, v, { mask: { kvLengths: f32([1], [1]) as never } }));
});

test("invalid_config", () => {
  for (const softcap of [0, -1, NaN, Infinity, "x", true])
    assertFails(call({}, { softcap }), "invalid_config");
  for (const scale of [NaN, Infinity, -Infinity, "1", true])
    assertFails(call({}, { scale }), "invalid_config");
  for (const window of [[-1, 0], [0], [0.5, 1]])
    assertFails(call({}, { mask: { window } }), "invalid_config");
  assertFails(call({}, { mask: { causal: 1 } }), "invalid_config");
  assertFails(call({}, { mask: { qOffset: 0.5 } }), "invalid_config");
  assertFails(call({}, { mask: { kvLengths: [0, 7] } }), "invalid_config");
});

test("every class carries its code", () => {
  const codes = [
    [new AttentionError("x"), "internal"],
    [new ShapeMismatch("x"), "shape_mismatch"],
    [new DtypeMismatch("x"), "dtype_mismatch"],
    [new InvalidConfig("x"), "invalid_config"],
    [new CapacityExceeded("x"), "capacity_exceeded"],
    [new Unsupported("kind.paged"), "unsupported"],
  ] as const;
  for (const [error, code] of codes) {
    assert.equal(error.code, code);
    assert.ok(error instanceof AttentionError && error instanceof Error);
    assert.equal(error.name, error.constructor.name);
  }
  assert.equal(new Unsupported("kind.paged").feature, "kind.paged");
});
