//! The quantised KV cache: keys and values in few bits, rounded when they come and restored when they are read.
//!
//! Attention is that of a contiguous cache on the restored values, so what it costs is the rounding alone. What
//! comes in f64 is rounded to f32 first, and halves are widened.
//!
//! Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, Tq queries, L longest row, D and Dv
//! head sizes.
//!
//! Source: Hooper et al., "KVQuant", 2024, section 2 (what a quantised cache saves); for the arithmetic see
//! [`quantise`](mod@crate::quantise).

use std::marker::PhantomData;

use ndarray::{Array3, Array4, ArrayRef4, Axis, Ix3, Ix4};

use crate::allocation::Purpose;
use crate::cache::{Append, Cache, Held, Sizes, Slots, Stats, checked_index};
use crate::cache_content::{Column, Contents, Description};
use crate::cache_rope::{CacheRope, RopeAt, further_turned};
use crate::cast::{Stored, cast};
use crate::checks::{
    check_append, check_cache_config, check_no_tokens, check_quantisation, check_room, check_shift,
    check_truncate,
};
use crate::code_memory::CodeMemory;
use crate::errors::Result;
use crate::eviction::{Evidence, Policy, check_eviction, positions_that_stay};
use crate::merge::OutputLse;
use crate::quantise::{Codes, Quantisation, quantise, restored};
use crate::rope::Rope;
use crate::rows::Rows;
use crate::sdpa::{Sdpa, Steps};
use crate::simd::{Cached, KeysValues, Tier, check_cached};
use crate::track::Track;

/// Codes of keys and values. A call that fails leaves the cache as it was.
#[derive(Debug, Clone)]
pub struct QuantisedCache<S> {
    sizes: Sizes,
    capacity: Option<usize>,
    quantisation: Quantisation,
    rope: CacheRope,
    track: Track,
    rows: Rows,
    k: CodeMemory,         // (B, Hkv, room, D)
    v: CodeMemory,         // (B, Hkv, room, Dv)
    given: PhantomData<S>, // what keys and values come as
}

/// Codes of the keys and values that an append adds to one row: (Hkv, count, ·).
type RowCodes = (Codes<Ix3>, Codes<Ix3>);

impl<S: Stored> QuantisedCache<S> {
    /// An empty cache. `capacity`: most positions a row may hold; `None` = grows by doubling.
    ///
    /// # Errors
    /// `InvalidConfig`.
    pub fn new(
        batch: usize,
        num_kv_heads: usize,
        head_dim: usize,
        value_dim: usize,
        quantisation: Quantisation,
        capacity: Option<usize>,
    ) -> Result<Self> {
        let sizes = Sizes { batch, num_kv_heads, head_dim, value_dim };
        check_cache_config("quantised_cache", sizes, capacity)?;
        check_quantisation("quantised_cache", &quantisation)?;
        let purpose = Purpose::option("quantised_cache", "capacity");
        let shape = |n| (batch, num_kv_heads, capacity.unwrap_or(0), n);
        let memory = |n| CodeMemory::new(purpose, shape(n), quantisation);
        Ok(Self {
            sizes,
            capacity,
            quantisation,
            rope: CacheRope::default(),
            track: Track::default(),
            rows: Rows::new(purpose, batch)?,
            k: memory(head_dim)?,
            v: memory(value_dim)?,
            given: PhantomData,
        })
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
        self.rope = CacheRope::new("quantised_cache", self.sizes, rope, at)?;
        Ok(self)
    }

    /// The same cache, in which every attend from now on adds to each slot the weights that it gives it.
    ///
    /// # Errors
    /// `InvalidConfig` where there is no memory for the sums.
    pub fn with_track(mut self) -> Result<Self> {
        let purpose = Purpose::option("quantised_cache", "track");
        let room = self.capacity.unwrap_or(0).max(self.rows.longest());
        self.track = Track::new(purpose, self.sizes, room)?;
        Ok(self)
    }

    /// All that an append has to look at and to compute before it changes anything.
    fn prepared(
        &self,
        k: &ArrayRef4<S>,
        v: &ArrayRef4<S>,
        options: &Append<'_>,
    ) -> Result<Vec<RowCodes>> {
        // 1. check: what does not depend on the numbers
        check_append("append", k.dim(), v.dim(), options, self.sizes)?;
        check_no_tokens("append", options)?;
        let counts = options.counts(self.sizes.batch, k.dim().2); // (B)
        check_room("append", self.longest_after(&counts), self.capacity)?;

        // 2. quantise: the tokens that count, after their rotation, all in f32
        let (k, v): (Array4<f32>, Array4<f32>) = (cast(k), cast(v));
        let k = self.rope.placed(&k, &self.rows, options); // (B, Hkv, T, D)
        let codes = |x, b, count| {
            quantise(&options.taken(x, b, count), self.quantisation) // (Hkv, count, ·)
        };
        let both = |(b, &count)| Ok((codes(&k, b, count)?, codes(&v, b, count)?));
        counts.iter().enumerate().map(both).collect()
    }

