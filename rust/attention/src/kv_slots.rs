//! Keys and values as they were given, slot by slot: what contiguous, rotating and cross caches are made of.
//!
//! Nothing here is checked, and no row forgets by itself: that is the matter of the kinds.
//!
//! Letters: B batch, Hkv heads, T new tokens, L slots of the longest row, D and Dv head sizes.

use ndarray::{Array1, ArrayRef4, ArrayView4, Ix4, s};

use crate::allocation::Purpose;
use crate::cache::{Append, Held, Sizes, Slots, Stats, checked_index};
use crate::cache_content::{Contents, array_from_bytes, array_to_bytes};
use crate::cache_rope::{CacheRope, further_turned, turned};
use crate::cast::{Stored, widen};
use crate::checks::check_shift;
use crate::errors::Result;
use crate::masks::{Mask, Offset};
use crate::memory::Memory;
use crate::merge::OutputLse;
use crate::rows::Rows;
use crate::sdpa::{Sdpa, Steps};
use crate::simd::{Cached, KeysValues, Kind, Lines, Tier, check_cached, sdpa_simd};
use crate::track::Track;

/// Rows of a KV head that are too many to go without tiles.
const MANY: usize = 32;

/// Two memories, and the rows that say what of them is held.
#[derive(Debug, Clone)]
pub(crate) struct KvSlots<S> {
    pub sizes: Sizes,
    pub rope: CacheRope,
    pub track: Track,
    pub rows: Rows,
    k: Memory<S>, // (B, Hkv, room, D)
    v: Memory<S>, // (B, Hkv, room, Dv)
}

impl<S: Stored> KvSlots<S> {
    pub(crate) fn new(purpose: Purpose, sizes: Sizes, room: usize) -> Result<Self> {
        let Sizes { batch, num_kv_heads, head_dim, value_dim } = sizes;
        Ok(Self {
            sizes,
            rope: CacheRope::default(),
            track: Track::default(),
            rows: Rows::new(purpose, batch)?,
            k: Memory::new(purpose, (batch, num_kv_heads, room, head_dim))?,
            v: Memory::new(purpose, (batch, num_kv_heads, room, value_dim))?,
        })
    }

