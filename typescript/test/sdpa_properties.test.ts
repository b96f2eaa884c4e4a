/** What must hold for every input, tried on seeded ones. */

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  type FloatDtype,
  type SdpaOptions,
  sdpa,
  sdpaSteps,
  type Tensor,
  type TensorArray,
} from "../src/index.ts";
import { sizes4 } from "../src/tensor.ts";
import { assertClose, assertSame, positions, Random } from "./helpers.ts";

const DTYPES: FloatDtype[] = ["float32", "float64"];

interface Case {
  q: Tensor;
  k: Tensor;
  v: Tensor;
  options: SdpaOptions;
}

/** Every size different where it can be, and every option on in some of the cases. */
function draw(random: Random, dtype: FloatDtype, least = 1): Case {
  const [B, Hkv, G] = [random.integer(1, 3), random.integer(1, 3), random.integer(1, 3)];
  const [Tq, Tk] = [random.integer(least, 9), random.integer(least, 18)];
  const [D, Dv] = [random.integer(1, 17), random.integer(1, 9)];
  const Hq = Hkv * G;
  const maybe = <T>(value: T): T | null => (random.next() < 0.5 ? value : null);
  return {
    q: random.tensor(dtype, [B, Hq, Tq, D]),
    k: random.tensor(dtype, [B, Hkv, Tk, D]),
    v: random.tensor(dtype, [B, Hkv, Tk, Dv]),
    options: {
      mask: {
        causal: random.next() < 0.5,
        window: maybe([maybe(random.integer(0, 4)), maybe(random.integer(0, 4))]),
        keep: maybe(random.mask([B, 1, Tq, Tk])),
        kvLengths: maybe(Array.from({ length: B }, () => random.integer(0, Tk))),
        qOffset: maybe(Array.from({ length: B }, () => random.integer(-2, Tk))),
      },
      bias: maybe(random.tensor(dtype, [Hq, 1, Tk])),
      scale: maybe(random.next()),
      softcap: maybe(1 + random.next()),
      sinks: maybe(random.tensor(dtype, [Hq])),
    },
  };
}

