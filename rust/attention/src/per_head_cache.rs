//! The contiguous KV cache whose heads hold slots of their own, so that a policy may keep others in every head.
//!
//! Heads look at different tokens, and one choice for all of them keeps what no head needs most. A row of Hkv heads
//! is Hkv rows of one head each in a contiguous cache, which does all the work.
//!
//! Letters: B batch, Hkv key/value heads, Hq query heads, G = Hq / Hkv, T new positions, Tq queries, L most slots
//! that a head holds, D and Dv head sizes.
//!
//! Sources: Li et al., "SnapKV: LLM Knows What You Are Looking For Before Generation", 2024, section 4 (a choice for
//! each head); Feng et al., "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM
//! Inference", 2024, section 3 (budgets of heads).

use ndarray::{Array, Array1, Array3, Array4, ArrayRef4, ArrayRefD, Dimension, IxDyn};

use crate::cache::{Append, Cache, Held, Sizes, Stats, checked_index};
use crate::cache_content::{Column, Contents, Description};
use crate::cache_rope::RopeAt;
use crate::cast::Stored;
use crate::checks::{check_append, check_cache_config, check_joined_heads};
use crate::errors::{AttentionError, Result};
use crate::eviction::{Policy, check_eviction};
use crate::kv_cache::KvCache;
use crate::masks::{Mask, Offset};
use crate::rope::Rope;
use crate::rows::Rows;
use crate::sdpa::{Sdpa, Steps};

/// Keys (B, Hkv, L, D) and values (B, Hkv, L, Dv), each head with a length of its own. A call that fails leaves the
/// cache as it was.
#[derive(Debug, Clone)]
pub struct PerHeadCache<S> {
    sizes: Sizes,
    cache: KvCache<S>, // B · Hkv rows of one head
}

/// (B · Hkv, 1, T, D), (B · Hkv, 1, T, Dv), (B · Hkv)
type NewRows<S> = (Array4<S>, Array4<S>, Option<Array1<i64>>);

impl<S: Stored> PerHeadCache<S> {
    /// An empty cache. `capacity`: most positions a head may hold; `None` = grows by doubling.
    ///
    /// # Errors
    /// `InvalidConfig`, as for [`KvCache::new`].
    ///
    /// ```
    /// use ndarray::{Array4, array};
    /// use rosetta_attention::{Append, Budget, Cache, PerHeadCache, Policy};
    /// let mut cache = PerHeadCache::<f32>::new(1, 2, 1, 1, None)?; // two heads
    /// let k = array![[[[1.0], [2.0], [3.0]], [[3.0], [2.0], [1.0]]]];
    /// cache.append(&k, &k, &Append::default())?;
    /// cache.evict_by(&Policy::KeyNorm { budget: Budget::PerHead(&[1, 2]), sinks: 0, recent: 0 })?;
    /// assert_eq!(cache.rows().positions(), array![[0, -1], [1, 2]]); // each its shortest keys
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
        check_cache_config("per_head_cache", sizes, capacity)?;
        let cache = KvCache::new(batch * num_kv_heads, 1, head_dim, value_dim, capacity)?;
        Ok(Self { sizes, cache })
    }

    /// The same cache, with keys rotated at their positions when they come, and queries at theirs.
    ///
    /// # Errors
    /// As for [`KvCache::with_rope`].
    pub fn with_rope(self, rope: Rope) -> Result<Self> {
        self.with_rope_at(rope, RopeAt::Append)
    }

    /// `with_rope`, with a choice of when keys are rotated.
    ///
    /// # Errors
    /// Those of `with_rope`.
    pub fn with_rope_at(self, rope: Rope, at: RopeAt) -> Result<Self> {
        Ok(Self { cache: self.cache.with_rope_at(rope, at)?, ..self })
    }

    /// The same cache, in which every attend from now on adds to each slot the weights that it gives it.
    ///
    /// # Errors
    /// As for [`KvCache::with_track`].
    pub fn with_track(self) -> Result<Self> {
        Ok(Self { cache: self.cache.with_track()?, ..self })
    }

    /// (B, Hkv, …) or, of queries, (B, Hq, …) as (B · Hkv, 1, …) or (B · Hkv, G, …).
    fn rows_of<E: Clone>(&self, x: &ArrayRef4<E>) -> Array4<E> {
        // 1. rows: a row for each KV head of a row; G = 1 for keys and values
        let Sizes { batch, num_kv_heads, .. } = self.sizes;
        let (_, heads, len, n) = x.dim();
        let shape = (batch * num_kv_heads, heads / num_kv_heads, len, n);
        Array::from_shape_vec(shape, x.iter().cloned().collect()).expect("as many numbers")
    }

    /// The same for what may have to be broadcast to (B, Hq, Tq, L) first.
    fn table_rows<E: Clone>(
        &self,
        x: &ArrayRefD<E>,
        shape: (usize, usize, usize, usize),
    ) -> Array<E, IxDyn> {
        let x = x.broadcast(shape).expect("checked"); // (B, Hq, Tq, L)
        self.rows_of::<E>(&x).into_dyn() // (B · Hkv, G, Tq, L)
    }

    /// One number a row (B) as one for each of its heads, (B · Hkv).
    fn each_head<E: Copy>(&self, numbers: impl IntoIterator<Item = E>) -> Vec<E> {
        let heads = self.sizes.num_kv_heads;
        numbers.into_iter().flat_map(|number| vec![number; heads]).collect()
    }

    /// Keys, values and lengths of an append to the contiguous cache.
    fn new_rows(
        &self,
        (k, v): (&ArrayRef4<S>, &ArrayRef4<S>),
        options: &Append<'_>,
    ) -> Result<NewRows<S>> {
        check_append("append", k.dim(), v.dim(), options, self.sizes)?;
        let lengths = options.lengths.map(|n| Array1::from(self.each_head(n.iter().copied())));
        Ok((self.rows_of(k), self.rows_of(v), lengths))
    }
}

