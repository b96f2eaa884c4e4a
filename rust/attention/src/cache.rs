//! What every kind of KV cache can do, and what all of them share: how queries are placed and what they see.
//!
//! A cache holds slots in rows ([`Rows`]); attention over them speaks of the *positions* of the slots, which
//! stay what they were when others are forgotten. Each kind differs in what it keeps, and as what.
//!
//! Letters: B batch, R rows of slots, Hkv key/value heads, Hq query heads, T new tokens, Tq queries, L slots of the
//! longest row, D and Dv head sizes. R = B, or B · Hkv where every head has slots of its own.

use ndarray::{
    Array1, Array2, Array3, Array4, ArrayRef1, ArrayRef2, ArrayRef4, ArrayView3, ArrayView4,
    CowArray, Ix4, s,
};

use crate::cache_content::{Column, Contents, Description};
use crate::cache_rope::{CacheRope, turned};
use crate::cast::{Stored, widen};
use crate::checks::{check_attend, check_index};
use crate::errors::{AttentionError, Fault, Result};
use crate::eviction::Policy;
use crate::float::Float;
use crate::masks::{Mask, allows};
use crate::merge::OutputLse;
use crate::quantise::Codes;
use crate::rope::Rope;
use crate::rows::Rows;
use crate::sdpa::{Sdpa, Steps, sdpa_steps};
use crate::simd::Tier;
use crate::track::Track;

/// The sizes of a cache that never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// B.
    pub batch: usize,
    /// Hkv.
    pub num_kv_heads: usize,
    /// D.
    pub head_dim: usize,
    /// Dv.
    pub value_dim: usize,
}

/// Which of the T tokens of an append count; the default is all.
#[derive(Debug, Clone, Copy, Default)]
pub struct Append<'a> {
    /// (B): how many; the others are junk.
    pub lengths: Option<&'a ArrayRef1<i64>>,
    /// On which side the junk is.
    pub padding: Padding,
    /// (B, T): what the tokens are, for caches that share what they know to be the same.
    pub tokens: Option<&'a ArrayRef2<i64>>,
}

/// Where junk is among the tokens of an append.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Padding {
    /// After those that count.
    #[default]
    Right,
    /// Before them.
    Left,
}

impl Append<'_> {
    /// How many of `new` tokens count in each of `batch` rows.
    pub(crate) fn counts(&self, batch: usize, new: usize) -> Vec<usize> {
        let stated = |lengths: &ArrayRef1<i64>| lengths.iter().map(|&n| n as usize).collect();
        self.lengths.map_or_else(|| vec![new; batch], stated)
    }

    /// The first of `new` tokens that counts, when `count` of them do.
    pub(crate) fn start(&self, new: usize, count: usize) -> usize {
        if self.padding == Padding::Left { new - count } else { 0 }
    }

    /// `x` (B, H, T, n), row `b`: the tokens that count, (H, count, n).
    pub(crate) fn taken<'x, S>(
        &self,
        x: &'x ArrayRef4<S>,
        b: usize,
        count: usize,
    ) -> ArrayView3<'x, S> {
        let start = self.start(x.dim().2, count);
        x.slice(s![b, .., start..start + count, ..])
    }
}

/// What a cache holds: a copy.
#[derive(Debug, Clone, PartialEq)]
pub struct Held<S> {
    /// (B, Hkv, L, D), zero beyond a row; in a latent cache the latents, with one head.
    pub k: Array4<S>,
    /// (B, Hkv, L, Dv), zero beyond a row; in a latent cache the rotary keys, with one head.
    pub v: Array4<S>,
    /// (R)
    pub lengths: Array1<i64>,
    /// (R, L), -1 beyond a row.
    pub positions: Array2<i64>,
}

/// How much a cache holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// (R): slots of each row.
    pub positions: Array1<i64>,
    /// Of keys, values, codes, scales and zeros in the slots held; in a paged cache, in all used pages.
    pub bytes: usize,
    /// Of a paged cache.
    pub pages: Option<PageCounts>,
}

/// The pages of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageCounts {
    /// That some row holds.
    pub used: usize,
    /// That more than one row or fork holds.
    pub shared: usize,
    /// That can still be taken.
    pub free: usize,
}

/// A KV cache of any kind. A call that fails leaves the cache as it was.
///
/// `S` is what its keys and values are given as; attention runs in `S::Compute`.
pub trait Cache<S: Stored>: Send + Sync {
    /// B, Hkv, D and Dv.
    fn sizes(&self) -> Sizes;

    /// Which positions are held, by R rows.
    fn rows(&self) -> &Rows;

    /// What a file has for R: (B), or (B, Hkv) where every head has slots of its own.
    fn row_shape(&self) -> Vec<usize> {
        vec![self.sizes().batch]
    }

    /// How keys and queries are rotated.
    fn rope(&self) -> Option<&Rope> {
        None
    }

    /// How many positions each row has, (R): slots held, in a rotating cache all positions so far.
    fn lengths(&self) -> Array1<i64> {
        self.rows().lengths()
    }

