//! Random words that depend on a seed and an index alone: Philox4x32-10.
//!
//! ```text
//! word n of a seed = word n mod 4 of Philox(counter n div 4, key seed)
//! ```
//!
//! There is no state: any word can be had without those before it, so every language, tile and
//! thread draws the same ones.
//!
//! Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011, section 4.

use ndarray::Array1;

use crate::allocation::Purpose;
use crate::errors::Result;

/// What the first and the third word of a round are multiplied by.
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];

/// What the two words of the key grow by from round to round.
const INCREMENTS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// The words `first`, …, `first + count - 1` of `seed`: (count).
///
/// # Errors
/// `InvalidConfig` for more words than there is memory for.
///
/// ```
/// use rosetta_attention::philox_words;
/// assert_eq!(philox_words(0, 1, 2)?.to_vec(), [0xE169_C58D, 0xBC57_AC4C]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn philox_words(seed: u64, first: u64, count: usize) -> Result<Array1<u32>> {
    let mut memory = Purpose::option("philox_words", "count").array(count, 0)?; // (count)
    memory.iter_mut().zip(words(seed, first, count)).for_each(|(slot, word)| *slot = word);
    Ok(memory)
}

/// The words of [`philox_words`], one by one.
pub(crate) fn words(seed: u64, first: u64, count: usize) -> impl Iterator<Item = u32> {
    let skipped = (first % 4) as usize; // words of the first block that are not asked for
    let counters =
        (0..(skipped + count).div_ceil(4) as u64).map(move |n| (first / 4).wrapping_add(n));
    let words = counters.flat_map(move |counter| block(seed, counter)); // (4 · blocks)
    words.skip(skipped).take(count) // (count)
}

/// The four words of one block.
fn block(seed: u64, counter: u64) -> [u32; 4] {
    // 1. counter: the number of the block, in the two low ones of four words; the seed is the key
    let [mut x0, mut x1] = halves(counter);
    let [mut x2, mut x3] = [0, 0];
    let mut key = halves(seed);

    // 2. rounds: ten of them, each multiplies two words and mixes the halves of the products with the others
    for _ in 0..10 {
        let [low_0, high_0] = halves(u64::from(MULTIPLIERS[0]) * u64::from(x0));
        let [low_2, high_2] = halves(u64::from(MULTIPLIERS[1]) * u64::from(x2));
        [x0, x1, x2, x3] = [high_2 ^ x1 ^ key[0], low_2, high_0 ^ x3 ^ key[1], low_0];
        key = [key[0].wrapping_add(INCREMENTS[0]), key[1].wrapping_add(INCREMENTS[1])];
    }

    // 3. words: what the counter has become
    [x0, x1, x2, x3]
}

/// The low word and the high one.
fn halves(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        // The published test vectors of the generator that have an upper half of 0 in the counter.
        let zero = [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8];
        assert_eq!(block(0, 0), zero);
        assert_eq!(philox_words(0, 0, 4).unwrap().to_vec(), zero);
    }

    #[test]
    fn a_word_does_not_depend_on_where_the_call_starts() {
        let words = |seed, first, count| philox_words(seed, first, count).unwrap().to_vec();
        let all = words(1234567, 0, 23);
        for first in 0..9 {
            for count in [0, 1, 2, 5, 14] {
                let some = words(1234567, first, count);
                assert_eq!(some, all[first as usize..first as usize + count]);
            }
        }
        let far = u64::from(u32::MAX) * 4; // the counter leaves its low word
        assert_eq!(words(7, far, 8)[5], words(7, far + 5, 1)[0]);
        assert_ne!(words(7, far + 4, 4), words(7, 0, 4));
        assert_ne!(words(1 << 32, 0, 4), words(1, 0, 4));
    }

    #[test]
    fn words_beyond_all_memory_are_refused() {
        for count in [1_000_000_000_000_000, usize::MAX] {
            assert_eq!(philox_words(0, 3, count).unwrap_err().code(), "invalid_config");
        }
    }
}
