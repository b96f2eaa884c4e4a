/** The fast rungs are sdpa: in blocks, and by both binaries of the kernels. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import {
  type Attended,
  blocked,
  Engine,
  type FloatArray,
  type SdpaOptions,
  sdpaSteps,
  type Tensor,
  wasm,
} from "../src/index.ts";
import { as, assertClose, assertFails, bool, f32, f64, Random } from "./helpers.ts";

type F32 = Tensor<Float32Array>;
type Rung = (q: F32, k: F32, v: F32, options: SdpaOptions<Float32Array>) => Attended<Float32Array>;

const [plain, relaxed] = [new Engine("plain"), new Engine("relaxed")];
const RUNGS: Readonly<Record<string, Rung>> = {
  blocked,
  plain: (q, k, v, options) => wasm(q, k, v, options, plain),
  relaxed: (q, k, v, options) => wasm(q, k, v, options, relaxed),
};

/**
 * What two orders of the same sums may be apart here. Values are up to 2, and roundings of either sign, 2^-24 each, add
 * up like the root of their number: of at most 80 channels and 500 keys they make (√80 + √500) · 2 · 2^-24 = 3.7e-6, and of
 * 257 and 70, or of 3 and 515, less. In the worst case it would be more; the draws are fixed, and the conformance cases have bounds.
 */
const TOLERANCE = 4e-6;

/** Output and lse as sdpa has them, by every rung. */
function agree(q: F32, k: F32, v: F32, options: SdpaOptions<Float32Array>): void {
  const expected = sdpaSteps(q, k, v, options);
  for (const [name, rung] of Object.entries(RUNGS)) {
    const { output, lse } = rung(q, k, v, options);
    assert.deepEqual([output.shape, lse.shape], [expected.output.shape, expected.lse.shape], name);
    assertClose(output.data, expected.output.data, TOLERANCE);
    assertClose(lse.data, expected.lse.data, TOLERANCE);
  }
}

const random = new Random(70);
const draw = (shape: number[]) => random.tensor("float32", shape);
const maybe = <T>(value: T): T | null => (random.next() < 0.35 ? value : null);

test("tails of every tile: rows, keys, channels, groups, and blocks of keys", () => {
  for (let round = 0; round < 120; round++) {
    const [B, Hkv, G] = [random.integer(0, 2), random.integer(1, 2), random.integer(1, 5)];
    const [Tq, Tk] = [random.integer(0, 20), random.integer(0, 210)];
    const [D, Dv] = [random.integer(1, 21), random.integer(0, 34)];
    const bias = draw([Tq, Tk]);
    for (let n = 0; n < bias.data.length; n += 7) bias.data[n] = -Infinity;
    agree(draw([B, Hkv * G, Tq, D]), draw([B, Hkv, Tk, D]), draw([B, Hkv, Tk, Dv]), {
      mask: {
        causal: random.next() < 0.4,
        window: maybe([random.integer(0, 9), maybe(random.integer(0, 5))] as const),
        kvLengths: maybe(Array.from({ length: B }, () => random.integer(0, Tk))),
        qOffset: maybe(random.next() < 0.5 ? random.integer(-5, 200) : Array(B).fill(Tk - Tq)),
        keep: maybe(random.mask([Tq, Tk])),
      },
      bias: maybe(bias),
      softcap: maybe(1.5),
      scale: maybe(0.3),
      sinks: maybe(draw([Hkv * G])),
    });
  }
});

test("more rows than are held at once, and a panel that does not hold all keys", () => {
  agree(draw([1, 2, 530, 3]), draw([1, 1, 7, 3]), draw([1, 1, 7, 2]), { mask: { causal: true } });
  const [q, k, v] = [draw([1, 1, 1, 80]), draw([1, 1, 500, 80]), draw([1, 1, 500, 80])]; // 320 KB
  agree(q, k, v, {});
  agree(q, k, v, { mask: { causal: true, qOffset: 420, window: [300, 0] } });
});

