//! Attention over the slots of a cache where they lie, by the kernels for few rows.
//!
//! What it changes, beside the attend of a readable cache: nothing is gathered, and no score is kept. Halves and integers
//! become f32 in the registers where they are multiplied; the scale of a row's codes is multiplied into its score and its
//! weight. Codes with zero points, with scales for groups of channels, and fp8 become f32 some rows before they are read
//! (`widen`), and so do all kinds on the portable tier; in f64 they are restored as the readable text does it. Integer dot
//! products would need queries in few bits too: three parts of 8 bits keep 24 of the largest channel, but the bounds are
//! those of each channel, and with four parts they take as long as the multiply-adds that they replace. Slots are
//! ascending in their positions, so causal masks and windows are intervals of slots; in a rotating cache two, what stays
//! and the window. Many rows, as in prefill over what is held, go a register of rows at a time: half as fast as in a tile.
//! Where nothing has to be widened and no position is missing, they go to the tiles of `sdpa_simd`.
//!
//! Decode with G = 4 over 16384 slots of 128 channels, against f32 (128 MiB, AVX-512, Zen 4): f16 1.6 to 1.9 times as fast,
//! bf16 2.1 to 2.3, int8 2.3 to 2.4, int4 2.0, int8 and int4 with zero points 1.3, fp8 1.2, f32 in pages of 64 slots 1.1,
//! of 16 0.9 (`cargo run --release --example cache_ratio`). The multiply-adds alone take 2.3 ms of the 3.7 ms of int8: no
//! kernel that makes them could be more than 3.9 times as fast as f32 here.

use ndarray::{Array1, Array3, Array4, ArrayRef4, s};

use super::across::Across;
use super::decode::{Decode, Room, few_rows};
use super::source::{Kind, Lines};
use super::tier::Tier;
use super::tile::{Rows as TileRows, Seen, Tile};
use super::vectors::Vectors;
use crate::cache_rope::{CacheRope, turned};
use crate::errors::{AttentionError, Result};
use crate::float::Float;
use crate::masks::steps;
use crate::rows::Rows;
use crate::sdpa::Sdpa;

/// Keys and values of one head of one row.
pub(crate) type KeysValues<'a, T> = [Lines<'a, T>; 2];

/// What an attend of any kind is over.
pub(crate) struct Cached<'a, T> {
    /// As what they are stored.
    pub kind: Kind,
    /// (B · Hkv)
    pub heads: Vec<KeysValues<'a, T>>,
    /// Dv.
    pub value_dim: usize,
    /// The positions of the slots.
    pub rows: &'a Rows,
    /// How keys were rotated, and queries are to be.
    pub rope: &'a CacheRope,
    /// W, and how many first positions stay: of a rotating cache.
    pub window: Option<(usize, usize)>,
}

impl<T: Float> Cached<'_, T> {
    /// Output (B, Hq, Tq, Dv) and lse (B, Hq, Tq) of queries the first of which stands at `start` (B), for arguments
    /// that were checked.
    pub(crate) fn attend(
        &self,
        q: &ArrayRef4<T>,
        start: &Array1<i64>,
        options: &Sdpa<'_, T>,
        tier: Tier,
    ) -> (Array4<T>, Array3<T>) {
        let stands = Rows::placed(start, q.dim().2); // (B, Tq)
        let q = turned(q.view(), self.rope.of_queries(), &stands); // (B, Hq, Tq, D)
        let seen = |b: usize, i: usize| self.seen(b, stands[[b, i]], options);
        T::attend_cached(&Call { q: &q, cached: self, options, seen: &seen, tier })
    }

    /// The slots of row `b` that a query at position `p` sees.
    fn seen(&self, b: usize, p: i64, options: &Sdpa<'_, T>) -> Seen {
        let row = self.rows.row(b);
        let before = |j: i64| row.partition_point(|&position| position < j);
        let through = |j: i64| row.partition_point(|&position| position <= j);
        let (mut first, mut end, mut but) = (0, row.len(), 0..0);
        let (left, right) = options.mask.window.unwrap_or_default();
        if options.mask.causal || self.window.is_some() {
            end = through(p);
        }
        if let Some(left) = left {
            first = before(p.saturating_sub(steps(left)));
        }
        if let Some(right) = right {
            end = end.min(through(p.saturating_add(steps(right))));
        }
        if let Some((window, keep)) = self.window {
            but = before(steps(keep))..through(p.saturating_sub(steps(window)));
            if but.start <= first {
                first = first.max(but.end);
                but = 0..0;
            }
        }
        Seen { own: first.min(end)..end, but: but.start..but.end.max(but.start) }
    }
}

