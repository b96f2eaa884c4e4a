//! The cross-attention cache: keys and values of another sequence, written once and read many times.
//!
//! Every query sees all of that sequence, so nothing here is causal or windowed. Beams that share one source
//! reorder its rows along with their own.
//!
//! Letters: B batch, Hkv key/value heads, Hq query heads, T positions of the source, Tq queries, D and Dv head
//! sizes.
//!
//! Source: Vaswani et al., "Attention Is All You Need", 2017, section 3.2.3 (encoder-decoder attention).

use ndarray::{ArrayRef4, Ix4};

use crate::allocation::Purpose;
use crate::cache::{Append, Cache, Held, Sizes, Stats};
use crate::cache_content::{Column, Contents, Description};
use crate::cast::Stored;
use crate::checks::{
    check_append, check_cache_config, check_cross_attend, check_no_tokens, check_not_written,
    check_whole_rows,
};
use crate::errors::Result;
use crate::kv_slots::KvSlots;
use crate::merge::OutputLse;
use crate::rows::Rows;
use crate::sdpa::{Sdpa, Steps};
use crate::simd::Tier;

/// Keys (B, Hkv, T, D) and values (B, Hkv, T, Dv) of one append.
#[derive(Debug, Clone)]
pub struct CrossCache<S> {
    slots: KvSlots<S>,
    written: bool,
}

impl<S: Stored> CrossCache<S> {
    /// An empty cache.
    ///
    /// # Errors
    /// `InvalidConfig` when `num_kv_heads` or `head_dim` is 0, and for rows and heads of more than 2^53 numbers.
    pub fn new(
        batch: usize,
        num_kv_heads: usize,
        head_dim: usize,
        value_dim: usize,
    ) -> Result<Self> {
        let sizes = Sizes { batch, num_kv_heads, head_dim, value_dim };
        check_cache_config("cross_cache", sizes, None)?;
        let purpose = Purpose::option("cross_cache", "batch");
        Ok(Self { slots: KvSlots::new(purpose, sizes, 0)?, written: false })
    }
}

impl<S: Stored> Cache<S> for CrossCache<S> {
    fn sizes(&self) -> Sizes {
        self.slots.sizes
    }

    fn rows(&self) -> &Rows {
        &self.slots.rows
    }

    fn check_append(&self, k: &ArrayRef4<S>, v: &ArrayRef4<S>, options: &Append<'_>) -> Result<()> {
        check_not_written("append", self.written)?;
        check_append("append", k.dim(), v.dim(), options, self.slots.sizes)?;
        check_no_tokens("append", options)
    }

    fn append(&mut self, k: &ArrayRef4<S>, v: &ArrayRef4<S>, options: &Append<'_>) -> Result<()> {
        // 1. write once: until a reset, nothing is added to it
        self.check_append(k, v, options)?;
        let counts = options.counts(self.slots.sizes.batch, k.dim().2); // (B)
        self.slots.grow(self.longest_after(&counts))?;
        self.slots.write(k, v, options);
        self.slots.rows.advance(&counts);
        self.written = true;
        Ok(())
    }

    fn check_attend(
        &self,
        q: (usize, usize, usize, usize),
        slots: usize,
        options: &Sdpa<'_, S::Compute>,
    ) -> Result<()> {
        crate::checks::check_attend("attend", q, self.slots.sizes, slots, options)?;
        check_cross_attend("attend", &options.mask)
    }

    fn attend_steps(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
    ) -> Result<Steps<S::Compute>> {
        // 2. attend: over the whole source, wherever the queries stand
        self.check_attend(q.dim(), self.slots.rows.longest(), options)?;
        let start = self.slots.rows.align(q.dim().2, options.mask.q_offset); // (B)
        self.slots.attend(q, &start, options, |_, _| true)
    }

    fn attend_simd(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
        tier: Option<Tier>,
    ) -> Result<OutputLse<S::Compute, Ix4>> {
        self.check_attend(q.dim(), self.slots.rows.longest(), options)?;
        self.slots.attend_simd(q, options, tier, None)
    }

    fn truncate(&mut self, _lengths: &[i64]) -> Result<()> {
        check_not_written("truncate", true)
    }

    fn reset(&mut self) {
        self.slots.rows.clear();
        self.written = false;
    }

    fn read(&self) -> Held<S> {
        self.slots.read()
    }

    fn reorder(&mut self, index: &[i64]) -> Result<()> {
        // 3. reorder: the beams of one source have a copy each
        self.slots.reorder(index)
    }

    fn fork(&self) -> Box<dyn Cache<S>> {
        Box::new(self.clone())
    }

    fn stats(&self) -> Stats {
        self.slots.stats()
    }

    fn describe(&self) -> Description {
        Description::of_kv::<S>("cross", self.slots.sizes)
    }

    fn columns(&self) -> Vec<Column> {
        Column::of_kv::<S>(self.slots.sizes)
    }

    fn contents(&self) -> Contents {
        self.slots.contents()
    }

    fn restore(&mut self, rows: Rows, contents: &Contents) -> Result<()> {
        check_whole_rows("load", &rows)?;
        let written = rows.longest() > 0;
        self.slots.restore(rows, contents, 0)?;
        self.written = written;
        Ok(())
    }
}
