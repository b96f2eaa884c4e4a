//! The contiguous KV cache: keys and values of the past, one block of memory, per-row lengths.
//!
//! Prefill appends many positions, decode one at a time; `attend` gives the same answer either
//! way. Rows of a batch have lengths of their own: what lies beyond a row's length is junk and
//! never visible. A cache of halves takes half the memory, and attends in f32.
//!
//! Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, Tq queries, L longest
//! row, D and Dv head sizes.
//!
//! Source: Pope et al., "Efficiently Scaling Transformer Inference", 2022, section 3 (the cache
//! and its phases).

use ndarray::{Array3, ArrayRef4, ArrayView4, Ix4};

use crate::allocation::Purpose;
use crate::cache::{Append, Cache, Held, Sizes, Stats};
use crate::cache_content::{Column, Contents, Description};
use crate::cache_rope::{CacheRope, RopeAt};
use crate::cast::Stored;
use crate::checks::{
    check_append, check_cache_config, check_no_tokens, check_room, check_truncate,
};
use crate::errors::Result;
use crate::eviction::{Evidence, Policy, check_eviction, positions_that_stay};
use crate::kv_slots::KvSlots;
use crate::merge::OutputLse;
use crate::rope::Rope;
use crate::rows::Rows;
use crate::sdpa::{Sdpa, Steps};
use crate::simd::Tier;
use crate::track::Track;

/// Keys (B, Hkv, L, D) and values (B, Hkv, L, Dv). A call that fails leaves the cache as it was.
#[derive(Debug, Clone)]
pub struct KvCache<S> {
    slots: KvSlots<S>,
    capacity: Option<usize>,
}

impl<S: Stored> KvCache<S> {
    /// An empty cache. `capacity`: most positions a row may hold; `None` = grows by doubling.
    ///
    /// # Errors
    /// `InvalidConfig` when `num_kv_heads` or `head_dim` is 0, and for a cache of more than 2^53 numbers.
    ///
    /// ```
    /// use ndarray::{Array4, array};
    /// use rosetta_attention::{Append, Cache, KvCache, Sdpa};
    /// let mut cache = KvCache::<f32>::new(1, 1, 1, 1, None)?;
    /// for value in [1.0, 2.0, 6.0] {
    ///     cache.append(&Array4::ones((1, 1, 1, 1)), &array![[[[value]]]], &Append::default())?;
    /// }
    /// let output = cache.attend(&Array4::zeros((1, 1, 1, 1)), &Sdpa::default())?;
    /// assert_eq!((cache.len(), output), (3, array![[[[3.0]]]]));
    /// # Ok::<(), rosetta_attention::AttentionError>(())
    /// ```
    pub fn new(
        batch: usize,
        num_kv_heads: usize,
        head_dim: usize,
        value_dim: usize,
        capacity: Option<usize>,
    ) -> Result<Self> {
        let sizes = Sizes { batch, num_kv_heads, head_dim, value_dim };
        check_cache_config("kv_cache", sizes, capacity)?;
        let purpose = Purpose::option("kv_cache", "capacity");
        Ok(Self { slots: KvSlots::new(purpose, sizes, capacity.unwrap_or(0))?, capacity })
    }