impl<S: Stored> Cache<S> for PerHeadCache<S> {
    fn sizes(&self) -> Sizes {
        self.sizes
    }

    fn rows(&self) -> &Rows {
        self.cache.rows()
    }

    fn row_shape(&self) -> Vec<usize> {
        vec![self.sizes.batch, self.sizes.num_kv_heads]
    }

    fn rope(&self) -> Option<&Rope> {
        self.cache.rope()
    }

    fn check_append(&self, k: &ArrayRef4<S>, v: &ArrayRef4<S>, options: &Append<'_>) -> Result<()> {
        let (rows_of_k, rows_of_v, lengths) = self.new_rows((k, v), options)?;
        let options = Append { lengths: lengths.as_deref(), ..*options };
        self.cache.check_append(&rows_of_k, &rows_of_v, &options)
    }

    fn append(&mut self, k: &ArrayRef4<S>, v: &ArrayRef4<S>, options: &Append<'_>) -> Result<()> {
        let (rows_of_k, rows_of_v, lengths) = self.new_rows((k, v), options)?;
        let options = Append { lengths: lengths.as_deref(), ..*options };
        self.cache.append(&rows_of_k, &rows_of_v, &options)
    }

    fn longest_after(&self, counts: &[usize]) -> usize {
        self.cache.longest_after(&self.each_head(counts.iter().copied()))
    }

    fn attend_steps(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
    ) -> Result<Steps<S::Compute>> {
        self.check_attend(q.dim(), self.rows().longest(), options)?;
        if options.sinks.is_some() {
            return Err(AttentionError::Unsupported("sinks".into())); // rows of one head have one for all
        }

        // 2. attend: in the contiguous cache, the queries of each group to the slots of their own head
        let (batch, hq, tq, _) = q.dim();
        let table = (batch, hq, tq, self.rows().longest()); // (B, Hq, Tq, L)
        let keep = options.mask.keep.map(|keep| self.table_rows(keep, table)); // (B · Hkv, G, Tq, L)
        let bias = options.bias.map(|bias| self.table_rows(bias, table)); // (B · Hkv, G, Tq, L)
        let start = match options.mask.q_offset {
            Some(Offset::PerRow(start)) => {
                Some(Array1::from(self.each_head(start.iter().copied())))
            }
            _ => None,
        }; // (B · Hkv)
        let q_offset = start.as_ref().map(|start| Offset::PerRow(start)).or(options.mask.q_offset);
        let mask = Mask { keep: keep.as_deref(), q_offset, ..options.mask };
        let options = Sdpa { mask, bias: bias.as_deref(), ..*options };
        let steps = self.cache.attend_steps(&self.rows_of(q), &options)?;
        Ok(Steps {
            output: self.joined(steps.output),   // (B, Hq, Tq, Dv)
            weights: self.joined(steps.weights), // (B, Hq, Tq, L)
            lse: self.joined(steps.lse),         // (B, Hq, Tq)
            scores: self.joined(steps.scores),   // (B, Hq, Tq, L)
            capped: self.joined(steps.capped),   // (B, Hq, Tq, L)
            biased: self.joined(steps.biased),   // (B, Hq, Tq, L)
        })
    }