test("heads of more channels than a block of plain loops holds, and more rows; groups around few", () => {
  for (const [D, Dv] of [
    [130, 3],
    [5, 261],
    [257, 129],
  ] as const) {
    for (const rows of [1, 3, 8, 9]) {
      agree(draw([1, rows, 1, D]), draw([1, 1, 11, D]), draw([1, 1, 11, Dv]), { sinks: draw([rows]) });
      agree(draw([1, 1, rows, D]), draw([1, 1, 70, D]), draw([1, 1, 70, Dv]), { mask: { causal: true } });
    }
  }
  agree(draw([1, 1, 515, 3]), draw([1, 1, 515, 3]), draw([1, 1, 515, 3]), { mask: { window: [70, 2] } });
});

test("nothing of a hidden slot reaches the result", () => {
  const [Tq, Tk] = [11, 130];
  for (const G of [1, 12]) {
    const [q, k, v] = [draw([1, G, Tq, 8]), draw([1, 1, Tk, 8]), draw([1, 1, Tk, 8])];
    const hide: SdpaOptions<Float32Array>[] = [
      { mask: { kvLengths: [100] } },
      { mask: { causal: true, qOffset: 80, window: [20, null] } },
      {
        mask: {
          keep: bool(
            [Tk],
            Uint8Array.from({ length: Tk }, (_, j) => (j % 3 === 0 ? 1 : 0)),
          ),
        },
      },
      {
        bias: f32(
          [Tk],
          Float32Array.from({ length: Tk }, (_, j) => (j < 97 ? 0.1 : -Infinity)),
        ),
      },
    ];
    for (const options of hide) {
      for (const poison of [NaN, Infinity, -Infinity]) {
        const [badK, badV] = [f32(k.shape as number[], k.data), f32(v.shape as number[], v.data)];
        for (const j of [1, 7, 98, 100, 115, 129]) {
          badK.data[j * 8 + 3] = poison;
          badV.data[j * 8 + 5] = poison;
        }
        agree(q, badK, v, options);
        agree(q, k, badV, options);
        agree(q.shape[2] === Tq ? f32([1, G, 1, 8], q.data.subarray(0, G * 8)) : q, badK, badV, options);
      }
    }
  }
});

test("NaN and infinities among the visible, rows without keys, and sinks that are no numbers", () => {
  const [q, k, v] = [draw([1, 2, 9, 4]), draw([1, 2, 9, 4]), draw([1, 2, 9, 4])];
  for (const poison of [NaN, Infinity, -Infinity]) {
    const [badK, badV] = [f32([1, 2, 9, 4], k.data), f32([1, 2, 9, 4], v.data)];
    badK.data[9] = poison;
    badV.data[30] = poison;
    for (const causal of [false, true]) {
      agree(q, badK, v, { mask: { causal } });
      agree(q, k, badV, { mask: { causal } });
    }
    agree(q, k, v, { sinks: f32([2], [poison, 0]), mask: { causal: true, qOffset: -4 } });
    agree(f32([1, 2, 1, 4], q.data.subarray(0, 8)), k, v, {
      sinks: f32([2], [poison, 0]),
      mask: { kvLengths: [0] },
    });
  }
});

test("scores far from 0, and differences that a weight does not survive (Overflow)", () => {
  for (const base of [-1e5, 1e5]) {
    const k = f32([1, 1, 3, 1], [base, base - 0.75, base - 500]);
    agree(f32([1, 1, 1, 1], [1]), k, f32([1, 1, 3, 1], [3, 6, 1e30]), { scale: 1 });
    agree(f32([1, 1, 9, 1], Array(9).fill(1)), k, f32([1, 1, 3, 1], [3, 6, 9]), { scale: 1 });
  }
});

