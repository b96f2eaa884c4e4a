import assert from "node:assert/strict";
import { test } from "node:test";
import { cost, generate, randomLayer, WAYS } from "../experiments/decode_ways.ts";
import { assertSame } from "./helpers.ts";

test("the products that are counted come to the formulas of docs/decode.md", () => {
  const C = 24;
  for (const T of [1, 2, 7]) {
    const sum = (of: (t: number) => number) =>
      Array.from({ length: T }, (_, n) => of(n + 1)).reduce((total, x) => total + x, 0);
    const expected = {
      everything: sum((t) => 4 * t * C * C + 2 * t * t * C),
      "keys and values": sum((t) => 2 * t * C * C + 2 * C * C + 2 * t * C),
      cache: sum((t) => 4 * C * C + 2 * t * C),
    };
    for (const way of WAYS) assert.equal(cost(way, T, C, 3).multiplyAdds, expected[way]);
  }
  // Width 2, one head, one token: four products of (1, 2) and (2, 2), then (1, 2) and (2, 1), (1, 1) and (1, 2).
  assert.equal(cost("cache", 1, 2, 1).moved, 4 * (4 * (2 + 4 + 2) + (2 + 2 + 1) + (1 + 2 + 2)));
});

test("all ways make the same tokens, to the bit, and only one of them holds something", () => {
  const { layer, first } = randomLayer(12, 3);
  const [everything, keysAndValues, cached] = WAYS.map((way) => generate(way, layer, first, [3, 8]));
  for (const run of [keysAndValues!, cached!]) assertSame(run.tokens, everything!.tokens);
  assert.deepEqual(everything!.tokens.shape, [1, 8, 12]);
  assert.deepEqual(
    [everything!, keysAndValues!, cached!].map(({ held }) => [...held]),
    [
      [
        [3, 0],
        [8, 0],
      ],
      [
        [3, 0],
        [8, 0],
      ],
      [
        [3, 2 * 4 * 12 * 3],
        [8, 2 * 4 * 12 * 8],
      ],
    ],
  );
});
