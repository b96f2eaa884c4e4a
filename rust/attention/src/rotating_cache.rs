//! The rotating KV cache: a window of the last positions, and some first ones that stay.
//!
//! ```text
//! the query at position p sees j <= p  with  p - j < W  or  j < keep
//! ```
//!
//! What no later query can see is forgotten when new tokens come, so a row never holds more than keep + W - 1
//! positions and the chunk that came last. A chunk longer than the window attends as in a full cache with that
//! mask, since all of it is added before anything of it is forgotten. First positions that stay are attention
//! sinks: without them the softmax loses what it rests on.
//!
//! Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, Tq queries, L slots of the longest row,
//! W window, D and Dv head sizes.
//!
//! Source: Beltagy et al., "Longformer", 2020, section 3.1 (the window); Xiao et al., "Efficient Streaming
//! Language Models with Attention Sinks", 2023, section 3.2 (what stays).

use ndarray::{Array1, ArrayRef4, Ix4};

use crate::allocation::Purpose;
use crate::cache::{Append, Cache, Held, Sizes, Stats};
use crate::cache_content::{Column, Contents, Description};
use crate::cache_rope::{CacheRope, RopeAt};
use crate::cast::Stored;
use crate::checks::{
    check_append, check_cache_config, check_no_tokens, check_rollback, check_truncate, check_window,
};
use crate::errors::Result;
use crate::kv_slots::KvSlots;
use crate::masks::steps;
use crate::merge::OutputLse;
use crate::rope::Rope;
use crate::rows::Rows;
use crate::sdpa::{Sdpa, Steps};
use crate::simd::Tier;

/// Keys and values of a window. A call that fails leaves the cache as it was.
#[derive(Debug, Clone)]
pub struct RotatingCache<S> {
    slots: KvSlots<S>,
    reach: Reach,
}

/// How far queries see.
#[derive(Debug, Clone, Copy)]
struct Reach {
    window: usize,
    keep: usize,
}

impl Reach {
    /// The first position in the window of a query at position `p` that is not one of those that stay.
    fn oldest(self, p: i64) -> i64 {
        p.saturating_sub(steps(self.window)).saturating_add(1).max(steps(self.keep))
    }

    /// Whether the query at position `p` sees position `j`.
    fn sees(self, p: i64, j: i64) -> bool {
        j <= p && (p.saturating_sub(j) < steps(self.window) || j < steps(self.keep))
    }
}

impl<S: Stored> RotatingCache<S> {
    /// An empty cache. `window`: W >= 1, how many positions a query sees, its own among them; `keep`: how many
    /// first ones it sees besides.
    ///
    /// # Errors
    /// `InvalidConfig`.
    ///
    /// ```
    /// use ndarray::{Array4, array};
    /// use rosetta_attention::{Append, Cache, RotatingCache};
    /// let mut cache = RotatingCache::<f32>::new(1, 1, 1, 1, 2, 1)?; // W 2, the first one stays
    /// let one = Array4::ones((1, 1, 1, 1));
    /// for _ in 0..5 {
    ///     cache.append(&one, &one, &Append::default())?;
    /// }
    /// assert_eq!(cache.rows().positions(), array![[0, 3, 4]]);
    /// # Ok::<(), rosetta_attention::AttentionError>(())
    /// ```
    pub fn new(
        batch: usize,
        num_kv_heads: usize,
        head_dim: usize,
        value_dim: usize,
        window: usize,
        keep: usize,
    ) -> Result<Self> {
        check_window("rotating_cache", window)?;
        let sizes = Sizes { batch, num_kv_heads, head_dim, value_dim };
        check_cache_config("rotating_cache", sizes, None)?;
        let purpose = Purpose::option("rotating_cache", "batch");
        Ok(Self { slots: KvSlots::new(purpose, sizes, 0)?, reach: Reach { window, keep } })
    }

    /// The same cache, with keys rotated at their positions when they come, and queries at theirs.
    ///
    /// # Errors
    /// As for [`KvCache::with_rope`](crate::KvCache::with_rope).
    pub fn with_rope(self, rope: Rope) -> Result<Self> {
        self.with_rope_at(rope, RopeAt::Append)
    }

    /// `with_rope`, with a choice of when keys are rotated.
    ///
    /// # Errors
    /// Those of `with_rope`.
    pub fn with_rope_at(mut self, rope: Rope, at: RopeAt) -> Result<Self> {
        self.slots.rope = CacheRope::new("rotating_cache", self.slots.sizes, rope, at)?;
        Ok(self)
    }
}

