//! The quantised KV cache whose keys share a scale along the tokens, channel by channel.
//!
//! A few channels of keys are far larger than the others, in every token. A scale that all channels of a token share
//! then leaves hardly a code to the small ones; along the tokens every channel has a scale of its own. So n keys
//! wait for each other, and are quantised when they are that many; the last ones of a row, too few for a group, are
//! its tail and stay in f32. Values have no such channels and are quantised token by token.
//!
//! Letters: B batch, Hkv key/value heads, Hq query heads, T new positions, Tq queries, L longest row, S slots from
//! some group on, n slots of a group, D and Dv head sizes.
//!
//! Source: Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", 2024, section 3.

use std::marker::PhantomData;

use ndarray::{Array3, Array4, ArrayRef3, ArrayRef4, Axis, Ix3, Ix4, concatenate, s};

use crate::allocation::Purpose;
use crate::cache::{Append, Cache, Held, Sizes, Slots, Stats, checked_index};
use crate::cache_content::{Column, Contents, Description};
use crate::cache_rope::{CacheRope, RopeAt, further_turned};
use crate::cast::{Stored, cast};
use crate::checks::{
    check_append, check_cache_config, check_finite, check_key_groups, check_no_tokens,
    check_quantisation, check_room, check_shift, check_truncate,
};
use crate::code_memory::CodeMemory;
use crate::errors::Result;
use crate::eviction::{Evidence, Policy, check_eviction, positions_that_stay};
use crate::key_groups::{KeyLayout, KeyRow, Regrouped};
use crate::quantise::{Codes, Quantisation, quantise, restored};
use crate::rope::Rope;
use crate::rows::Rows;
use crate::sdpa::{Sdpa, Steps};
use crate::track::Track;

/// Codes of keys by channel, and of values by token. A call that fails leaves the cache as it was.
#[derive(Debug, Clone)]
pub struct KiviCache<S> {
    sizes: Sizes,
    capacity: Option<usize>,
    layout: KeyLayout,
    rope: CacheRope,
    track: Track,
    rows: Rows,
    k: Vec<KeyRow>,        // (B)
    v: CodeMemory,         // (B, Hkv, room, Dv)
    given: PhantomData<S>, // what keys and values come as
}

/// What an append makes of one row: its keys from some group on, and the codes of new values (Hkv, count, ·).
type RowEntry = (Regrouped, Codes<Ix3>);