    fn truncate(&mut self, _lengths: &[i64]) -> Result<()> {
        check_joined_heads("truncate", "lengths")
    }

    fn reset(&mut self) {
        self.cache.reset();
    }

    fn read(&self) -> Held<S> {
        let held = self.cache.read(); // (B · Hkv, 1, L, ·)
        Held { k: self.joined(held.k), v: self.joined(held.v), ..held }
    }

    fn tracked(&self) -> Result<Array3<f64>> {
        Ok(self.joined(self.cache.tracked()?)) // (B, Hkv, L)
    }

    fn reorder(&mut self, index: &[i64]) -> Result<()> {
        let heads = self.sizes.num_kv_heads;
        let index = checked_index(index, self.sizes.batch)?;
        let of_heads = |b| (b * heads..(b + 1) * heads).map(|row| row as i64);
        self.cache.reorder(&index.into_iter().flat_map(of_heads).collect::<Vec<_>>())
    }

    fn fork(&self) -> Box<dyn Cache<S>> {
        Box::new(self.clone())
    }

    fn stats(&self) -> Stats {
        self.cache.stats()
    }

    fn evict(&mut self, positions: &[i64]) -> Result<()> {
        self.cache.evict(positions)
    }

    fn evict_by(&mut self, policy: &Policy<'_, S::Compute>) -> Result<()> {
        let Sizes { batch, num_kv_heads, .. } = self.sizes;
        check_eviction(self, policy, Some(num_kv_heads), self.cache.is_tracking())?;
        let (budget, _, _) = policy.ends();
        let budgets: Vec<usize> =
            (0..batch * num_kv_heads).map(|row| budget.of(row % num_kv_heads)).collect();
        let &Policy::SnapKv { sinks, recent, q, scale, pool, .. } = policy else {
            return self.cache.keep_chosen(policy, &budgets);
        };
        let q = &self.rows_of(q); // (B · Hkv, G, W, D)
        let policy = Policy::SnapKv { budget, sinks, recent, q, scale, pool };
        self.cache.keep_chosen(&policy, &budgets)
    }

    fn shift(&mut self, by: i64, from: i64) -> Result<()> {
        self.cache.shift(by, from)
    }

    fn describe(&self) -> Description {
        let of_rows = self.cache.describe();
        let own = Description::of_kv::<S>("per_head", self.sizes);
        let more =
            of_rows.0.into_iter().filter(|(name, _)| own.0.iter().all(|(own, _)| own != name));
        Description(own.0.iter().cloned().chain(more).collect())
    }

    fn columns(&self) -> Vec<Column> {
        let heads = Some(self.sizes.num_kv_heads);
        self.cache.columns().into_iter().map(|column| Column { heads, ..column }).collect()
    }

    fn contents(&self) -> Contents {
        self.cache.contents()
    }

    fn restore(&mut self, rows: Rows, contents: &Contents) -> Result<()> {
        self.cache.restore(rows, contents)
    }
}

impl<S: Stored> PerHeadCache<S> {
    /// (B · Hkv, G, …) as (B, Hq, …).
    fn joined<E: Clone, D: Dimension>(&self, x: Array<E, D>) -> Array<E, D> {
        // 3. join: the heads of a row side by side again
        let mut shape = x.raw_dim();
        (shape[0], shape[1]) = (self.sizes.batch, self.sizes.num_kv_heads * shape[1]);
        Array::from_shape_vec(shape, x.iter().cloned().collect()).expect("as many numbers")
    }
}