impl<S: Stored> Cache<S> for RotatingCache<S> {
    fn sizes(&self) -> Sizes {
        self.slots.sizes
    }

    fn rows(&self) -> &Rows {
        &self.slots.rows
    }

    fn rope(&self) -> Option<&Rope> {
        self.slots.rope.of_queries()
    }

    fn lengths(&self) -> Array1<i64> {
        self.slots.rows.next()
    }

    fn check_append(&self, k: &ArrayRef4<S>, v: &ArrayRef4<S>, options: &Append<'_>) -> Result<()> {
        check_append("append", k.dim(), v.dim(), options, self.slots.sizes)?;
        check_no_tokens("append", options)
    }

    fn append(&mut self, k: &ArrayRef4<S>, v: &ArrayRef4<S>, options: &Append<'_>) -> Result<()> {
        // 1. check: everything, before anything is changed
        self.check_append(k, v, options)?;
        let counts = options.counts(self.slots.sizes.batch, k.dim().2); // (B)
        self.slots.grow(self.longest_after(&counts))?; // fails before anything is forgotten

        // 2. forget: what the first of the new queries cannot see, no later one can
        for b in (0..counts.len()).filter(|&b| counts[b] > 0) {
            let first = self.slots.rows.next_of(b);
            self.slots.retain(b, |j| self.reach.sees(first, j));
        }

        // 3. write: each row at its own end, however long the chunk is
        self.slots.write(k, v, options);

        // 4. advance: positions go on, whatever was forgotten
        self.slots.rows.advance(&counts);
        Ok(())
    }

    fn longest_after(&self, counts: &[usize]) -> usize {
        let held_then = |(b, &count): (usize, &usize)| {
            let (row, first) = (self.slots.rows.row(b), self.slots.rows.next_of(b));
            let stay = |j: &&i64| count == 0 || self.reach.sees(first, **j);
            row.iter().filter(stay).count() + count
        };
        counts.iter().enumerate().map(held_then).max().unwrap_or(0)
    }

    fn attend_steps(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
    ) -> Result<Steps<S::Compute>> {
        self.check_attend(q.dim(), self.slots.rows.longest(), options)?;

        // 5. align: the last query stands on the last position of its row
        let start = self.slots.rows.align(q.dim().2, options.mask.q_offset); // (B)

        // 6. attend: over what is held, each query over its own window
        self.slots.attend(q, &start, options, |p, j| self.reach.sees(p, j))
    }

    fn attend_simd(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
        tier: Option<Tier>,
    ) -> Result<OutputLse<S::Compute, Ix4>> {
        self.check_attend(q.dim(), self.slots.rows.longest(), options)?;
        self.slots.attend_simd(q, options, tier, Some((self.reach.window, self.reach.keep)))
    }

    fn truncate(&mut self, lengths: &[i64]) -> Result<()> {
        // 7. truncate: back to a length whose window is still held
        check_truncate("truncate", lengths, &self.slots.rows.next())?;
        check_rollback("truncate", lengths, &self.slots.rows, |n| self.reach.oldest(n))?;
        for (b, &length) in lengths.iter().enumerate() {
            self.slots.retain(b, |j| j < length);
            self.slots.rows.set_next(b, length);
        }
        Ok(())
    }

    fn reset(&mut self) {
        // 8. reset: a cache of length 0; the memory is kept
        self.slots.rows.clear();
    }

    fn read(&self) -> Held<S> {
        // 9. read: what the next query could see
        let mut seen = self.clone();
        for b in 0..self.slots.sizes.batch {
            let next = self.slots.rows.next_of(b);
            seen.slots.retain(b, |j| self.reach.sees(next, j));
        }
        seen.slots.read()
    }

    fn reorder(&mut self, index: &[i64]) -> Result<()> {
        self.slots.reorder(index)
    }

    fn fork(&self) -> Box<dyn Cache<S>> {
        Box::new(self.clone())
    }

    fn stats(&self) -> Stats {
        self.slots.stats()
    }

    fn describe(&self) -> Description {
        Description::of_kv::<S>("rotating", self.slots.sizes)
            .with("rope", self.slots.rope.of_held().is_some())
            .with("window", self.reach.window)
            .with("keep", self.reach.keep)
    }

    fn columns(&self) -> Vec<Column> {
        Column::of_kv::<S>(self.slots.sizes)
    }

    fn contents(&self) -> Contents {
        self.slots.contents()
    }

    fn restore(&mut self, rows: Rows, contents: &Contents) -> Result<()> {
        self.slots.restore(rows, contents, 0)
    }
}