    /// Adds `counts[b]` tokens a row, which are prepared.
    fn store(&mut self, codes: &[RowCodes], counts: &[usize]) -> Result<()> {
        // 3. write: codes and their scales, each row at its own end
        let needed = self.longest_after(counts);
        self.k.grow(Purpose::append(), needed)?;
        self.v.grow(Purpose::append(), needed)?;
        self.track.grow(needed)?;
        for (b, (k, v)) in codes.iter().enumerate() {
            let end = self.rows.row(b).len();
            self.k.write(b, end, k);
            self.v.write(b, end, v);
            self.track.write(b, end, counts[b]);
        }
        self.rows.advance(counts);
        Ok(())
    }

    /// Row `b` forgets the positions that do not pass.
    fn retain(&mut self, b: usize, keep: impl Fn(i64) -> bool) {
        let slots = self.rows.retain(b, keep);
        self.k.retain(b, &slots);
        self.v.retain(b, &slots);
        self.track.retain(b, &slots);
    }
}

impl<S: Stored> Evidence<S> for QuantisedCache<S> {
    fn untracked_steps(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
    ) -> Result<Steps<S::Compute>> {
        let start = self.rows.align(q.dim().2, options.mask.q_offset); // (B)

        // 4. restore: the values that the codes stand for
        let longest = self.rows.longest();
        let k: Array4<S::Compute> = cast(&restored(&self.k.codes(longest))); // (B, Hkv, L, D)
        let v: Array4<S::Compute> = cast(&restored(&self.v.codes(longest))); // (B, Hkv, L, Dv)

        // 5. attend: over them, as over any others
        let slots = Slots::new(k.view(), v.view(), &self.rows, &self.rope);
        slots.attend(q, &start, options, |_, _| true)
    }
}

impl<S: Stored> Cache<S> for QuantisedCache<S> {
    fn sizes(&self) -> Sizes {
        self.sizes
    }

    fn rows(&self) -> &Rows {
        &self.rows
    }

    fn rope(&self) -> Option<&Rope> {
        self.rope.of_queries()
    }

    fn check_append(&self, k: &ArrayRef4<S>, v: &ArrayRef4<S>, options: &Append<'_>) -> Result<()> {
        self.prepared(k, v, options).map(drop)
    }

    fn append(&mut self, k: &ArrayRef4<S>, v: &ArrayRef4<S>, options: &Append<'_>) -> Result<()> {
        let codes = self.prepared(k, v, options)?;
        self.store(&codes, &options.counts(self.sizes.batch, k.dim().2))
    }

    fn append_attend_steps(
        &mut self,
        (k, v): (&ArrayRef4<S>, &ArrayRef4<S>),
        append: &Append<'_>,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
    ) -> Result<Steps<S::Compute>> {
        let codes = self.prepared(k, v, append)?;
        let counts = append.counts(self.sizes.batch, k.dim().2); // (B)
        self.check_attend(q.dim(), self.longest_after(&counts), options)?;
        self.store(&codes, &counts)?;
        self.attend_steps(q, options)
    }

    fn attend_steps(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
    ) -> Result<Steps<S::Compute>> {
        self.check_attend(q.dim(), self.rows.longest(), options)?;
        let steps = self.untracked_steps(q, options)?;
        self.track.add(&steps.weights);
        Ok(steps)
    }