function sum(values: number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

function everyCase(rounds: number, body: (drawn: Case, random: Random) => void): void {
  for (const dtype of DTYPES) {
    const random = new Random(dtype === "float32" ? 10 : 11);
    for (let round = 0; round < rounds; round++) body(draw(random, dtype), random);
  }
}

test("weights and output are those of the formula, computed another way", () => {
  everyCase(100, ({ q, k, v, options }) => {
    const { output, weights, lse, biased } = sdpaSteps(q, k, v, options);
    const [, Hq, Tq, Tk] = sizes4(weights);
    const [, Hkv, , Dv] = sizes4(v);
    const eps = q.data instanceof Float32Array ? 1e-5 : 1e-13;
    for (let query = 0; query < lse.data.length; query++) {
      const row = [...weights.data.subarray(query * Tk, (query + 1) * Tk)];
      const sink = options.sinks?.data[Math.floor(query / Tq) % Hq] ?? -Infinity;
      const empty = lse.data[query] === -Infinity;
      const total = sum(row) + (empty ? 1 : Math.exp(sink - lse.data[query]!));
      assertClose([total], [1], eps);
      for (let j = 0; j < Tk; j++) {
        if (row[j] === 0) continue;
        assertClose([Math.log(row[j]!)], [biased.data[query * Tk + j]! - lse.data[query]!], 4 * eps);
      }
      const kvHead = Math.floor(query / Tq / (Hq / Hkv)); // batch and heads in one index
      for (let c = 0; c < Dv; c++) {
        const terms = row.map((w, j) => w * v.data[(kvHead * Tk + j) * Dv + c]!);
        assertClose([output.data[query * Dv + c]!], [sum(terms)], 4 * eps);
      }
    }
  });
});

test("GQA is MHA on repeated heads, bit for bit", () => {
  const repeat = (x: Tensor, G: number): Tensor => {
    const [B, H, T, n] = sizes4(x);
    const repeated = { data: x.data.slice(0, 0), shape: [B, H * G, T, n] };
    const values = Array.from({ length: B * H * G * T * n }, (_, at) => {
      const head = Math.floor(at / (T * n));
      return x.data[Math.floor(head / G) * T * n + (at % (T * n))]!;
    });
    return {
      ...repeated,
      data: x.data instanceof Float32Array ? Float32Array.from(values) : Float64Array.from(values),
    };
  };
  everyCase(60, ({ q, k, v, options }) => {
    const G = q.shape[1]! / k.shape[1]!;
    const [grouped, full] = [sdpaSteps(q, k, v, options), sdpaSteps(q, repeat(k, G), repeat(v, G), options)];
    for (const step of ["output", "weights", "lse", "scores"] as const) assertSame(grouped[step], full[step]);
  });
});

test("what is hidden is never read: poison in it changes no bit", () => {
  everyCase(100, ({ q, k, v, options }, random) => {
    const { weights, output, lse } = sdpaSteps(q, k, v, options);
    const [B, Hq, Tq, Tk] = sizes4(weights);
    const [, Hkv, , D] = sizes4(k);
    const Dv = v.shape[3]!;
    const G = Hq / Hkv;
    const poison = [NaN, Infinity, -Infinity][random.integer(0, 2)]!;
    const [poisonedK, poisonedV] = [k.data.slice(), v.data.slice()];
    for (let block = 0; block < B * Hkv; block++) {
      for (let j = 0; j < Tk; j++) {
        const seen = Array.from(
          { length: G * Tq },
          (_, i) => weights.data[(block * G * Tq + i) * Tk + j] !== 0,
        );
        if (seen.includes(true)) continue;
        poisonedK.fill(poison, (block * Tk + j) * D, (block * Tk + j + 1) * D);
        poisonedV.fill(poison, (block * Tk + j) * Dv, (block * Tk + j + 1) * Dv);
      }
    }
    const again = sdpaSteps(q, { ...k, data: poisonedK }, { ...v, data: poisonedV }, options);
    assertSame(again.output, output);
    assertSame(again.weights, weights);
    assertSame(again.lse, lse);
  });
});

test("rows of a batch are independent, bit for bit", () => {
  everyCase(60, ({ q, k, v, options }) => {
    const whole = sdpa(q, k, v, options);
    const B = q.shape[0]!;
    const row = <A extends TensorArray>(x: Tensor<A>, b: number): Tensor<A> => {
      const size = x.data.length / B;
      return { data: x.data.subarray(b * size, (b + 1) * size) as A, shape: [1, ...x.shape.slice(1)] };
    };
    for (let b = 0; b < B; b++) {
      const mask = {
        ...options.mask,
        keep: options.mask?.keep && row(options.mask.keep, b),
        kvLengths: options.mask?.kvLengths && [(options.mask.kvLengths as number[])[b]!],
        qOffset: options.mask?.qOffset && [(options.mask.qOffset as number[])[b]!],
      };
      assertSame(sdpa(row(q, b), row(k, b), row(v, b), { ...options, mask }), row(whole, b));
    }
  });
});

test("every query is independent: one at a time is all at once, bit for bit", () => {
  everyCase(60, ({ q, k, v, options }) => {
    const whole = sdpa(q, k, v, options);
    for (let i = 0; i < q.shape[2]!; i++) {
      const { keep, qOffset } = options.mask!;
      const offsets = ((qOffset ?? new Array(q.shape[0]).fill(0)) as number[]).map((offset) => offset + i);
      const bytes = keep && positions({ ...keep, data: Float32Array.from(keep.data) }, i, i + 1);
      const mask = {
        ...options.mask,
        qOffset: offsets,
        keep: bytes && { ...bytes, data: Uint8Array.from(bytes.data) },
      };
      assertSame(sdpa(positions(q, i, i + 1), k, v, { ...options, mask }), positions(whole, i, i + 1));
    }
  });
});

test("the order of the keys does not matter without positions", () => {
  const random = new Random(12);
  for (let round = 0; round < 40; round++) {
    const { q, k, v } = draw(random, "float64");
    const reversed = (x: Tensor): Tensor => {
      const [B, H, T, n] = sizes4(x);
      const data = x.data.slice();
      for (let block = 0; block < B * H; block++) {
        for (let t = 0; t < T; t++) {
          const from = (block * T + t) * n;
          data.set(x.data.subarray(from, from + n), (block * T + T - 1 - t) * n);
        }
      }
      return { ...x, data };
    };
    assertClose(sdpa(q, reversed(k), reversed(v)).data, sdpa(q, k, v).data, 1e-13);
  }
});

test("a view into a larger buffer is its own elements, at any offset", () => {
  everyCase(40, ({ q, k, v, options }, random) => {
    const view = (x: Tensor): Tensor => {
      const before = random.integer(1, 7);
      const buffer = x.data.slice(0, 0);
      const ArrayType = buffer.constructor as new (n: number) => typeof buffer;
      const larger = new ArrayType(x.data.length + before + 3).fill(NaN);
      larger.set(x.data, before);
      return { data: larger.subarray(before, before + x.data.length), shape: x.shape };
    };
    const bias = options.bias && view(options.bias);
    const sinks = options.sinks && view(options.sinks);
    assertSame(sdpa(view(q), view(k), view(v), { ...options, bias, sinks }), sdpa(q, k, v, options));
  });
});

test("inputs are not written to", () => {
  everyCase(20, ({ q, k, v, options }) => {
    const before = structuredClone({ q, k, v, options });
    sdpaSteps(q, k, v, options);
    assert.deepEqual({ q, k, v, options }, before);
  });
});