/// How an attend is refused that this rung does not do, though the readable one does; else the tier.
pub(crate) fn check_cached<T>(
    options: &Sdpa<'_, T>,
    rope: &CacheRope,
    tracks: bool,
    tier: Option<Tier>,
) -> Result<Tier> {
    let tier = Tier::choose(tier)?;
    let lacks = |feature: &str| Err(AttentionError::Unsupported(feature.into()));
    if options.dropout.is_some() {
        return lacks("dropout");
    }
    if rope.of_attended().is_some() {
        return lacks("rope_at");
    }
    if tracks {
        return lacks("track"); // it adds up the weights, which are never held
    }
    Ok(tier)
}

/// The arguments of one call, on a tier that is available.
pub struct Call<'a, T> {
    q: &'a ArrayRef4<T>,
    cached: &'a Cached<'a, T>,
    options: &'a Sdpa<'a, T>,
    seen: &'a dyn Fn(usize, usize) -> Seen,
    tier: Tier,
}

/// Output (B, Hq, Tq, Dv) and lse (B, Hq, Tq).
pub(super) fn attend<T: Float>(call: &Call<'_, T>) -> (Array4<T>, Array3<T>) {
    let ((batch, hq, tq, _), dv) = (call.q.dim(), call.cached.value_dim);
    let (mut output, mut lse) =
        (Array4::zeros((batch, hq, tq, dv)), Array3::zeros((batch, hq, tq)));
    let out = output.as_slice_mut().expect("standard layout"); // (B · Hkv · G · Tq · Dv)
    let lses = lse.as_slice_mut().expect("standard layout"); // (B · Hkv · G · Tq)
    assert!(call.tier.is_available());
    match call.tier {
        // SAFETY: the tier is available.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512 => unsafe { every_head::<<T as Vectors>::Avx512>(call, out, lses) },
        // SAFETY: the tier is available.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 => unsafe { every_head::<<T as Vectors>::Avx2>(call, out, lses) },
        // SAFETY: the tier is available.
        #[cfg(target_arch = "aarch64")]
        Tier::Neon => unsafe { every_head::<<T as Vectors>::Neon>(call, out, lses) },
        // SAFETY: these registers need no instruction set.
        _ => unsafe { every_head::<T::Portable>(call, out, lses) },
    }
    (output, lse)
}

/// # Safety
/// The processor has the instruction set of `V`.
unsafe fn every_head<V: Across>(
    call: &Call<'_, V::Scalar>,
    output: &mut [V::Scalar],
    lse: &mut [V::Scalar],
) {
    let ((batch, hq, tq, d), dv) = (call.q.dim(), call.cached.value_dim);
    let (heads, slots) = (&call.cached.heads, call.cached.rows);
    let count = lse.len() / heads.len().max(1); // G · Tq
    if count == 0 {
        return;
    }
    let (hkv, mut tile, mut room) = (heads.len() / batch, Tile::default(), Room::new());
    for (at, [k, v]) in heads.iter().enumerate() {
        let (b, first) = (at / hkv, at % hkv * (hq / hkv));
        let q = call.q.slice(s![b, first..first + hq / hkv, .., ..]);
        let q = q.as_standard_layout();
        let head = Decode {
            options: call.options,
            scale: call.options.scale_of(d),
            table: (batch, hq, tq, slots.longest()),
            keys: slots.row(b).len(),
            sizes: (d, dv),
            q: q.as_slice().expect("standard layout"),
            kind: call.cached.kind,
            k,
            v,
        };
        // As many rows at a time as there are sums in registers for, however many there are.
        for start in (0..count).step_by(V::COUNT) {
            let rows =
                TileRows { b, head: first, tq, first: start, count: V::COUNT.min(count - start) };
            let reach = tile.reach_of(rows, head.keys, &|i| (call.seen)(b, i));
            let lines = at * count + start..at * count + start + rows.count;
            let (output, lse) = (&mut output[lines.start * dv..lines.end * dv], &mut lse[lines]);
            // SAFETY: the caller vouches for the instruction set.
            unsafe { few_rows::<V>(&head, (rows, reach), (&mut tile, &mut room), output, lse) };
        }
    }
}