impl<S: Stored> KiviCache<S> {
    /// An empty cache. `quantisation`: int8 or int4; its group is of values alone. `key_groups`: n >= 1, how many
    /// consecutive slots of a row share the scales of their keys. `capacity`: most positions a row may hold.
    ///
    /// # Errors
    /// `InvalidConfig`.
    pub fn new(
        batch: usize,
        num_kv_heads: usize,
        head_dim: usize,
        value_dim: usize,
        quantisation: Quantisation,
        key_groups: usize,
        capacity: Option<usize>,
    ) -> Result<Self> {
        let (name, sizes) = ("kivi_cache", Sizes { batch, num_kv_heads, head_dim, value_dim });
        check_cache_config(name, sizes, capacity)?;
        check_quantisation(name, &quantisation)?;
        check_key_groups(name, &quantisation, key_groups)?;
        let purpose = Purpose::option(name, "capacity");
        let values = (batch, num_kv_heads, capacity.unwrap_or(0), value_dim);
        let (heads, channels, n) = (num_kv_heads, head_dim, key_groups);
        Ok(Self {
            sizes,
            capacity,
            layout: KeyLayout { quantisation, heads, channels, n },
            rope: CacheRope::default(),
            track: Track::default(),
            rows: Rows::new(purpose, batch)?,
            k: purpose.list(batch, KeyRow::empty(num_kv_heads, head_dim))?,
            v: CodeMemory::new(purpose, values, quantisation)?,
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
        self.rope = CacheRope::new("kivi_cache", self.sizes, rope, at)?;
        Ok(self)
    }

    /// The same cache, in which every attend from now on adds to each slot the weights that it gives it.
    ///
    /// # Errors
    /// `InvalidConfig` where there is no memory for the sums.
    pub fn with_track(mut self) -> Result<Self> {
        let purpose = Purpose::option("kivi_cache", "track");
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
    ) -> Result<Vec<RowEntry>> {
        // 1. check: a number without a code is refused before its group is full
        check_append("append", k.dim(), v.dim(), options, self.sizes)?;
        check_no_tokens("append", options)?;
        let counts = options.counts(self.sizes.batch, k.dim().2); // (B)
        check_room("append", self.longest_after(&counts), self.capacity)?;
        let (k, v): (Array4<f32>, Array4<f32>) = (cast(k), cast(v));
        let k = self.rope.placed(&k, &self.rows, options); // (B, Hkv, T, D)
        let of_row = |(b, &count): (usize, &usize)| {
            let new = options.taken(&k, b, count); // (Hkv, count, D)
            check_finite("append", "k", &new)?;

            // 2. tail: new keys join those that wait
            let KeyRow { groups, tail } = &self.k[b];
            let keys = concatenate![Axis(1), *tail, new]; // (Hkv, S, D)
            let values = quantise(&options.taken(&v, b, count), self.layout.quantisation)?;
            Ok((self.grouped(groups.len(), &keys)?, values))
        };
        counts.iter().enumerate().map(of_row).collect()
    }

    /// Keys (Hkv, S, D) from group `first` on, of which as many are quantised as fill groups.
    fn grouped(&self, first: usize, keys: &ArrayRef3<f32>) -> Result<Regrouped> {
        let n = self.layout.n;
        let full = keys.dim().1 / n * n;

        // 3. quantise: each channel of a full group by itself, from its n tokens
        let of_group = |start| self.layout.group(&keys.slice(s![.., start..start + n, ..])); // (Hkv, n, D)
        let groups = (0..full).step_by(n).map(of_group).collect::<Result<_>>()?;
        Ok(Regrouped {
            first,
            row: KeyRow { groups, tail: keys.slice(s![.., full.., ..]).to_owned() },
        })
    }

    /// The keys of row `b` from group `first` on: (Hkv, S, D).
    fn restored_keys(&self, b: usize, first: usize) -> Array3<f32> {
        // 4. restore: every channel of a group by its own scale; the tail is there as it came
        let groups = self.k[b].groups[first..].iter();
        let keys: Vec<Array3<f32>> =
            groups.map(|group| self.layout.restored_group(group)).collect();
        let all: Vec<_> = keys.iter().chain([&self.k[b].tail]).map(|keys| keys.view()).collect();
        ndarray::concatenate(Axis(1), &all).expect("the same heads and channels") // (Hkv, S, D)
    }

    /// The group of a slot of row `b`, where it begins, and the keys from there on, restored: (Hkv, S, D).
    fn opened(&self, b: usize, slot: usize) -> (usize, usize, Array3<f32>) {
        let first = slot / self.layout.n;
        (first, first * self.layout.n, self.restored_keys(b, first))
    }

    /// All keys, in the type of queries: (B, Hkv, L, D), zero beyond a row.
    fn all_keys<To: Stored>(&self) -> Array4<To> {
        let Sizes { batch, num_kv_heads, head_dim, .. } = self.sizes;
        let mut keys = Array4::default((batch, num_kv_heads, self.rows.longest(), head_dim));
        for b in 0..batch {
            let held: Array3<To> = cast(&self.restored_keys(b, 0)); // (Hkv, S, D)
            keys.slice_mut(s![b, .., ..held.dim().1, ..]).assign(&held);
        }
        keys
    }

    /// Adds `counts[b]` tokens a row, which are prepared.
    fn store(&mut self, entries: Vec<RowEntry>, counts: &[usize]) -> Result<()> {
        let needed = self.longest_after(counts);
        self.v.grow(Purpose::append(), needed)?;
        self.track.grow(needed)?;
        for (b, (keys, values)) in entries.into_iter().enumerate() {
            let end = self.rows.row(b).len();
            self.k[b].become_so(keys);
            self.v.write(b, end, &values);
            self.track.write(b, end, counts[b]);
        }
        self.rows.advance(counts);
        Ok(())
    }

    /// Rows forget the positions that do not pass. From the first group that loses one on, keys are quantised anew.
    fn retain(&mut self, keep: impl Fn(usize, i64) -> bool) -> Result<()> {
        let of_row = |b| {
            let held = self.rows.row(b);
            let Some(gone) = held.iter().position(|&j| !keep(b, j)) else { return Ok(None) };
            let (first, start, keys) = self.opened(b, gone);
            let stay: Vec<usize> = (start..held.len())
                .filter(|&slot| keep(b, held[slot]))
                .map(|slot| slot - start)
                .collect();
            self.grouped(first, &keys.select(Axis(1), &stay)).map(Some)
        };
        let changes: Vec<_> = (0..self.sizes.batch).map(of_row).collect::<Result<_>>()?;
        for (b, change) in changes.into_iter().enumerate() {
            let slots = self.rows.retain(b, |j| keep(b, j));
            self.v.retain(b, &slots);
            self.track.retain(b, &slots);
            change.into_iter().for_each(|change| self.k[b].become_so(change));
        }
        Ok(())
    }
}

impl<S: Stored> Evidence<S> for KiviCache<S> {
    fn untracked_steps(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
    ) -> Result<Steps<S::Compute>> {
        // 5. attend: as in a contiguous cache of these numbers
        let start = self.rows.align(q.dim().2, options.mask.q_offset); // (B)
        let k = self.all_keys::<S::Compute>(); // (B, Hkv, L, D)
        let v: Array4<S::Compute> = cast(&restored(&self.v.codes(self.rows.longest()))); // (B, Hkv, L, Dv)
        let slots = Slots::new(k.view(), v.view(), &self.rows, &self.rope);
        slots.attend(q, &start, options, |_, _| true)
    }
}

impl<S: Stored> Cache<S> for KiviCache<S> {
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
        let entries = self.prepared(k, v, options)?;
        self.store(entries, &options.counts(self.sizes.batch, k.dim().2))
    }

    fn append_attend_steps(
        &mut self,
        (k, v): (&ArrayRef4<S>, &ArrayRef4<S>),
        append: &Append<'_>,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
    ) -> Result<Steps<S::Compute>> {
        let entries = self.prepared(k, v, append)?;
        let counts = append.counts(self.sizes.batch, k.dim().2); // (B)
        self.check_attend(q.dim(), self.longest_after(&counts), options)?;
        self.store(entries, &counts)?;
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

    fn truncate(&mut self, lengths: &[i64]) -> Result<()> {
        // 6. truncate: what is left of a group that is cut waits in the tail
        check_truncate("truncate", lengths, &self.rows.lengths())?;
        for (b, &length) in lengths.iter().enumerate() {
            let (first, start, keys) = self.opened(b, length as usize);
            let tail = keys.slice(s![.., ..length as usize - start, ..]).to_owned(); // (Hkv, under n, D)
            self.k[b].become_so(Regrouped { first, row: KeyRow { groups: vec![], tail } });
        }
        self.rows.truncate(lengths);
        Ok(())
    }

    fn reset(&mut self) {
        self.k.fill(KeyRow::empty(self.sizes.num_kv_heads, self.sizes.head_dim));
        self.rows.clear();
    }

    fn read(&self) -> Held<S> {
        // 7. read: the tail as it is, all else restored
        let v = cast(&restored(&self.v.read(&self.rows))); // (B, Hkv, L, Dv)
        let (lengths, positions) = (self.rows.lengths(), self.rows.positions());
        Held { k: self.all_keys(), v, lengths, positions }
    }

    fn tracked(&self) -> Result<Array3<f64>> {
        self.track.read("tracked", &self.rows)
    }

    fn reorder(&mut self, index: &[i64]) -> Result<()> {
        let index = checked_index(index, self.sizes.batch)?;
        self.k = index.iter().map(|&b| self.k[b].clone()).collect();
        self.v.reorder(&index);
        self.track.reorder(&index);
        self.rows.reorder(&index);
        Ok(())
    }

    fn fork(&self) -> Box<dyn Cache<S>> {
        Box::new(self.clone())
    }

    fn stats(&self) -> Stats {
        let of_values = self.rows.stats(self.v.slot_bytes());
        let of_keys: usize = self.k.iter().map(KeyRow::bytes).sum();
        Stats { bytes: of_values.bytes + of_keys, ..of_values }
    }

    fn evict(&mut self, positions: &[i64]) -> Result<()> {
        self.retain(|_, j| !positions.contains(&j))
    }

    fn evict_by(&mut self, policy: &Policy<'_, S::Compute>) -> Result<()> {
        check_eviction(self, policy, None, self.track.is_on())?;
        let (budget, _, _) = policy.ends();
        let budgets = vec![budget.of(0); self.sizes.batch];
        let stay = positions_that_stay(policy, self, &budgets)?;
        self.retain(|b, j| stay[b].binary_search(&j).is_ok())
    }

    fn shift(&mut self, by: i64, from: i64) -> Result<()> {
        check_shift("shift", &self.rows, by, from)?;
        if let Some(rope) = self.rope.of_held().filter(|_| by != 0) {
            let again = |b| {
                let slots = self.rows.slots_from(b, from);
                if slots.is_empty() {
                    return Ok(None);
                }
                let (first, start, mut keys) = self.opened(b, slots.start);
                let mut moved = keys.slice_mut(s![.., slots.start - start.., ..]); // (Hkv, moved, D)
                let turned = further_turned(moved.view().insert_axis(Axis(0)), rope, by);
                let turned = turned.index_axis(Axis(0), 0);
                check_finite("shift", "by", &turned)?;
                moved.assign(&turned);
                self.grouped(first, &keys).map(Some)
            };
            let turned: Vec<_> = (0..self.sizes.batch).map(again).collect::<Result<_>>()?;
            for (b, change) in turned.into_iter().enumerate() {
                change.into_iter().for_each(|change| self.k[b].become_so(change));
            }
        }
        self.rows.shift(by, from);
        Ok(())
    }

    fn read_codes(&self) -> Result<[Codes<Ix4>; 2]> {
        Ok([self.layout.by_slot(&self.k, &self.rows), self.v.read(&self.rows)])
    }

    fn describe(&self) -> Description {
        Description::of_quantised::<S>(self.sizes, &self.layout.quantisation)
            .with("rope", self.rope.of_held().is_some())
            .with("key_groups", self.layout.n)
            .with_if(self.track.is_on(), "track", true)
    }

    fn columns(&self) -> Vec<Column> {
        let of_values = self.v.columns(["v_codes", "v_scale", "v_zero"]);
        self.layout.columns().into_iter().chain(of_values).chain(self.track.columns()).collect()
    }

    fn contents(&self) -> Contents {
        let of_keys = self.layout.contents(&self.k, &self.rows).into_iter();
        of_keys.chain(self.v.contents(&self.rows)).chain(self.track.contents(&self.rows)).collect()
    }

    fn restore(&mut self, rows: Rows, contents: &Contents) -> Result<()> {
        check_room("load", rows.longest(), self.capacity)?;
        let (of_keys, rest) = contents.split_at(self.layout.columns().len());
        let (of_values, sums) = rest.split_at(rest.len() - usize::from(self.track.is_on()));
        let room = self.capacity.unwrap_or(0);
        let v = self.v.restored(of_values, &rows, room)?;
        self.track = self.track.restored(sums.first(), &rows, room)?;
        self.k = self.layout.restored(of_keys, &rows);
        (self.rows, self.v) = (rows, v);
        Ok(())
    }
}
