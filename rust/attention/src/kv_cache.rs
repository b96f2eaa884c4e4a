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

use ndarray::{Array1, Array4, ArrayRef1, ArrayRef4, ArrayView4, s};

use crate::cast::{Stored, widen};
use crate::checks::{check_append, check_attend, check_cache_config, check_room, check_truncate};
use crate::errors::Result;
use crate::masks::{Mask, Offset};
use crate::sdpa::{Sdpa, Steps, sdpa_steps};

/// Keys (B, Hkv, length, D) and values (B, Hkv, length, Dv). A call that fails leaves the cache as
/// it was.
#[derive(Debug, Clone)]
pub struct KvCache<S> {
    k: Array4<S>,         // (B, Hkv, room, D)
    v: Array4<S>,         // (B, Hkv, room, Dv)
    lengths: Array1<i64>, // (B)
    capacity: Option<usize>,
}

impl<S: Stored> KvCache<S> {
    /// An empty cache. `capacity`: most positions a row may hold; `None` = grows by doubling.
    ///
    /// # Errors
    /// `InvalidConfig` when `num_kv_heads` or `head_dim` is 0.
    ///
    /// ```
    /// use ndarray::{Array4, array};
    /// use rosetta_attention::{KvCache, Sdpa};
    /// let mut cache = KvCache::<f32>::new(1, 1, 1, 1, None)?;
    /// for value in [1.0, 2.0, 6.0] {
    ///     cache.append(&Array4::ones((1, 1, 1, 1)), &array![[[[value]]]], None)?;
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
        check_cache_config("kv_cache", batch, num_kv_heads, (head_dim, value_dim), capacity)?;
        let room = capacity.unwrap_or(0);
        Ok(Self {
            k: Array4::default((batch, num_kv_heads, room, head_dim)),
            v: Array4::default((batch, num_kv_heads, room, value_dim)),
            lengths: Array1::zeros(batch),
            capacity,
        })
    }

    /// L, the length of the longest row.
    pub fn len(&self) -> usize {
        self.lengths.iter().max().map_or(0, |&longest| longest as usize)
    }

    /// Whether no row holds anything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many positions each row holds: (B).
    pub fn lengths(&self) -> &ArrayRef1<i64> {
        &self.lengths
    }

    /// A view (B, Hkv, L, D); what lies beyond a row's length is junk.
    pub fn keys(&self) -> ArrayView4<'_, S> {
        self.k.slice(s![.., .., ..self.len(), ..])
    }

    /// A view (B, Hkv, L, Dv); what lies beyond a row's length is junk.
    pub fn values(&self) -> ArrayView4<'_, S> {
        self.v.slice(s![.., .., ..self.len(), ..])
    }

    /// Add `k` (B, Hkv, T, D) and `v` (B, Hkv, T, Dv), T >= 0, after the last position of each row.
    ///
    /// `lengths`: (B), how many of the T count in each row; `None` = all.
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`, `CapacityExceeded`.
    pub fn append(
        &mut self,
        k: &ArrayRef4<S>,
        v: &ArrayRef4<S>,
        lengths: Option<&ArrayRef1<i64>>,
    ) -> Result<()> {
        // 1. check: everything, before anything is changed
        let (batch, heads, room, d) = self.k.dim();
        let (new, dv) = (k.dim().2, self.v.dim().3);
        check_append("append", k.dim(), v.dim(), lengths, (batch, heads, d, dv))?;
        let counts = lengths.map_or(Array1::from_elem(batch, new as i64), |n| n.to_owned()); // (B)
        let ends = &self.lengths + &counts; // (B)
        let needed = ends.iter().max().map_or(0, |&longest| longest as usize);
        check_room("append", needed, self.capacity)?;

        // 2. grow: at least double, so that n appends copy O(n) positions
        if needed > room {
            let more = needed.max(2 * room);
            self.k = with_room(&self.k, more); // (B, Hkv, room, D)
            self.v = with_room(&self.v, more); // (B, Hkv, room, Dv)
        }

        // 3. write: each row at its own end
        for b in 0..batch {
            let (start, end) = (self.lengths[b] as usize, ends[b] as usize);
            let count = end - start;
            self.k.slice_mut(s![b, .., start..end, ..]).assign(&k.slice(s![b, .., ..count, ..]));
            self.v.slice_mut(s![b, .., start..end, ..]).assign(&v.slice(s![b, .., ..count, ..]));
        }

        // 4. advance: only now do the new positions exist
        self.lengths = ends;
        Ok(())
    }

    /// Attention of `q` (B, Hq, Tq, D) over the positions held: (B, Hq, Tq, Dv).
    ///
    /// Mask and bias are over the L positions held. `mask.q_offset` `None` puts the last query on
    /// the last position of its row; `mask.kv_lengths` is the cache's own and must be `None`. With
    /// halves held, queries and result are what those are computed in.
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`.
    pub fn attend(
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
    pub fn attend_steps(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
    ) -> Result<Steps<S::Compute>> {
        check_attend("attend", &options.mask)?;

        // 5. align: the last query stands on the last position of its row
        let last = &self.lengths - q.dim().2 as i64; // (B)
        let q_offset = options.mask.q_offset.unwrap_or(Offset::PerRow(&last));
        let mask =
            Mask { kv_lengths: Some(&self.lengths), q_offset: Some(q_offset), ..options.mask };

        // 6. attend: over what is held, views of it unless it has to be widened
        let options = Sdpa { mask, ..*options };
        sdpa_steps(q, &widen(self.keys()), &widen(self.values()), &options)
    }

    /// Forget from the end: row b keeps its first `lengths[b]` positions.
    ///
    /// # Errors
    /// `ShapeMismatch`, `InvalidConfig`.
    pub fn truncate(&mut self, lengths: &[i64]) -> Result<()> {
        // 7. truncate: the memory stays, the positions beyond are junk from now on
        check_truncate("truncate", lengths, &self.lengths)?;
        self.lengths = Array1::from(lengths.to_vec()); // (B)
        Ok(())
    }

    /// Forget everything; the memory is kept.
    pub fn reset(&mut self) {
        // 8. reset: a cache of length 0
        self.lengths.fill(0); // (B)
    }

    /// Copies of keys (B, Hkv, L, D) and values (B, Hkv, L, Dv), zero beyond a row's length, and
    /// lengths (B).
    pub fn read(&self) -> (Array4<S>, Array4<S>, Array1<i64>) {
        // 9. read: by selection, since junk may be NaN
        let mut k = self.keys().to_owned(); // (B, Hkv, L, D)
        let mut v = self.values().to_owned(); // (B, Hkv, L, Dv)
        for (b, &length) in self.lengths.iter().enumerate() {
            k.slice_mut(s![b, .., length as usize.., ..]).fill(S::default());
            v.slice_mut(s![b, .., length as usize.., ..]).fill(S::default());
        }
        (k, v, self.lengths.clone())
    }
}

