//! Fixed patterns of sparse attention: which pairs of a query i and a key j are visible at all.
//!
//! ```text
//! window    -left <= j - i <= right
//! dilated   -left·d <= j - i <= right·d, and j - i is a multiple of d
//! strided   j <= i, and i - j < stride or a multiple of it
//! fixed     j <= i, and j is in i's block of `stride` or among the last `summary` of its own
//! global    as window, or i or j is one of the tokens
//! bigbird   by blocks: near, among the first `global_blocks`, or drawn for the block of i
//! blocks    by blocks: as a table says
//! ```
//!
//! A pattern is told in two ways: the condition itself, which [`sparse_mask`] asks of every pair, and [`Pattern::keys`],
//! which lists the keys of a query without a look at the others: that is what makes sparse attention cheap.
//!
//! Letters: Tq and Tk query and key lengths.
//!
//! Sources: Beltagy et al., "Longformer", 2020, section 3.1 (window, dilated, global); Child et al.,
//! "Generating Long Sequences with Sparse Transformers", 2019, section 4 (strided, fixed); Zaheer et
//! al., "Big Bird", 2020, section 2.

use std::collections::BTreeSet;
use std::ops::Range;

use ndarray::{Array2, ArrayRef2};

use crate::allocation::Purpose;
use crate::checks::{check_keys, check_pattern};
use crate::errors::Result;
use crate::philox::words;

/// A pattern; sizes are counts of positions, or of blocks where that is said.
#[derive(Debug, Clone, PartialEq)]
pub enum Pattern<'a> {
    /// The keys beside the query.
    Window {
        /// How many before it.
        left: usize,
        /// How many after it.
        right: usize,
    },
    /// A window with gaps.
    Dilated {
        /// How many keys before the query.
        left: usize,
        /// How many after it.
        right: usize,
        /// The distance from one to the next, >= 1.
        dilation: usize,
    },
    /// The last few keys, and every `stride`-th before them.
    Strided {
        /// >= 1
        stride: usize,
    },
    /// The block of the query so far, and the end of every block before it.
    Fixed {
        /// Length of a block, >= 1.
        stride: usize,
        /// How many positions at the end of a block all later queries see, at most `stride`.
        summary: usize,
    },
    /// A window, and tokens that see all and are seen by all.
    Global {
        /// How many keys before the query.
        left: usize,
        /// How many after it.
        right: usize,
        /// Their positions, in any order.
        tokens: Vec<usize>,
    },
    /// Blocks near the query's, the first ones, and random ones.
    BigBird {
        /// Length of a block, >= 1.
        block: usize,
        /// How many blocks on each side of the query's own.
        window: usize,
        /// How many blocks, from the first on, see all and are seen by all.
        global_blocks: usize,
        /// How many of the other blocks are drawn for a block of queries.
        random: usize,
        /// Of the draws, at most 2^53 - 1.
        seed: u64,
    },
    /// Any pattern of blocks.
    Blocks {
        /// Length of a block, >= 1.
        block: usize,
        /// (ceil(Tq / block), ceil(Tk / block)), true = visible.
        mask: &'a ArrayRef2<bool>,
    },
}

/// Whether a query sees the key at a position.
type Sees<'p> = Box<dyn Fn(usize) -> bool + 'p>;