test("types: blocked takes all, the kernels float32 alone; no dropout; errors before that", () => {
  const types = ["float64", "float16", "bfloat16"] as const;
  for (const dtype of types) {
    const x = as(dtype, [1, 1, 2, 2], [1, 2, 3, 4]) as Tensor<FloatArray>;
    const [got, want] = [blocked(x, x, x), sdpaSteps(x, x, x)];
    assertClose(Array.from(got.output.data), Array.from(want.output.data), dtype === "float64" ? 1e-15 : 0);
    assert.throws(() => wasm(x as F32, x as F32, x as F32), { code: "unsupported" });
  }
  const x = f32([1, 1, 2, 2], [1, 2, 3, 4]);
  for (const rung of Object.values(RUNGS)) {
    assert.throws(() => rung(x, x, x, { dropout: { p: 0.5, seed: 1 } }), { code: "unsupported" });
  }
  assertFails(() => wasm(x, f32([1, 1, 1, 1], [1]), x), "shape_mismatch", /^wasm: k: /);
  assertFails(
    () => blocked(x, x, f64([1, 1, 2, 2], [1, 2, 3, 4]) as never),
    "dtype_mismatch",
    /^blocked: v: /,
  );
});

test("a memory that cannot be had is an error, and the engine goes on", () => {
  const engine = new Engine();
  assertFails(() => engine.layOut([2 ** 33]), "invalid_config");
  const x = f32([1, 1, 1, 1], [2]);
  assertClose(wasm(x, x, x, {}, engine).output.data, [2]);
});

test("exp and tanh of the kernels: 2.3 and 1.9 units in the last place, and their limits", () => {
  const bits = new Uint32Array(1);
  const number = new Float32Array(bits.buffer);
  const gap = (x: number) => {
    number[0] = x;
    bits[0]! += 1;
    return number[0]! - Math.fround(x);
  };
  for (const engine of [plain, relaxed]) {
    for (const [tangent, exact, most] of [[0, Math.exp, 2.3] as const, [1, Math.tanh, 1.9] as const]) {
      const apply = (xs: Float32Array) => {
        const [place] = engine.layOut([xs.byteLength]) as [number];
        engine.f32.set(xs, place / 4);
        engine.kernels.mathOf(place, xs.length, tangent);
        return engine.f32.slice(place / 4, place / 4 + xs.length);
      };
      // Every 9973rd number from the smallest to -87.33, or to 10.
      const xs: number[] = [];
      for (let code = 0x00800000; code < (tangent ? 0x41200000 : 0x42aea8f5); code += 9973) {
        bits[0] = code;
        xs.push(tangent ? number[0]! : -number[0]!);
      }
      const inputs = Float32Array.from(xs.slice(0, xs.length & ~3));
      const results = apply(inputs);
      const worst = inputs.reduce((most, x, n) => {
        const want = exact(x);
        return Math.max(most, Math.abs(results[n]! - want) / gap(Math.abs(want)));
      }, 0);
      assert.ok(worst <= most, `${engine.binary}: ${exact.name} is off by ${worst}`);
      const limits = apply(Float32Array.of(0, -Infinity, NaN, -200));
      assert.deepEqual([...limits], tangent ? [0, -1, NaN, -1] : [1, 0, NaN, 0]);
    }
  }
});

test("what a browser loads imports nothing of Node, and runs without its globals", () => {
  const seen = new Set<string>();
  const visit = (url: URL): void => {
    if (seen.has(url.href)) return;
    seen.add(url.href);
    for (const [, name] of readFileSync(url, "utf8").matchAll(/\b(?:from |import\(|import )"([^"\n]+)"/g)) {
      assert.match(name!, /^\.\.?\//, `${url.pathname} imports ${name}`);
      visit(new URL(name!, url));
    }
  };
  for (const name of ["index.ts", "wasm/worker.ts"]) visit(new URL(`../src/${name}`, import.meta.url));
  assert.ok(seen.size > 60);

  const script = `
    const names = ["process", "Buffer", "global", "setImmediate"];
    for (const name of names) delete globalThis[name];
    const { wasm } = await import(${JSON.stringify(new URL("../src/index.ts", import.meta.url).href)});
    const x = { data: Float32Array.of(2), shape: [1, 1, 1, 1] };
    console.log(wasm(x, x, x).output.data[0], typeof process);`;
  const { stdout, stderr } = spawnSync(process.execPath, ["--input-type=module", "-e", script], {
    encoding: "utf8",
  });
  assert.equal(stdout, "2 undefined\n", stderr);
});