/// `x` (B, Hkv, old, n) at the start of a block (B, Hkv, room, n).
fn with_room<S: Stored>(x: &ArrayRef4<S>, room: usize) -> Array4<S> {
    let (batch, heads, old, n) = x.dim();
    let mut larger = Array4::default((batch, heads, room, n));
    larger.slice_mut(s![.., .., ..old, ..]).assign(x);
    larger
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
            cache.append(&half(0.0), &half(value), None).unwrap();
        }
        assert_eq!(cache.read().1[[0, 0, 1, 0]], bf16::from_f32(1.0 + 1.0 / 128.0));
        let output = cache.attend(&array![[[[1.0]]]], &Sdpa::default()).unwrap();
        assert_eq!(output, array![[[[1.0 + 1.0 / 256.0]]]]); // between two bf16
    }

    #[test]
    fn room_doubles() {
        let mut cache = KvCache::<f32>::new(1, 1, 1, 1, None).unwrap();
        let one = Array4::zeros((1, 1, 1, 1));
        let mut rooms = vec![];
        for _ in 0..9 {
            cache.append(&one, &one, None).unwrap();
            rooms.push(cache.k.dim().2);
        }
        assert_eq!(rooms, [1, 2, 4, 4, 8, 8, 8, 8, 16]);
        assert_eq!(KvCache::<f32>::new(1, 1, 1, 1, Some(5)).unwrap().k.dim().2, 5);
    }
}
