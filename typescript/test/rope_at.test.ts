import assert from "node:assert/strict";
import { test } from "node:test";
import {
  type Cache,
  type CacheRope,
  CrossCache,
  type FloatDtype,
  KiviCache,
  KVCache,
  loadCache,
  PagedCache,
  PagePool,
  PerHeadCache,
  QuantisedCache,
  RotatingCache,
  saveCache,
} from "../src/index.ts";
import { draw, SIZES } from "./caches.ts";
import { assertClose, assertFails, assertSame, positions, Random } from "./helpers.ts";

const CAUSAL = { mask: { causal: true } };
const SCALED = { type: "yarn", factor: 4, originalLength: 16 } as const;
const LATE = { rope: { base: 50, scaling: SCALED }, ropeAt: "attend" } as const;

type Make = <T extends FloatDtype>(dtype: T, turns: CacheRope) => Cache<T>;

/** Every kind that turns, and holds keys as they are. */
const KINDS: Readonly<Record<string, Make>> = {
  contiguous: (dtype, turns) => new KVCache({ ...SIZES, batch: 2, dtype, ...turns }),
  per_head: (dtype, turns) => new PerHeadCache({ ...SIZES, batch: 2, dtype, ...turns }),
  rotating: (dtype, turns) => new RotatingCache({ ...SIZES, batch: 2, dtype, window: 4, keep: 1, ...turns }),
  paged: (dtype, turns) => {
    const pool = new PagePool({ ...SIZES, dtype, numPages: 20, pageSize: 3 });
    return new PagedCache({ pool, batch: 2, ...turns });
  },
};

const ROUNDED: Readonly<Record<string, Make>> = {
  quantised: (dtype, turns) => new QuantisedCache({ ...SIZES, batch: 2, dtype, format: "int8", ...turns }),
  kivi: (dtype, turns) =>
    new KiviCache({ ...SIZES, batch: 2, dtype, format: "int8", keyGroups: 2, ...turns }),
};

test("keys are held as they came, and turned where they stand when they are attended to", () => {
  for (const [name, make] of Object.entries(KINDS)) {
    const random = new Random(240);
    const [late, once] = [make("float32", LATE), make("float32", { ...LATE, ropeAt: "append" })];
    const { k, v, q } = draw(random, "float32", 2, 7);
    for (const [from, to] of [
      [0, 3],
      [3, 7],
    ] as const) {
      for (const cache of [late, once])
        cache.append(positions(k, from, to), positions(v, from, to), [to - from, 1]);
      const part = positions(q, from, to);
      assertSame(late.attend(part, CAUSAL), once.attend(part, CAUSAL)); // float32 holds what it turns
    }
    if (name === "contiguous") {
      const [held, came] = [(late as KVCache).keys(), k].map((x) => positions(x, 0, 3).data.slice(0, 24));
      assert.deepEqual(held, came); // of the row that holds all
    }
    assert.deepEqual([late.description.rope, once.description.rope], [false, true]);
    const fork = late.fork();
    const { q: more } = draw(random, "float32", 2, 1);
    assertSame(fork.attend(more), late.attend(more));
    const other = make("float32", LATE);
    loadCache(other, saveCache(late));
    assertSame(other.attend(more), late.attend(more));
    assertFails(
      () => loadCache(make("float32", { rope: LATE.rope }), saveCache(late)),
      "invalid_config",
      /^load: /,
    );
    loadCache(make("float32", {}), saveCache(late)); // what it holds is what a cache without a rope holds
  }
});

test("a turn at an attend is not rounded to a half type", () => {
  const random = new Random(241);
  for (const dtype of ["float16", "bfloat16"] as const) {
    const late = new KVCache({ ...SIZES, batch: 2, dtype, ...LATE });
    const wide = new KVCache({ ...SIZES, batch: 2, ...LATE });
    const { k, v, q } = draw(random, dtype, 2, 5);
    late.append(k, v);
    assertSame(late.keys(), k);
    const widened = [k, v, q].map(({ data, shape }) => ({
      data: Float32Array.from(dtype === "float16" ? data : wideOf(data as never)),
      shape,
    }));
    wide.append(widened[0]!, widened[1]!);
    const expected = wide.attend(widened[2]!, CAUSAL);
    const got = late.attend(q, CAUSAL);
    const step = dtype === "float16" ? 2 ** -11 : 2 ** -8; // half a step of the type, relative
    for (const [n, x] of expected.data.entries()) {
      const y = dtype === "float16" ? got.data[n]! : wideOf(got.data.subarray(n, n + 1) as never)[0]!;
      assert.ok(Math.abs(y - x) <= step * Math.abs(x) + 2 ** -25, `${y} ${x}`);
    }
  }
});

/** The codes of bfloat16 as numbers. */
function wideOf(codes: Uint16Array): Float32Array {
  return new Float32Array(Uint32Array.from(codes, (code) => code << 16).buffer);
}

test("what is quantised is the key as it came", () => {
  for (const [name, make] of Object.entries(ROUNDED)) {
    const random = new Random(242);
    const [late, unturned] = [make("float64", LATE), make("float64", {})];
    const { k, v, q } = draw(random, "float64", 2, 5);
    for (const cache of [late, unturned]) cache.append(k, v, [5, 3]);
    assert.deepEqual(late.read(), unturned.read(), name);
    const plain = new KVCache({ ...SIZES, batch: 2, dtype: "float64", ...LATE });
    const held = unturned.read() as ReturnType<KVCache<"float64">["read"]>;
    plain.append(held.k, held.v, [5, 3]);
    assertSame(late.attend(q, CAUSAL), plain.attend(q, CAUSAL));
  }
});

test("a shift moves positions alone, to the same end as turning what is held", () => {
  const random = new Random(243);
  const { k, v, q } = draw(random, "float64", 2, 5);
  const makes = ["contiguous", "per_head"].map((name) => KINDS[name]!);
  for (const make of [...makes, ...Object.values(ROUNDED)]) {
    const late = make("float64", LATE) as KVCache<"float64">;
    late.append(k, v);
    const before = late.read();
    late.shift(7, 2);
    const after = late.read();
    assert.deepEqual([after.k, after.v], [before.k, before.v]);
    assert.deepEqual(after.positions[0], [0, 1, 9, 10, 11]);
    if (!makes.includes(make)) continue;
    const once = make("float64", { ...LATE, ropeAt: "append" }) as KVCache<"float64">;
    once.append(k, v);
    once.shift(7, 2);
    assertClose(late.attend(q, CAUSAL).data, once.attend(q, CAUSAL).data, 1e-12);
  }
});

test("any other word, and one without a rope, is refused", () => {
  for (const make of Object.values({ ...KINDS, ...ROUNDED })) {
    for (const ropeAt of ["late", "Attend", 5, true]) {
      assertFails(() => make("float32", { rope: {}, ropeAt: ropeAt as never }), "invalid_config");
    }
    for (const ropeAt of ["append", "attend"] as const) {
      assertFails(() => make("float32", { ropeAt }), "invalid_config");
    }
    make("float32", { rope: null, ropeAt: null });
  }
  new CrossCache({ ...SIZES, batch: 1, ...({ ropeAt: "late" } as object) }); // does not turn, and does not ask
});
