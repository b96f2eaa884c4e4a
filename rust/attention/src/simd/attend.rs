//! The walk over the tiles, compiled once for each instruction set.

use std::borrow::Cow;
use std::ops::Range;

use ndarray::{Array3, Array4, ArrayRef4, s};

use super::few;
use super::lanes::Lanes;
use super::tier::Tier;
use super::tile::{KEY_BLOCK, Layout, Rows, Sizes, Tile, blocks};
use super::vectors::Vectors;
use super::wave::{WAVE, Wave, some_tiles};
use crate::checks::check_sdpa;
use crate::errors::{AttentionError, Result};
use crate::float::Float;
use crate::sdpa::Sdpa;

/// The arguments of one call, checked, on a tier that is available.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a, T> {
    pub q: &'a ArrayRef4<T>,
    pub k: &'a ArrayRef4<T>,
    pub v: &'a ArrayRef4<T>,
    pub options: &'a Sdpa<'a, T>,
    pub scale: T,
    pub tier: Tier,
}

impl<'a, T: Float> Call<'a, T> {
    /// The arguments of sdpa, checked; the tier chosen as in [`Tier::choose`].
    pub fn new(
        (q, k, v): (&'a ArrayRef4<T>, &'a ArrayRef4<T>, &'a ArrayRef4<T>),
        options: &'a Sdpa<'a, T>,
        tier: Option<Tier>,
    ) -> Result<Self> {
        check_sdpa("sdpa", q.dim(), k.dim(), v.dim(), options)?;
        let tier = Tier::choose(tier)?;
        if options.dropout.is_some() {
            return Err(AttentionError::Unsupported("dropout".into()));
        }
        Ok(Self { q, k, v, options, scale: options.scale_of(q.dim().3), tier })
    }
}

/// What a call writes.
struct Results<T> {
    output: Array4<T>, // (B, Hq, Tq, Dv)
    lse: Array3<T>,    // (B, Hq, Tq)
}

/// Output (B, Hq, Tq, Dv) and lse (B, Hq, Tq).
pub(super) fn attend<T: Float>(call: &Call<'_, T>) -> (Array4<T>, Array3<T>) {
    let ((batch, hq, tq, _), dv) = (call.q.dim(), call.v.dim().3);
    let (output, lse) = (Array4::zeros((batch, hq, tq, dv)), Array3::zeros((batch, hq, tq)));
    let mut results = Results { output, lse };
    assert!(call.tier.is_available());
    match call.tier {
        // SAFETY: the tier is available.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512 => unsafe { avx512(call, &mut results) },
        // SAFETY: the tier is available.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 => unsafe { avx2(call, &mut results) },
        // SAFETY: these registers need no instruction set.
        _ => unsafe { every_tile::<T::Portable>(call, &mut results) },
    }
    (results.output, results.lse)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512<T: Float>(call: &Call<'_, T>, results: &mut Results<T>) {
    // SAFETY: this function has the instruction set.
    unsafe { every_tile::<<T as Vectors>::Avx512>(call, results) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<T: Float>(call: &Call<'_, T>, results: &mut Results<T>) {
    // SAFETY: this function has the instruction set.
    unsafe { every_tile::<<T as Vectors>::Avx2>(call, results) }
}

/// One KV head and the queries of its group, each one block of memory.
#[derive(Clone, Copy)]
pub(super) struct Head<'a, T> {
    /// (G · Tq, D), of all tiles
    pub q: &'a [T],
    /// (Tk, D)
    pub k: &'a [T],
    /// (Tk, Dv)
    pub v: &'a [T],
}

/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
unsafe fn every_tile<V: Lanes>(call: &Call<'_, V::Scalar>, results: &mut Results<V::Scalar>) {
    let ((batch, hq, tq, _), (_, hkv, _, dv)) = (call.q.dim(), call.v.dim());
    let group = hq / hkv.max(1); // G
    let count = group * tq;
    if count == 0 {
        return;
    }
    let mut wave = Wave::new();
    let output = results.output.as_slice_mut().expect("standard layout"); // (B · Hkv · G · Tq · Dv)
    let lse = results.lse.as_slice_mut().expect("standard layout"); // (B · Hkv · G · Tq)
    for (b, kv) in (0..batch).flat_map(|b| (0..hkv).map(move |kv| (b, kv))) {
        let q = block(call.q, b, kv * group..(kv + 1) * group);
        let (k, v) = (block(call.k, b, kv..kv + 1), block(call.v, b, kv..kv + 1));
        let head = Head { q: &q, k: &k, v: &v };
        let lines = (b * hkv + kv) * count; // before this head
        let mut first = 0;
        while first < count {
            let left = count - first;
            let vectors = left.div_ceil(V::COUNT).min(V::BLOCK);
            let tiles = (left / (vectors * V::COUNT)).clamp(1, WAVE); // whole ones, or the last
            let size = left.min(tiles * vectors * V::COUNT);
            let rows = Rows { b, head: kv * group, tq, first, count: size };
            let output = &mut output[(lines + first) * dv..(lines + first + size) * dv];
            let lse = &mut lse[lines + first..lines + first + size];
            // SAFETY: the caller vouches for the instruction set.
            unsafe {
                match vectors {
                    _ if size <= V::COUNT / 2 => {
                        few_rows::<V>(call, rows, head, wave.alone(), output);
                        wave.alone().finish(output, lse);
                    }
                    1 => some_tiles::<V, 1>(call, rows, head, &mut wave, output, lse),
                    2 => some_tiles::<V, 2>(call, rows, head, &mut wave, output, lse),
                    _ if V::BLOCK > 2 => {
                        some_tiles::<V, 4>(call, rows, head, &mut wave, output, lse)
                    }
                    _ => unreachable!("no more than BLOCK registers"),
                }
            }
            first += size;
        }
    }
}

/// Some heads of one row of the batch as one block of memory: where they are, if they are one already, as in an array of
/// any capacity; else copied.
fn block<T: Float>(all: &ArrayRef4<T>, b: usize, heads: Range<usize>) -> Cow<'_, [T]> {
    let (_, count, t, n) = all.dim();
    if let Some(all) = all.as_slice() {
        // What `slice` finds out too, but it looks longer than a short head takes.
        let head = |h: usize| (b * count + h) * t * n;
        return Cow::Borrowed(&all[head(heads.start)..head(heads.end)]);
    }
    let some = all.slice(s![b, heads, .., ..]);
    match some.to_slice() {
        Some(some) => Cow::Borrowed(some),
        None => Cow::Owned(some.iter().copied().collect()),
    }
}

/// The weighted sums of a few rows, into `output` (rows, Dv).
///
/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
unsafe fn few_rows<V: Lanes>(
    call: &Call<'_, V::Scalar>,
    rows: Rows,
    head: Head<'_, V::Scalar>,
    tile: &mut Tile<V::Scalar>,
    output: &mut [V::Scalar],
) {
    let ((_, _, tk, d), dv) = (call.k.dim(), call.v.dim().3);
    let reach = tile.reach(&call.options.mask, rows, tk);
    let (count, room) = (rows.count, few::room::<V>(dv));
    let sizes =
        Sizes { rows: count, queries: count * d, sums: count * room, turned: few::turned::<V>(d) };
    tile.start(call.options.sinks, rows, sizes);
    let q = &head.q[rows.first * d..(rows.first + count) * d];
    tile.queries.iter_mut().zip(q).for_each(|(to, &x)| *to = x * call.scale);

    let stride = reach.len().min(KEY_BLOCK).next_multiple_of(few::width::<V>());
    tile.room(Layout { key: 1, row: stride }, count * stride);
    for keys in blocks(reach) {
        let (k, v) =
            (&head.k[keys.start * d..keys.end * d], &head.v[keys.start * dv..keys.end * dv]);
        let Tile { queries, scores, turned, .. } = &mut *tile;
        // SAFETY: `start` and `room` made buffers of these sizes; the caller vouches for the instruction set.
        unsafe { few::scores::<V>(queries, k, d, turned, (scores, stride), v.as_ptr()) };
        tile.alter(call, rows, &keys);
        let Tile { scores, sums, turned, sinks, top, total, factors, .. } = &mut *tile;
        // SAFETY: as above.
        unsafe {
            let slots = (&mut scores[..], stride);
            let hides = few::exponentials::<V>(slots, keys.len(), sinks, top, total, factors);
            let next = k.as_ptr().wrapping_add(k.len());
            let of =
                few::Weighing { weights: scores, stride, keys: keys.len(), v, dv, hides, next };
            few::weighted_sum::<V>(of, factors, turned, sums, total);
        }
    }
    if dv > 0 {
        for (to, sums) in output.chunks_exact_mut(dv).zip(tile.sums.chunks_exact(room)) {
            to.copy_from_slice(&sums[..dv]);
        }
    }
}
