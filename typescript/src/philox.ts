/**
 * Philox4x32-10: random words by their number, without a state.
 *
 *     words 4c .. 4c + 3 = ten rounds of (counter c, key seed)
 *
 * Whoever knows the seed knows word n, in any order, on any machine and in any language: a dropped weight
 * does not depend on how the work was cut into tiles or threads.
 *
 * Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011, section 3.3.
 */

import { allocated } from "./tensor.ts";

const MULTIPLIERS = [0xd2511f53, 0xcd9e8d57] as const;
const INCREMENTS = [0x9e3779b9, 0xbb67ae85] as const; // of the golden ratio and sqrt(3)
const ROUNDS = 10;
const WORD = 2 ** 32;

/**
 * Words `first` to `first + count - 1` of the stream of `seed`, (count,).
 *
 * @param seed 0 .. 2^53 - 1, the key: its low and its high 32 bits.
 * @throws InvalidConfig for a count without memory for it.
 */
export function philoxWords(seed: number, first: number, count: number): Uint32Array {
  const words = allocated(Uint32Array, count); // (count,)
  const [start, skipped] = [Math.floor(first / 4), first % 4];
  for (let block = 0; 4 * block < skipped + count; block++) {
    // 1. counter: start + block in 64 bits, the two low words of four; a double would round the sum
    const low = (start % WORD) + block;
    let [x0, x1, x2, x3] = [low >>> 0, Math.floor(start / WORD) + Math.floor(low / WORD), 0, 0];
    let [key0, key1] = [seed >>> 0, Math.floor(seed / WORD)];

    // 2. rounds: two products of 32 by 32 bits each, whose halves trade places; the key moves on
    for (let round = 0; round < ROUNDS; round++) {
      const [high0, low0] = [highWord(MULTIPLIERS[0], x0), Math.imul(MULTIPLIERS[0], x0)];
      const [high2, low2] = [highWord(MULTIPLIERS[1], x2), Math.imul(MULTIPLIERS[1], x2)];
      [x0, x1, x2, x3] = [high2 ^ x1 ^ key0, low2, high0 ^ x3 ^ key1, low0];
      key0 = (key0 + INCREMENTS[0]) | 0;
      key1 = (key1 + INCREMENTS[1]) | 0;
    }

    // 3. words: those of this block that were asked for
    for (const [lane, word] of [x0, x1, x2, x3].entries()) {
      const n = 4 * block + lane - skipped;
      if (n >= 0 && n < count) words[n] = word; // (count,)
    }
  }
  return words;
}

/** The upper 32 of the 64 bits of a · b, by halves: a double would lose the lowest 11 bits of the product. */
function highWord(a: number, b: number): number {
  const [a0, a1, b0, b1] = [a & 0xffff, a >>> 16, b & 0xffff, b >>> 16];
  const middle = a1 * b0 + ((a0 * b0) >>> 16); // below 2^32, as is every sum here
  const other = a0 * b1 + (middle & 0xffff);
  return a1 * b1 + (middle >>> 16) + (other >>> 16);
}