impl Pattern<'_> {
    /// The condition for query `i` among `kv_len` keys.
    fn sees(&self, i: usize, kv_len: usize) -> Sees<'_> {
        match self {
            // 1. window: the neighbours on both sides
            &Self::Window { left, right } => Box::new(move |j| near(i, j, left, right)),

            // 2. dilated: the same, a step of `dilation` apart
            &Self::Dilated { left, right, dilation } => Box::new(move |j| {
                let whole = i.abs_diff(j).is_multiple_of(dilation);
                whole && near(i, j, left.saturating_mul(dilation), right.saturating_mul(dilation))
            }),

            // 3. strided: the last ones, and a column of the past
            &Self::Strided { stride } => {
                Box::new(move |j| j <= i && (i - j < stride || (i - j).is_multiple_of(stride)))
            }

            // 4. fixed: the own block so far, and the summaries of those before it
            &Self::Fixed { stride, summary } => Box::new(move |j| {
                j <= i && (j / stride == i / stride || j % stride >= stride - summary)
            }),

            // 5. global: a window, and the tokens in both directions
            Self::Global { left, right, tokens } => Box::new(move |j| {
                near(i, j, *left, *right) || tokens.contains(&i) || tokens.contains(&j)
            }),

            // 6. bigbird: near blocks, global ones in both directions, and the draws of the query's block
            &Self::BigBird { block, window, global_blocks, random, seed } => {
                let (a, blocks) = (i / block, kv_len.div_ceil(block));
                let fixed =
                    move |c| near(a, c, window, window) || a < global_blocks || c < global_blocks;
                let drawn = draw((0..blocks).filter(|&c| !fixed(c)).collect(), a, random, seed);
                Box::new(move |j| fixed(j / block) || drawn.contains(&(j / block)))
            }

            // 7. blocks: as the table says
            Self::Blocks { block, mask } => Box::new(move |j| mask[[i / block, j / block]]),
        }
    }

    /// The keys that query `i` of `q_len` sees among `kv_len`, in ascending order.
    ///
    /// # Errors
    /// `InvalidConfig`; `ShapeMismatch` for a table of blocks that does not fit.
    ///
    /// ```
    /// use rosetta_attention::Pattern;
    /// assert_eq!(Pattern::Strided { stride: 3 }.keys(7, 9, 9)?, [1, 4, 5, 6, 7]);
    /// # Ok::<(), rosetta_attention::AttentionError>(())
    /// ```
    pub fn keys(&self, i: usize, q_len: usize, kv_len: usize) -> Result<Vec<usize>> {
        check_keys("keys", self, i, q_len, kv_len)?;
        Ok(self.listed(i, kv_len))
    }

    /// `keys` for arguments that were checked.
    pub(crate) fn listed(&self, i: usize, kv_len: usize) -> Vec<usize> {
        let exists = |j: &usize| *j < kv_len;
        match self {
            &Self::Window { left, right } => beside(i, left, right, kv_len).collect(),
            &Self::Dilated { left, right, dilation } => {
                let first = i - left.min(i / dilation) * dilation;
                let last = i.saturating_add(right.saturating_mul(dilation));
                (first..=last).step_by(dilation).take_while(exists).collect()
            }
            &Self::Strided { stride } => {
                let recent = (i + 1).saturating_sub(stride);
                let column = (i % stride..recent).step_by(stride);
                column.chain(recent..i + 1).take_while(exists).collect()
            }
            &Self::Fixed { stride, summary } => {
                let own = i / stride * stride;
                let ends = (stride..own + 1).step_by(stride).flat_map(|end| end - summary..end);
                ends.chain(own..i + 1).take_while(exists).collect()
            }
            Self::Global { tokens, .. } if tokens.contains(&i) => (0..kv_len).collect(),
            Self::Global { left, right, tokens } => {
                let tokens = tokens.iter().copied().filter(exists);
                let keys: BTreeSet<_> = beside(i, *left, *right, kv_len).chain(tokens).collect();
                keys.into_iter().collect()
            }
            &Self::BigBird { block, global_blocks, .. } if i / block < global_blocks => {
                (0..kv_len).collect()
            }
            &Self::BigBird { block, window, global_blocks, random, seed } => {
                let (a, blocks) = (i / block, kv_len.div_ceil(block));
                let near = beside(a, window, window, blocks);
                let mut seen: BTreeSet<_> = near.chain(0..global_blocks.min(blocks)).collect();
                let others = (0..blocks).filter(|c| !seen.contains(c)).collect();
                seen.extend(draw(others, a, random, seed));
                positions(seen, block, kv_len)
            }
            Self::Blocks { block, mask } => {
                let row = mask.row(i / block);
                let seen = row.iter().enumerate().filter(|&(_, &visible)| visible);
                positions(seen.map(|(c, _)| c), *block, kv_len)
            }
        }
    }
}

/// The pattern as a table (Tq, Tk), true = attend. `causal`: and j <= i.
///
/// # Errors
/// `InvalidConfig`; `ShapeMismatch` for a table of blocks that does not fit.
///
/// ```
/// use ndarray::array;
/// use rosetta_attention::{Pattern, sparse_mask};
/// let table = sparse_mask(&Pattern::Window { left: 1, right: 1 }, 2, 3, true)?;
/// assert_eq!(table, array![[true, false, false], [true, true, false]]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn sparse_mask(
    pattern: &Pattern<'_>,
    q_len: usize,
    kv_len: usize,
    causal: bool,
) -> Result<Array2<bool>> {
    check_pattern("sparse_mask", pattern, q_len, kv_len)?;
    let purpose = Purpose::option("sparse_mask", "kv_len");
    let mut table = purpose.array((q_len, kv_len), false)?; // (Tq, Tk)
    for (i, mut row) in table.rows_mut().into_iter().enumerate() {
        let sees = pattern.sees(i, kv_len);
        for (j, visible) in row.indexed_iter_mut() {
            *visible = sees(j) && (!causal || j <= i);
        }
    }
    Ok(table)
}

/// -left <= j - i <= right
fn near(i: usize, j: usize, left: usize, right: usize) -> bool {
    j >= i.saturating_sub(left) && j <= i.saturating_add(right)
}

/// The positions before `end` that are near i.
fn beside(i: usize, left: usize, right: usize, end: usize) -> Range<usize> {
    i.saturating_sub(left)..end.min(i.saturating_add(right).saturating_add(1))
}

/// The positions of blocks that are in ascending order.
fn positions(blocks: impl IntoIterator<Item = usize>, block: usize, kv_len: usize) -> Vec<usize> {
    let of = |c: usize| c * block..kv_len.min((c + 1).saturating_mul(block));
    blocks.into_iter().flat_map(of).collect()
}

/// Up to `random` of the blocks `others`, drawn for the block `a` of queries.
fn draw(mut others: Vec<usize>, a: usize, random: usize, seed: u64) -> Vec<usize> {
    let count = random.min(others.len());
    let words = words(seed, (a as u64).wrapping_mul(random as u64), count);
    let place = |word: u32, left: usize| ((u64::from(word) * left as u64) >> 32) as usize;
    words.map(|word| others.remove(place(word, others.len()))).collect()
}
