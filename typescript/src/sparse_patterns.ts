/**
 * Patterns of sparse attention: which pairs of positions see each other, as a rule and as lists.
 *
 * Each pattern is said twice: `sees(i, j)` for one pair, and `keys(i)` for all keys of a query in ascending
 * order, found without looking at the others. The first is the definition; the second is what makes it
 * sparse.
 *
 * Letters: i a query and Tq their number, j a key and Tk theirs; a and c blocks of queries and of keys.
 *
 * Sources: Beltagy et al., "Longformer", 2020 (window, dilated, global); Child et al., "Generating Long
 * Sequences with Sparse Transformers", 2019 (strided, fixed); Zaheer et al., "Big Bird", 2020 (bigbird).
 */

import { philoxWords } from "./philox.ts";
import type { BoolTensor } from "./tensor.ts";

export type SparsePattern =
  | { readonly type: "window"; readonly left: number; readonly right: number }
  | { readonly type: "dilated"; readonly left: number; readonly right: number; readonly dilation: number }
  | { readonly type: "strided"; readonly stride: number }
  | { readonly type: "fixed"; readonly stride: number; readonly summary: number }
  | {
      readonly type: "global";
      readonly left: number;
      readonly right: number;
      readonly tokens: readonly number[];
    }
  | {
      readonly type: "bigbird";
      readonly block: number;
      readonly window: number;
      readonly global: number;
      readonly random: number;
      readonly seed: number;
    }
  /** `mask` is (ceil(Tq / block), ceil(Tk / block)). */
  | { readonly type: "blocks"; readonly block: number; readonly mask: BoolTensor };

export interface Visibility {
  sees(i: number, j: number): boolean;
  /** Ascending. */
  keys(i: number): number[];
}

/** A pattern for Tq queries and Tk keys. Checks nothing. */
export function visibilityOf(pattern: SparsePattern, Tq: number, Tk: number): Visibility {
  // 1. window: near keys on both sides
  if (pattern.type === "window") {
    const { left, right } = pattern;
    return {
      sees: (i, j) => -left <= j - i && j - i <= right,
      keys: (i) => range(i - left, i + right + 1, Tk),
    };
  }

  // 2. dilated: a window with gaps, as many keys over a longer way
  if (pattern.type === "dilated") {
    const { left, right, dilation } = pattern;
    return {
      sees: (i, j) => (j - i) % dilation === 0 && -left * dilation <= j - i && j - i <= right * dilation,
      keys: (i) => {
        const before = Math.min(left, Math.floor(i / dilation)); // so many of them exist
        return range(i - before * dilation, i + right * dilation + 1, Tk, dilation);
      },
    };
  }

  // 3. strided: the last keys, and before them every stride-th
  if (pattern.type === "strided") {
    const { stride } = pattern;
    return {
      sees: (i, j) => j <= i && (i - j < stride || (i - j) % stride === 0),
      keys: (i) => {
        const near = i - stride + 1;
        return [...range(i % stride, near, Tk, stride), ...range(near, i + 1, Tk)];
      },
    };
  }

  // 4. fixed: the own block, and the last keys of every block before it
  if (pattern.type === "fixed") {
    const { stride, summary } = pattern;
    return {
      sees: (i, j) =>
        j <= i && (Math.floor(j / stride) === Math.floor(i / stride) || j % stride >= stride - summary),
      keys: (i) => {
        const own = Math.floor(i / stride) * stride;
        const summaries = range(0, own, own, stride).map((start) =>
          range(start + stride - summary, start + stride, Tk),
        );
        return [...summaries.flat(), ...range(own, i + 1, Tk)];
      },
    };
  }

  // 5. global: a window, and tokens that see all and are seen by all
  if (pattern.type === "global") {
    const { left, right } = pattern;
    const tokens = new Set(pattern.tokens);
    return {
      sees: (i, j) => tokens.has(i) || tokens.has(j) || (-left <= j - i && j - i <= right),
      keys: (i) => {
        if (tokens.has(i)) return range(0, Tk, Tk);
        const seen = [...tokens].filter((token) => token < Tk);
        return ascending([...range(i - left, i + right + 1, Tk), ...seen]);
      },
    };
  }

  // 6. bigbird: blocks that are near, global, or drawn by chance
  if (pattern.type === "bigbird") {
    const { block, window, global } = pattern;
    const blocks = Math.ceil(Tk / block);
    const drawn = Array.from(
      { length: Math.ceil(Tq / block) },
      (_, a) => new Set(randomBlocks(pattern, a, blocks)),
    );
    const seesBlock = (a: number, c: number) =>
      Math.abs(a - c) <= window || a < global || c < global || drawn[a]!.has(c);
    return {
      sees: (i, j) => seesBlock(Math.floor(i / block), Math.floor(j / block)),
      keys: (i) => {
        const a = Math.floor(i / block);
        if (a < global) return range(0, Tk, Tk);
        const fixed = [...range(0, global, blocks), ...range(a - window, a + window + 1, blocks)];
        return ascending([...fixed, ...drawn[a]!]).flatMap((c) => range(c * block, (c + 1) * block, Tk));
      },
    };
  }

  // 7. blocks: those that a table names
  const { block, mask } = pattern;
  const columns = mask.shape[1]!;
  return {
    sees: (i, j) => mask.data[Math.floor(i / block) * columns + Math.floor(j / block)] !== 0,
    keys: (i) => {
      const row = Math.floor(i / block) * columns;
      const seen = range(0, columns, columns).filter((c) => mask.data[row + c] !== 0);
      return seen.flatMap((c) => range(c * block, (c + 1) * block, Tk));
    },
  };
}

/**
 * The random blocks of keys for block `a` of queries: draws without putting back, from the blocks that are
 * neither near nor global. A draw picks the place floor(word · count / 2^32) among those that are left.
 */
function randomBlocks(
  { window, global, random, seed }: SparsePattern & { type: "bigbird" },
  a: number,
  blocks: number,
): number[] {
  if (a < global) return [];
  const left = range(global, blocks, blocks).filter((c) => Math.abs(a - c) > window);
  const words = philoxWords(seed, a * random, Math.min(random, left.length)); // (draws,)
  return Array.from(words, (word) => left.splice(Math.floor((word * left.length) / 2 ** 32), 1)[0]!);
}

/** from, from + step, ... below `to`, but only what is in 0 .. end - 1; a step is only for `from` >= 0. */
function range(from: number, to: number, end: number, step: number = 1): number[] {
  const first = Math.max(from, 0);
  const count = Math.max(0, Math.ceil((Math.min(to, end) - first) / step));
  return Array.from({ length: count }, (_, n) => first + n * step);
}

function ascending(list: number[]): number[] {
  return [...new Set(list)].sort((x, y) => x - y);
}
