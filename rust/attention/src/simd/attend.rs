//! The walk over the tiles, compiled once for each instruction set.

use ndarray::{Array3, Array4, ArrayRef4, s};

use super::lanes::Lanes;
use super::tier::Tier;
use super::tile::{KEY_BLOCK, Layout, Rows, Sizes, Tile, blocks};
use super::vectors::Vectors;
use super::{few, kernel};
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
struct Head<'a, T> {
    /// (G · Tq, D), of all tiles
    q: &'a [T],
    /// (Tk, D)
    k: &'a [T],
    /// (Tk, Dv)
    v: &'a [T],
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
    let mut tile = Tile::default();
    let output = results.output.as_slice_mut().expect("standard layout"); // (B · Hkv · G · Tq · Dv)
    let lse = results.lse.as_slice_mut().expect("standard layout"); // (B · Hkv · G · Tq)
    for (b, kv) in (0..batch).flat_map(|b| (0..hkv).map(move |kv| (b, kv))) {
        // A head is one block of memory already, in an array of any capacity; else it is copied.
        let q = call.q.slice(s![b, kv * group..(kv + 1) * group, .., ..]);
        let (k, v) = (call.k.slice(s![b, kv, .., ..]), call.v.slice(s![b, kv, .., ..]));
        let (q, k, v) = (q.as_standard_layout(), k.as_standard_layout(), v.as_standard_layout());
        let head = Head {
            q: q.as_slice().expect("standard layout"),
            k: k.as_slice().expect("standard layout"),
            v: v.as_slice().expect("standard layout"),
        };
        let lines = (b * hkv + kv) * count; // before this head
        let mut first = 0;
        while first < count {
            let vectors = (count - first).div_ceil(V::COUNT).min(V::BLOCK);
            let end = count.min(first + vectors * V::COUNT);
            let rows = Rows { b, head: kv * group, tq, first, count: end - first };
            let output = &mut output[(lines + first) * dv..(lines + end) * dv];
            // SAFETY: the caller vouches for the instruction set.
            unsafe {
                match vectors {
                    _ if end - first <= V::COUNT / 2 => {
                        few_rows::<V>(call, rows, head, &mut tile, output)
                    }
                    1 => one_tile::<V, 1>(call, rows, head, &mut tile, output),
                    2 => one_tile::<V, 2>(call, rows, head, &mut tile, output),
                    _ if V::BLOCK > 2 => one_tile::<V, 4>(call, rows, head, &mut tile, output),
                    _ => unreachable!("no more than BLOCK registers"),
                }
            }
            tile.finish(output, &mut lse[lines + first..lines + end]);
            first = end;
        }
    }
}

/// The weighted sums of one tile of at most M · COUNT rows, into `output` (rows, Dv).
///
/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
unsafe fn one_tile<V: Lanes, const M: usize>(
    call: &Call<'_, V::Scalar>,
    rows: Rows,
    head: Head<'_, V::Scalar>,
    tile: &mut Tile<V::Scalar>,
    output: &mut [V::Scalar],
) {
    let ((_, _, tk, d), dv, width) = (call.k.dim(), call.v.dim().3, M * V::COUNT);
    let reach = tile.reach(&call.options.mask, rows, tk);
    let sizes = Sizes { rows: width, queries: d * width, sums: dv * width, turned: 0 };
    tile.start(call.options.sinks, rows, sizes);
    // The rows past the last one are zeros.
    if rows.count < width {
        tile.queries.fill(kernel::num(0.0));
    }
    let q = &head.q[rows.first * d..(rows.first + rows.count) * d];
    // SAFETY: `q` has the rows, `queries` a line of `width` for each channel; the caller vouches for the rest.
    unsafe { kernel::turn::<V>((rows.count, d), q.as_ptr(), d, tile.queries.as_mut_ptr(), width) };
    tile.queries.iter_mut().for_each(|x| *x *= call.scale);

    let start = reach.start;
    for keys in blocks(reach) {
        tile.room(Layout { key: width, row: 1 }, keys.len() * width);
        let (k, v) =
            (&head.k[keys.start * d..keys.end * d], &head.v[keys.start * dv..keys.end * dv]);
        // SAFETY: `start` and `room` made buffers of these sizes; the caller vouches for the instruction set.
        unsafe { kernel::scores::<V, M>(&tile.queries, k, d, &mut tile.scores) };
        tile.alter(call, rows, &keys);
        let Tile { scores, sums, sinks, top, total, factors, .. } = &mut *tile;
        // SAFETY: as above.
        unsafe {
            let hides = kernel::exponentials::<V, M>(scores, sinks, top, total, factors);
            if keys.start > start {
                kernel::rescale::<V, M>(sums, factors);
            }
            if dv > 0 {
                kernel::weighted_sum::<V, M>(scores, v, dv, sums, hides);
            }
        }
    }
    let (from, to) = (tile.sums.as_ptr(), output.as_mut_ptr());
    // SAFETY: `sums` has a line of `width` for each channel, `output` one of Dv for each row.
    unsafe { kernel::turn::<V>((dv, rows.count), from, width, to, dv) };
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