    /// The same cache, with keys rotated at their positions when they come, and queries at theirs.
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`: also for an offset, and for a scaling that depends on the length.
    pub fn with_rope(self, rope: Rope) -> Result<Self> {
        self.with_rope_at(rope, RopeAt::Append)
    }

    /// `with_rope`, with a choice of when keys are rotated.
    ///
    /// # Errors
    /// Those of `with_rope`.
    pub fn with_rope_at(mut self, rope: Rope, at: RopeAt) -> Result<Self> {
        self.slots.rope = CacheRope::new("kv_cache", self.slots.sizes, rope, at)?;
        Ok(self)
    }

    /// The same cache, in which every attend from now on adds to each slot the weights that it gives it.
    ///
    /// # Errors
    /// `InvalidConfig` where there is no memory for the sums.
    pub fn with_track(mut self) -> Result<Self> {
        let purpose = Purpose::option("kv_cache", "track");
        let room = self.capacity.unwrap_or(0).max(self.slots.rows.longest());
        self.slots.track = Track::new(purpose, self.slots.sizes, room)?;
        Ok(self)
    }

    /// Whether it is such a cache.
    pub(crate) fn is_tracking(&self) -> bool {
        self.slots.track.is_on()
    }

    /// `evict_by` of what was checked, with a budget for each row.
    pub(crate) fn keep_chosen(
        &mut self,
        policy: &Policy<'_, S::Compute>,
        budgets: &[usize],
    ) -> Result<()> {
        for (b, stay) in positions_that_stay(policy, self, budgets)?.iter().enumerate() {
            self.slots.retain(b, |j| stay.binary_search(&j).is_ok());
        }
        Ok(())
    }

    /// L, the length of the longest row.
    pub fn len(&self) -> usize {
        self.slots.rows.longest()
    }

    /// Whether no row holds anything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A view (B, Hkv, L, D); what lies beyond a row's length is junk.
    pub fn keys(&self) -> ArrayView4<'_, S> {
        self.slots.keys()
    }

    /// A view (B, Hkv, L, Dv); what lies beyond a row's length is junk.
    pub fn values(&self) -> ArrayView4<'_, S> {
        self.slots.values()
    }
}

impl<S: Stored> Cache<S> for KvCache<S> {
    fn sizes(&self) -> Sizes {
        self.slots.sizes
    }

    fn rows(&self) -> &Rows {
        &self.slots.rows
    }

    fn rope(&self) -> Option<&Rope> {
        self.slots.rope.of_queries()
    }

    fn check_append(&self, k: &ArrayRef4<S>, v: &ArrayRef4<S>, options: &Append<'_>) -> Result<()> {
        check_append("append", k.dim(), v.dim(), options, self.slots.sizes)?;
        check_no_tokens("append", options)?;
        let counts = options.counts(self.slots.sizes.batch, k.dim().2); // (B)
        check_room("append", self.longest_after(&counts), self.capacity)
    }

    fn append(&mut self, k: &ArrayRef4<S>, v: &ArrayRef4<S>, options: &Append<'_>) -> Result<()> {
        // 1. check: everything, before anything is changed
        self.check_append(k, v, options)?;

        // 2. grow: at least double, so that n appends copy O(n) positions
        let counts = options.counts(self.slots.sizes.batch, k.dim().2); // (B)
        self.slots.grow(self.longest_after(&counts))?;

        // 3. write: each row at its own end
        self.slots.write(k, v, options);

        // 4. advance: only now do the new positions exist
        self.slots.rows.advance(&counts);
        Ok(())
    }

    fn attend_steps(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
    ) -> Result<Steps<S::Compute>> {
        self.check_attend(q.dim(), self.len(), options)?;

        // 5. align: the last query stands on the last position of its row
        let start = self.slots.rows.align(q.dim().2, options.mask.q_offset); // (B)

        // 6. attend: over what is held
        let steps = self.slots.attend(q, &start, options, |_, _| true)?;
        self.slots.track.add(&steps.weights);
        Ok(steps)
    }

    fn attend_simd(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
        tier: Option<Tier>,
    ) -> Result<OutputLse<S::Compute, Ix4>> {
        self.check_attend(q.dim(), self.len(), options)?;
        self.slots.attend_simd(q, options, tier, None)
    }

    fn truncate(&mut self, lengths: &[i64]) -> Result<()> {
        // 7. truncate: the memory stays, the positions beyond are junk from now on
        check_truncate("truncate", lengths, &self.slots.rows.lengths())?;
        self.slots.rows.truncate(lengths);
        Ok(())
    }

    fn reset(&mut self) {
        // 8. reset: a cache of length 0; the memory is kept
        self.slots.rows.clear();
    }

    fn read(&self) -> Held<S> {
        // 9. read: zero beyond a row, where there is junk
        self.slots.read()
    }

    fn tracked(&self) -> Result<Array3<f64>> {
        self.slots.track.read("tracked", &self.slots.rows)
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

    fn evict(&mut self, positions: &[i64]) -> Result<()> {
        for b in 0..self.slots.sizes.batch {
            self.slots.retain(b, |j| !positions.contains(&j));
        }
        Ok(())
    }

    fn evict_by(&mut self, policy: &Policy<'_, S::Compute>) -> Result<()> {
        check_eviction(self, policy, None, self.is_tracking())?;
        let (budget, _, _) = policy.ends();
        self.keep_chosen(policy, &vec![budget.of(0); self.slots.sizes.batch])
    }

    fn shift(&mut self, by: i64, from: i64) -> Result<()> {
        self.slots.shift(by, from)
    }

    fn describe(&self) -> Description {
        Description::of_kv::<S>("contiguous", self.slots.sizes)
            .with("rope", self.slots.rope.of_held().is_some())
            .with_if(self.slots.track.is_on(), "track", true)
    }

    fn columns(&self) -> Vec<Column> {
        let of_kv = Column::of_kv::<S>(self.slots.sizes);
        of_kv.into_iter().chain(self.slots.track.columns()).collect()
    }

    fn contents(&self) -> Contents {
        self.slots.contents()
    }

    fn restore(&mut self, rows: Rows, contents: &Contents) -> Result<()> {
        check_room("load", rows.longest(), self.capacity)?;
        self.slots.restore(rows, contents, self.capacity.unwrap_or(0))
    }
}

impl<S: Stored> Evidence<S> for KvCache<S> {
    fn untracked_steps(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
    ) -> Result<Steps<S::Compute>> {
        let start = self.slots.rows.align(q.dim().2, options.mask.q_offset); // (B)
        self.slots.attend(q, &start, options, |_, _| true)
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use ndarray::array;

    use super::*;

    #[test]
    fn halves_are_kept_and_widened() {
        let mut cache = KvCache::<bf16>::new(1, 1, 1, 1, None).unwrap();
        let half = |x: f32| array![[[[bf16::from_f32(x)]]]];
        for value in [1.0, 1.0 + 1.0 / 128.0] {
            cache.append(&half(0.0), &half(value), &Append::default()).unwrap();
        }
        assert_eq!(cache.read().v[[0, 0, 1, 0]], bf16::from_f32(1.0 + 1.0 / 128.0));
        let output = cache.attend(&array![[[[1.0]]]], &Sdpa::default()).unwrap();
        assert_eq!(output, array![[[[1.0 + 1.0 / 256.0]]]]); // between two bf16
    }
}
