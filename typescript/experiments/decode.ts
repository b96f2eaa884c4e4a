/**
 * What a KV cache saves: one layer of multi-head attention generates T tokens in three ways, counted and timed.
 *
 * Over T steps recomputing everything grows as T³ in the end, recomputing keys and values as T², and the cache as
 * T for as long as T is well below the width, then as T² too. decode_ways has the three ways and their formulas;
 * docs/decode.md says what the options do.
 *
 *     node typescript/experiments/decode.ts --quick
 */

import { parseArgs } from "node:util";
import { cost, generate, type Run, randomLayer, WAYS, type Way } from "./decode_ways.ts";

const USAGE =
  "decode.ts [--n 64,128,256,512,1024] [--width 128] [--heads 8] [--quick] [--repeats 1] [--json]";

/** Says so and ends. */
function fail(message: string, status: number): never {
  console.error(`decode: ${message}`);
  process.exit(status);
}

/** Integers >= 1 out of a comma list, ascending. */
function sizes(name: string, text: string): number[] {
  const found = text.split(",").map(Number);
  if (!found.every((n) => Number.isSafeInteger(n) && n >= 1)) {
    fail(`--${name}: expected integers >= 1, got ${text}\n${USAGE}`, 2);
  }
  return [...new Set(found)].sort((a, b) => a - b);
}

function readOptions() {
  try {
    return parseArgs({
      options: {
        ...{ n: { type: "string" }, width: { type: "string", default: "128" } },
        ...{ heads: { type: "string", default: "8" }, repeats: { type: "string", default: "1" } },
        ...{ quick: { type: "boolean" }, json: { type: "boolean" } },
      },
    }).values;
  } catch (error) {
    return fail(`${(error as Error).message}\n${USAGE}`, 2);
  }
}

/** The run that reached each length first, by its time: noise only ever adds. */
function fastest(runs: readonly Run[], lengths: readonly number[]): Run {
  const seconds = new Map(lengths.map((n) => [n, Math.min(...runs.map((run) => run.seconds.get(n)!))]));
  return { ...runs[0]!, seconds };
}

/** Columns as wide as their widest cell: the first one to the left, the others to the right. */
function draw(rows: readonly string[][]): string {
  const widths = rows[0]!.map((_, c) => Math.max(...rows.map((row) => row[c]!.length)));
  const [header, ...others] = rows;
  const lines = [header!, widths.map((width) => "-".repeat(width)), ...others].map((row) =>
    row.map((cell, c) => (c === 0 ? cell.padEnd(widths[c]!) : cell.padStart(widths[c]!))).join("  "),
  );
  return lines.map((line) => line.trimEnd()).join("\n");
}

function decimal(x: number, digits: number = 1): string {
  return x.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function times(ratio: number): string {
  return ratio === 1 ? "" : `x ${decimal(ratio)}`;
}

/** A row for each length and way; last, how each way grows: p in y ~ T^p, between the two longest. */
function costTable(
  runs: ReadonlyMap<Way, Run>,
  lengths: readonly number[],
  width: number,
  heads: number,
): string {
  const rows = [["T", "made again", "million mul-adds", "", "MiB moved", "", "ms", ""]];
  const measured = (way: Way, n: number) => {
    const { multiplyAdds, moved } = cost(way, n, width, heads);
    return [multiplyAdds / 1e6, moved / 2 ** 20, runs.get(way)!.seconds.get(n)! * 1e3];
  };
  for (const n of lengths) {
    const best = measured("cache", n);
    for (const way of WAYS) {
      const cells = measured(way, n).flatMap((x, c) => [decimal(x), times(x / best[c]!)]);
      rows.push([way === "everything" ? `${n}` : "", way, ...cells]);
    }
  }
  for (const way of lengths.length < 2 ? [] : WAYS) {
    const [short, long] = lengths.slice(-2) as [number, number];
    const [from, to] = [measured(way, short), measured(way, long)];
    const powers = to.map((x, c) => Math.log(x / from[c]!) / Math.log(long / short));
    const cells = powers.flatMap((p) => [`T^${p.toFixed(2)}`, ""]);
    rows.push([way === "everything" ? "grows" : "", way, ...cells]);
  }
  return draw(rows);
}

const options = readOptions();
const lengths = sizes("n", options.n ?? (options.quick ? "16,32,64,128" : "64,128,256,512,1024"));
const [width, heads, repeats] = (["width", "heads", "repeats"] as const).map((name) => {
  const [n, ...more] = sizes(name, options[name]);
  return more.length === 0 ? n! : fail(`--${name}: expected one integer\n${USAGE}`, 2);
}) as [number, number, number];
if (width % heads !== 0) fail(`--width: expected a multiple of the ${heads} heads, got ${width}`, 2);

const { layer, first } = randomLayer(width, heads);
const runs = new Map<Way, Run>();
for (const way of WAYS) {
  console.error(`decode: ${way} ...`);
  generate(way, layer, first, [Math.min(4, ...lengths)]); // loads and warms up
  const all = Array.from({ length: repeats }, () => generate(way, layer, first, lengths));

  // All sums of this text run in doubles, in the order of the slots, and are rounded at the same places in all
  // three ways; what is hidden is left out. So they may not differ by a bit, and are finite.
  const reference = runs.get("everything") ?? all[0]!;
  for (const run of all) {
    const off = run.tokens.data.findIndex(
      (x, n) => !Number.isFinite(x) || !Object.is(x, reference.tokens.data[n]),
    );
    if (off < 0) continue;
    const [t, got, want] = [Math.floor(off / width) + 1, run.tokens.data[off], reference.tokens.data[off]];
    fail(`${way}: token ${t}: expected the same as with everything made again, ${want}, got ${got}`, 1);
  }
  runs.set(way, fastest(all, lengths));

  for (const n of options.json ? lengths : []) {
    const { multiplyAdds, moved } = cost(way, n, width, heads);
    const counts = { multiply_adds: multiplyAdds, moved, held: runs.get(way)!.held.get(n)! };
    const seconds = runs.get(way)!.seconds.get(n)!;
    console.log(JSON.stringify({ port: "typescript", way, tokens: n, seconds, ...counts }));
  }
}

if (!options.json) {
  console.log(`One layer, width ${width}, ${heads} heads, TypeScript, float32; x n: n times the cache's.\n`);
  console.log(costTable(runs, lengths, width, heads));
  const longest = lengths.at(-1)!;
  const held = decimal(runs.get("cache")!.held.get(longest)! / 2 ** 20, 2);
  console.log(`\nThe cache holds ${held} MiB after ${longest} tokens; the other ways hold nothing.`);
}
