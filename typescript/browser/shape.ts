/** What the visitor asks for: a shape, read from a form or from the address of the page. */

export interface Shape {
  readonly heads: number;
  readonly kvHeads: number;
  readonly queries: number;
  readonly keys: number;
  readonly headDim: number;
  readonly causal: boolean;
  readonly threads: number;
}

export const PRESETS: Readonly<Record<string, Omit<Shape, "threads">>> = {
  "prefill, 512 tokens": { heads: 8, kvHeads: 8, queries: 512, keys: 512, headDim: 64, causal: false },
  "prefill, 2048, causal": { heads: 2, kvHeads: 2, queries: 2048, keys: 2048, headDim: 64, causal: true },
  "decode on 4096 keys": { heads: 32, kvHeads: 8, queries: 1, keys: 4096, headDim: 128, causal: false },
  "a small encoder": { heads: 12, kvHeads: 12, queries: 32, keys: 32, headDim: 32, causal: false },
};

/** The least and the most of each number: a page should answer within seconds. */
const LIMITS = {
  heads: [1, 64],
  kvHeads: [1, 64],
  queries: [1, 8192],
  keys: [1, 32768],
  headDim: [1, 256],
  threads: [1, 64],
} as const;
const MOST_OPERATIONS = 1e11;

/** The same shape as the part of an address behind `#`. */
export function toHash(shape: Shape): string {
  const fields = new URLSearchParams();
  for (const [name, value] of Object.entries(shape)) fields.set(name, String(value));
  return fields.toString();
}

/** Reads what {@link toHash} wrote, or the fields of a form; what is absent is taken from `otherwise`. */
export function readShape(fields: URLSearchParams, otherwise: Shape): Shape {
  const number = (name: keyof typeof LIMITS) => Number(fields.get(name) ?? otherwise[name]);
  const causal = fields.get("causal") ?? String(otherwise.causal);
  return {
    heads: number("heads"),
    kvHeads: number("kvHeads"),
    queries: number("queries"),
    keys: number("keys"),
    headDim: number("headDim"),
    causal: causal === "true" || causal === "on",
    threads: number("threads"),
  };
}

const LABELS: Readonly<Record<keyof typeof LIMITS, string>> = {
  heads: "query heads",
  kvHeads: "KV heads",
  queries: "queries",
  keys: "keys",
  headDim: "head size",
  threads: "threads",
};

/** What is wrong with a shape, in a sentence; null when nothing is. */
export function fault(shape: Shape): string | null {
  for (const [name, [least, most]] of Object.entries(LIMITS)) {
    const value = shape[name as keyof typeof LIMITS];
    if (!Number.isInteger(value) || value < least || value > most) {
      return `${LABELS[name as keyof typeof LIMITS]}: a whole number from ${least} to ${most}, please`;
    }
  }
  const { heads, kvHeads } = shape;
  if (heads % kvHeads !== 0) return `${heads} query heads cannot share ${kvHeads} KV heads evenly`;
  if (operationsOf(shape, shape.queries) > MOST_OPERATIONS) {
    return `that is ${(operationsOf(shape, shape.queries) / 1e9).toFixed(0)} billion operations, more than a page should ask for at once (${MOST_OPERATIONS / 1e9})`;
  }
  return null;
}

/** Multiplications and additions of the last `rows` queries of all heads: the last one stands on the last key. */
export function operationsOf(shape: Shape, rows: number): number {
  const { heads, queries, keys, headDim, causal } = shape;
  let pairs = 0;
  for (let i = queries - rows; i < queries; i++) {
    pairs += causal ? Math.max(0, i + keys - queries + 1) : keys;
  }
  return 4 * heads * pairs * headDim;
}