    fn attend_simd(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
        tier: Option<Tier>,
    ) -> Result<OutputLse<S::Compute, Ix4>> {
        self.check_attend(q.dim(), self.rows.longest(), options)?;
        let tier = check_cached(options, &self.rope, self.track.is_on(), tier)?;
        let start = self.rows.align(q.dim().2, options.mask.q_offset); // (B)
        let Sizes { batch, num_kv_heads, value_dim, .. } = self.sizes;
        let each = (0..batch).flat_map(|b| (0..num_kv_heads).map(move |h| (b, h)));
        let heads = each
            .map(|(b, h)| -> KeysValues<'_, S::Compute> { [self.k.head(b, h), self.v.head(b, h)] })
            .collect();
        // Keys and values are quantised in the same way.
        let (kind, rows, rope) = (self.k.kind::<S::Compute>(), &self.rows, &self.rope);
        let cached = Cached { kind, heads, value_dim, rows, rope, window: None };
        Ok(cached.attend(q, &start, options, tier))
    }

    fn truncate(&mut self, lengths: &[i64]) -> Result<()> {
        // 6. truncate: the memory stays, the positions beyond are junk from now on
        check_truncate("truncate", lengths, &self.rows.lengths())?;
        self.rows.truncate(lengths);
        Ok(())
    }

    fn reset(&mut self) {
        self.rows.clear();
    }

    fn read(&self) -> Held<S> {
        // 7. read: restored, rounded once more to a half that they may have come as
        let lengths = self.rows.lengths(); // (B)
        let values = |memory: &CodeMemory| cast(&restored(&memory.read(&self.rows)));
        let (k, v) = (values(&self.k), values(&self.v)); // (B, Hkv, L, D), (B, Hkv, L, Dv)
        Held { k, v, lengths, positions: self.rows.positions() }
    }

    fn tracked(&self) -> Result<Array3<f64>> {
        self.track.read("tracked", &self.rows)
    }

    fn reorder(&mut self, index: &[i64]) -> Result<()> {
        let index = checked_index(index, self.sizes.batch)?;
        self.k.reorder(&index);
        self.v.reorder(&index);
        self.track.reorder(&index);
        self.rows.reorder(&index);
        Ok(())
    }

    fn fork(&self) -> Box<dyn Cache<S>> {
        Box::new(self.clone())
    }

    fn stats(&self) -> Stats {
        self.rows.stats(self.k.slot_bytes() + self.v.slot_bytes())
    }

    fn evict(&mut self, positions: &[i64]) -> Result<()> {
        for b in 0..self.sizes.batch {
            self.retain(b, |j| !positions.contains(&j));
        }
        Ok(())
    }

    fn evict_by(&mut self, policy: &Policy<'_, S::Compute>) -> Result<()> {
        check_eviction(self, policy, None, self.track.is_on())?;
        let (budget, _, _) = policy.ends();
        let budgets = vec![budget.of(0); self.sizes.batch];
        for (b, stay) in positions_that_stay(policy, self, &budgets)?.iter().enumerate() {
            self.retain(b, |j| stay.binary_search(&j).is_ok());
        }
        Ok(())
    }

    fn shift(&mut self, by: i64, from: i64) -> Result<()> {
        check_shift("shift", &self.rows, by, from)?;
        if let Some(rope) = self.rope.of_held().filter(|_| by != 0) {
            let again = |b| {
                let slots = self.rows.slots_from(b, from);
                let keys = restored(&self.k.slots(b, slots.clone())); // (1, Hkv, moved, D)
                let turned = further_turned(keys.view(), rope, by).index_axis_move(Axis(0), 0);
                Ok((slots.start, quantise(&turned, self.quantisation)?)) // (Hkv, moved, D)
            };
            let turned: Vec<(usize, Codes<Ix3>)> =
                (0..self.sizes.batch).map(again).collect::<Result<_>>()?;
            for (b, (start, keys)) in turned.iter().enumerate() {
                self.k.write(b, *start, keys);
            }
        }
        self.rows.shift(by, from);
        Ok(())
    }

    fn read_codes(&self) -> Result<[Codes<Ix4>; 2]> {
        Ok([self.k.read(&self.rows), self.v.read(&self.rows)])
    }

    fn describe(&self) -> Description {
        Description::of_quantised::<S>(self.sizes, &self.quantisation)
            .with("rope", self.rope.of_held().is_some())
            .with_if(self.track.is_on(), "track", true)
    }

    fn columns(&self) -> Vec<Column> {
        let mut columns = self.k.columns(["k_codes", "k_scale", "k_zero"]);
        columns.extend(self.v.columns(["v_codes", "v_scale", "v_zero"]));
        columns.extend(self.track.columns());
        columns
    }

    fn contents(&self) -> Contents {
        let codes = [&self.k, &self.v].into_iter().flat_map(|memory| memory.contents(&self.rows));
        codes.chain(self.track.contents(&self.rows)).collect()
    }

    fn restore(&mut self, rows: Rows, contents: &Contents) -> Result<()> {
        check_room("load", rows.longest(), self.capacity)?;
        let (room, per_memory) = (self.capacity.unwrap_or(0), contents.len() / 2);
        let k = self.k.restored(&contents[..per_memory], &rows, room)?;
        let v = self.v.restored(&contents[per_memory..2 * per_memory], &rows, room)?;
        self.track = self.track.restored(contents.get(2 * per_memory), &rows, room)?;
        (self.rows, self.k, self.v) = (rows, k, v);
        Ok(())
    }
}