    /// A view (B, Hkv, L, D); junk beyond a row's length.
    pub(crate) fn keys(&self) -> ArrayView4<'_, S> {
        self.k.view(self.rows.longest())
    }

    /// A view (B, Hkv, L, Dv); junk beyond a row's length.
    pub(crate) fn values(&self) -> ArrayView4<'_, S> {
        self.v.view(self.rows.longest())
    }

    /// Memory for an append after which the longest row has `room` slots.
    pub(crate) fn grow(&mut self, room: usize) -> Result<()> {
        self.k.grow(Purpose::append(), room)?;
        self.v.grow(Purpose::append(), room)?;
        self.track.grow(room)
    }

    /// The tokens that count behind the slots of each row, keys rotated; they exist after `rows.advance`.
    pub(crate) fn write(&mut self, k: &ArrayRef4<S>, v: &ArrayRef4<S>, options: &Append<'_>) {
        let counts = options.counts(self.sizes.batch, k.dim().2); // (B)
        let k = self.rope.placed(k, &self.rows, options); // (B, Hkv, T, D)
        for (b, &count) in counts.iter().enumerate() {
            let end = self.rows.row(b).len();
            self.k.write(b, end, options.taken(&k, b, count)); // (Hkv, count, D)
            self.v.write(b, end, options.taken(v, b, count)); // (Hkv, count, Dv)
            self.track.write(b, end, count);
        }
    }

    /// Row `b` forgets the positions that do not pass; the others close up.
    pub(crate) fn retain(&mut self, b: usize, keep: impl Fn(i64) -> bool) {
        let slots = self.rows.retain(b, keep);
        self.k.retain(b, &slots);
        self.v.retain(b, &slots);
        self.track.retain(b, &slots);
    }

    /// Positions >= `from` move by `by`; their keys, if rotated, turn on.
    pub(crate) fn shift(&mut self, by: i64, from: i64) -> Result<()> {
        check_shift("shift", &self.rows, by, from)?;
        if let Some(rope) = self.rope.of_held().filter(|_| by != 0) {
            for b in 0..self.sizes.batch {
                let slots = self.rows.slots_from(b, from);
                let turned = further_turned(self.k.slots(b, slots.clone()), rope, by);
                self.k.write(b, slots.start, turned.slice(s![0, .., .., ..])); // (Hkv, moved, D)
            }
        }
        self.rows.shift(by, from);
        Ok(())
    }

    /// Attention over all slots, views of them unless they have to be widened.
    pub(crate) fn attend(
        &self,
        q: &ArrayRef4<S::Compute>,
        start: &Array1<i64>,
        options: &Sdpa<'_, S::Compute>,
        sees: impl Fn(i64, i64) -> bool,
    ) -> Result<Steps<S::Compute>> {
        let slots = Slots::new(self.keys(), self.values(), &self.rows, &self.rope);
        slots.attend(q, start, options, sees)
    }

    /// `attend` on the slots where they lie. `window` is that of a rotating cache.
    pub(crate) fn attend_simd(
        &self,
        q: &ArrayRef4<S::Compute>,
        options: &Sdpa<'_, S::Compute>,
        tier: Option<Tier>,
        window: Option<(usize, usize)>,
    ) -> Result<OutputLse<S::Compute, Ix4>> {
        let tier = check_cached(options, &self.rope, self.track.is_on(), tier)?;
        let start = self.rows.align(q.dim().2, options.mask.q_offset); // (B)
        let Sizes { batch, num_kv_heads, head_dim, value_dim } = self.sizes;
        let (many, whole) = (q.dim().1 * q.dim().2 > MANY * num_kv_heads, self.rows.is_whole());
        if many && whole && window.is_none() {
            let lengths = self.rows.lengths(); // (B)
            let (kv_lengths, q_offset) = (Some(&*lengths), Some(Offset::PerRow(&start)));
            let mask = Mask { kv_lengths, q_offset, ..options.mask };
            let q = turned(q.view(), self.rope.of_queries(), &Rows::placed(&start, q.dim().2));
            let (k, v) = (widen(self.keys()), widen(self.values())); // no copy of what is computed in
            return sdpa_simd(&q, &k, &v, &Sdpa { mask, ..*options }, Some(tier));
        }
        let each = (0..batch).flat_map(|b| (0..num_kv_heads).map(move |h| (b, h)));
        let heads = each
            .map(|(b, h)| -> KeysValues<'_, S::Compute> {
                let (k, v) = (self.k.head(b, h), self.v.head(b, h));
                [Lines::block(k, head_dim), Lines::block(v, value_dim)]
            })
            .collect();
        let (kind, rows, rope) = (Kind::of::<S>(), &self.rows, &self.rope);
        let cached = Cached { kind, heads, value_dim, rows, rope, window };
        Ok(cached.attend(q, &start, options, tier))
    }

    /// New row i is a copy of old row `index[i]`.
    pub(crate) fn reorder(&mut self, index: &[i64]) -> Result<()> {
        let index = checked_index(index, self.sizes.batch)?;
        self.k.reorder(&index);
        self.v.reorder(&index);
        self.track.reorder(&index);
        self.rows.reorder(&index);
        Ok(())
    }

    /// Copies of all slots.
    pub(crate) fn read(&self) -> Held<S> {
        let (longest, lengths) = (self.rows.longest(), self.rows.lengths());
        Held {
            k: self.k.read(longest, &lengths), // (B, Hkv, L, D)
            v: self.v.read(longest, &lengths), // (B, Hkv, L, Dv)
            positions: self.rows.positions(),  // (B, L)
            lengths,
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        self.rows.stats(self.k.slot_bytes() + self.v.slot_bytes())
    }

    /// The columns `k` and `v` of a file, and with a track `tracked`.
    pub(crate) fn contents(&self) -> Contents {
        let held = self.read();
        let both = [array_to_bytes(&held.k), array_to_bytes(&held.v)];
        both.into_iter().chain(self.track.contents(&self.rows)).collect()
    }

    /// The way back, into memory for at least `room` slots a row.
    pub(crate) fn restore(&mut self, rows: Rows, contents: &Contents, room: usize) -> Result<()> {
        let Sizes { batch, num_kv_heads, head_dim, value_dim } = self.sizes;
        let shape = |n| (batch, num_kv_heads, rows.longest(), n);
        let (k, v) = (&contents[0], &contents[1]);
        let k = Memory::holding(Purpose::load(), array_from_bytes(k, shape(head_dim)), room)?;
        let v = Memory::holding(Purpose::load(), array_from_bytes(v, shape(value_dim)), room)?;
        self.track = self.track.restored(contents.get(2), &rows, room)?;
        (self.rows, self.k, self.v) = (rows, k, v);
        Ok(())
    }
}