    /// How an append of these would fail, if it would.
    ///
    /// # Errors
    /// Those of `append`.
    fn check_append(&self, k: &ArrayRef4<S>, v: &ArrayRef4<S>, options: &Append<'_>) -> Result<()>;

    /// Add `k` (B, Hkv, T, D) and `v` (B, Hkv, T, Dv), T >= 0, after the last position of each row.
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`, `CapacityExceeded`.
    fn append(&mut self, k: &ArrayRef4<S>, v: &ArrayRef4<S>, options: &Append<'_>) -> Result<()>;

    /// L, after an append of `counts[b]` tokens a row.
    fn longest_after(&self, counts: &[usize]) -> usize {
        let held = self.rows().lengths();
        held.iter().zip(counts).map(|(&held, count)| held as usize + count).max().unwrap_or(0)
    }

    /// Attention of `q` (B, Hq, Tq, D) over the slots held: (B, Hq, Tq, Dv).
    ///
    /// Mask and bias are over the L slots held, all else speaks of positions. `mask.q_offset` `None` puts the
    /// last query on the last position of its row; `mask.kv_lengths` is the cache's own and must be `None`.
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`.
    fn attend(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
    ) -> Result<Array4<S::Compute>> {
        Ok(self.attend_steps(q, options)?.output)
    }

    /// `attend` with all its intermediates; same arguments and errors.
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`.
    fn attend_steps(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
    ) -> Result<Steps<S::Compute>>;

    /// `attend` by the kernels of [`sdpa_simd`](crate::sdpa_simd()), on the slots where they lie, with its log-sum-exp:
    /// output (B, Hq, Tq, Dv) and lse (B, Hq, Tq). `tier` is as there.
    ///
    /// # Errors
    /// Those of `attend`; `Unsupported` for a tier that this machine lacks, for dropout, for keys that are turned when
    /// they are attended to, where weights are added up, and where the kind has no such step: latents, heads with
    /// slots of their own, keys that share scales along the slots.
    fn attend_simd(
        &self,
        _q: &ArrayRef4<S::Compute>,
        _options: &Sdpa<'_, S::Compute>,
        _tier: Option<Tier>,
    ) -> Result<OutputLse<S::Compute, Ix4>> {
        Err(AttentionError::Unsupported("simd".into()))
    }

    /// How an attend of `q` of this shape over `slots` slots would fail, if it would.
    ///
    /// # Errors
    /// Those of `attend`.
    fn check_attend(
        &self,
        q: (usize, usize, usize, usize),
        slots: usize,
        options: &Sdpa<'_, S::Compute>,
    ) -> Result<()> {
        check_attend("attend", q, self.sizes(), slots, options)
    }

    /// `append`, then `attend_steps`; both, or nothing.
    ///
    /// # Errors
    /// Those of the two.
    fn append_attend_steps(
        &mut self,
        (k, v): (&ArrayRef4<S>, &ArrayRef4<S>),
        append: &Append<'_>,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
    ) -> Result<Steps<S::Compute>> {
        self.check_append(k, v, append)?;
        let counts = append.counts(self.sizes().batch, k.dim().2);
        self.check_attend(q.dim(), self.longest_after(&counts), options)?;
        self.append(k, v, append)?;
        self.attend_steps(q, options)
    }

    /// How an `attend_simd` over such a cache would be refused, if it would.
    ///
    /// # Errors
    /// `Unsupported`.
    fn check_simd(&self, tier: Option<Tier>) -> Result<()> {
        let Sizes { batch, num_kv_heads, head_dim, .. } = self.sizes();
        let no_query = Array4::zeros((batch, num_kv_heads, 0, head_dim));
        self.attend_simd(&no_query, &Sdpa::default(), tier).map(drop)
    }

    /// `append`, then `attend_simd`; both, or nothing.
    ///
    /// # Errors
    /// Those of the two.
    fn append_attend_simd(
        &mut self,
        (k, v): (&ArrayRef4<S>, &ArrayRef4<S>),
        append: &Append<'_>,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
        tier: Option<Tier>,
    ) -> Result<OutputLse<S::Compute, Ix4>> {
        self.check_append(k, v, append)?;
        let counts = append.counts(self.sizes().batch, k.dim().2);
        self.check_attend(q.dim(), self.longest_after(&counts), options)?;
        self.check_simd(tier)?;
        self.append(k, v, append)?;
        self.attend_simd(q, options, tier)
    }

    /// Forget from the end: row b keeps its first `lengths[b]` slots, in a rotating cache positions.
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`.
    fn truncate(&mut self, lengths: &[i64]) -> Result<()>;

    /// Forget everything.
    fn reset(&mut self);

    /// Copies of all that is held.
    fn read(&self) -> Held<S>;

    /// The weights that each slot was given since it was appended, by all queries of all query heads that read its
    /// KV head: a copy (B, Hkv, L), zero beyond a row.
    ///
    /// # Errors
    /// `InvalidConfig` where they are not added up.
    fn tracked(&self) -> Result<Array3<f64>> {
        Track::default().read("tracked", self.rows())
    }

    /// New row i is a copy of old row `index[i]`.
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`.
    fn reorder(&mut self, index: &[i64]) -> Result<()>;

    /// Another cache with the same content, independent of this one.
    fn fork(&self) -> Box<dyn Cache<S>>;

    /// How much is held.
    fn stats(&self) -> Stats;

    /// Forget these positions in every row that holds them; all others keep theirs.
    ///
    /// # Errors
    /// `Unsupported` where the kind has no such step.
    fn evict(&mut self, _positions: &[i64]) -> Result<()> {
        lacks("step.evict")
    }

    /// Keep the slots of every row that a policy chooses, and forget the others, as `evict` does. A row that holds
    /// no more than the budget keeps all. The choice is one for all heads that share their slots.
    ///
    /// # Errors
    /// `InvalidConfig`, also for heavy hitters where no weights are added up; `ShapeMismatch`; `Unsupported` as for
    /// `evict`.
    fn evict_by(&mut self, _policy: &Policy<'_, S::Compute>) -> Result<()> {
        lacks("step.evict")
    }

    /// Move every position >= `from` by `by`, turning keys that are stored rotated.
    ///
    /// # Errors
    /// `InvalidConfig` for positions below 0 or in the way of others; `Unsupported` as for `evict`.
    fn shift(&mut self, _by: i64, _from: i64) -> Result<()> {
        lacks("step.shift")
    }

    /// Keys and values as a quantised cache stores them, zero beyond a row. Where keys share scales along the slots,
    /// every key has those of its group; the tail has no codes, and there codes and scales are 0.
    ///
    /// # Errors
    /// `InvalidConfig` where nothing is quantised.
    fn read_codes(&self) -> Result<[Codes<Ix4>; 2]> {
        let expected = "false but in a quantised cache";
        Err(AttentionError::InvalidConfig(Fault::new("read", "codes", expected, true)))
    }

    /// Kind, type and sizes: what a file says of itself, and what must fit.
    fn describe(&self) -> Description;

    /// What the file holds for each slot.
    fn columns(&self) -> Vec<Column>;

    /// All columns, in their order.
    fn contents(&self) -> Contents;

    /// Everything replaced by what a file holds: rows that were checked, and columns of the right sizes.
    ///
    /// # Errors
    /// `InvalidFile` for rows that the kind cannot have; `CapacityExceeded`.
    fn restore(&mut self, rows: Rows, contents: &Contents) -> Result<()>;
}

/// The answer of a kind that does not have such a step.
fn lacks(feature: &str) -> Result<()> {
    Err(AttentionError::Unsupported(feature.into()))
}

/// What an attend of any kind is over.
pub(crate) struct Slots<'a, T> {
    /// (B, Hkv, L, D)
    pub k: CowArray<'a, T, Ix4>,
    /// (B, Hkv, L, Dv)
    pub v: CowArray<'a, T, Ix4>,
    /// The positions of the slots.
    pub rows: &'a Rows,
    /// How keys were or are to be rotated, and queries.
    pub rope: &'a CacheRope,
}

impl<'a, T: Float> Slots<'a, T> {
    pub(crate) fn new<S: Stored<Compute = T>>(
        k: ArrayView4<'a, S>,
        v: ArrayView4<'a, S>,
        rows: &'a Rows,
        rope: &'a CacheRope,
    ) -> Self {
        Self { k: widen(k), v: widen(v), rows, rope }
    }

    /// Attention of queries the first of which stands at `start` (B), for arguments that were checked.
    /// `sees`: whether a query at position p may see a slot at position j, beside what the options say.
    pub(crate) fn attend(
        &self,
        q: &ArrayRef4<T>,
        start: &Array1<i64>,
        options: &Sdpa<'_, T>,
        sees: impl Fn(i64, i64) -> bool,
    ) -> Result<Steps<T>> {
        let (batch, hq, tq, _) = q.dim();
        let shape = (batch, hq, tq, self.k.dim().2);
        let stands = Rows::placed(start, tq); // (B, Tq)
        let lengths = self.rows.lengths(); // (B)
        let mask = Mask { kv_lengths: Some(&lengths), ..options.mask };
        let keep = mask.keep.map(|keep| keep.broadcast(shape).expect("checked"));
        let shown = Array4::from_shape_fn(shape, |(b, h, i, slot)| {
            let (p, j) = (stands[[b, i]], self.rows.row(b).get(slot).copied().unwrap_or(-1));
            allows(&mask, keep, (b, h, i, slot), p, j) && sees(p, j)
        }); // (B, Hq, Tq, L)
        let shown = shown.into_dyn();
        let mask = Mask { keep: Some(&shown), ..Mask::default() };
        let q = turned(q.view(), self.rope.of_queries(), &stands); // (B, Hq, Tq, D)
        let k = turned(self.k.view(), self.rope.of_attended(), &self.rows.positions()); // (B, Hkv, L, D)
        sdpa_steps(&q, &k, &self.v, &Sdpa { mask, ..*options })
    }
}

/// The old row of each new one.
pub(crate) fn checked_index(index: &[i64], batch: usize) -> Result<Vec<usize>> {
    check_index("reorder", index, batch)?;
    Ok(index.iter().map(|&b| b as usize).collect())
}
