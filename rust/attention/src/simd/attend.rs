//! The walk over the tiles, compiled once for each instruction set.

use ndarray::{Array3, Array4, ArrayRef4, s};

use super::kernel;
use super::lanes::Lanes;
use super::tier::Tier;
use super::tile::{Rows, Tile, reach};
use super::vectors::Vectors;
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

/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
unsafe fn every_tile<V: Lanes>(call: &Call<'_, V::Scalar>, results: &mut Results<V::Scalar>) {
    let ((batch, hq, tq, _), hkv) = (call.q.dim(), call.k.dim().1);
    let group = hq / hkv.max(1); // G
    let mut tile = Tile::new();
    for (b, kv) in (0..batch).flat_map(|b| (0..hkv).map(move |kv| (b, kv))) {
        // A head is one block of memory already, in an array of any capacity; else it is copied.
        let k = call.k.slice(s![b, kv, .., ..]);
        let k = k.as_standard_layout();
        let k = k.as_slice().expect("standard layout"); // (Tk, D)
        let v = call.v.slice(s![b, kv, .., ..]);
        let v = v.as_standard_layout();
        let v = v.as_slice().expect("standard layout"); // (Tk, Dv)

        let count = group * tq;
        let mut first = 0;
        while first < count {
            let vectors = (count - first).div_ceil(V::COUNT).min(V::BLOCK);
            let end = count.min(first + vectors * V::COUNT);
            let at = (first..end).map(|row| (kv * group + row / tq, row % tq)).collect();
            let rows = Rows { b, at };
            // SAFETY: the caller vouches for the instruction set.
            unsafe {
                match vectors {
                    1 => one_tile::<V, 1>(call, &rows, k, v, &mut tile, results),
                    2 => one_tile::<V, 2>(call, &rows, k, v, &mut tile, results),
                    _ if V::BLOCK > 2 => one_tile::<V, 4>(call, &rows, k, v, &mut tile, results),
                    _ => unreachable!("no more than BLOCK registers"),
                }
            }
            first = end;
        }
    }
}

/// The pipeline of one tile of at most M · COUNT queries over one KV head, k (Tk, D), v (Tk, Dv).
///
/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
unsafe fn one_tile<V: Lanes, const M: usize>(
    call: &Call<'_, V::Scalar>,
    rows: &Rows,
    k: &[V::Scalar],
    v: &[V::Scalar],
    tile: &mut Tile<V::Scalar>,
    results: &mut Results<V::Scalar>,
) {
    let ((_, hq, tq, d), (_, _, tk, dv)) = (call.q.dim(), call.v.dim());
    let (table, options) = ((call.q.dim().0, hq, tq, tk), call.options);
    let keys = reach(&options.mask, rows, tk);
    tile.start(call, rows, M * V::COUNT, keys.len());
    let (k, v) = (&k[keys.start * d..keys.end * d], &v[keys.start * dv..keys.end * dv]);

    // SAFETY: `start` made buffers of these sizes; the caller vouches for the instruction set.
    unsafe { kernel::scores::<V, M>(&tile.queries, k, d, &mut tile.scores) };
    if let Some(c) = options.softcap {
        tile.soften(Float::from_f64(c));
    }
    if let Some(bias) = options.bias {
        tile.add(bias.broadcast(table).expect("checked"), rows, &keys);
    }
    if let Some(keep) = options.mask.keep {
        tile.keep(keep.broadcast(table).expect("checked"), rows, &keys);
    }
    tile.hide(&options.mask, rows, tk, &keys);
    let Tile { scores, sums, sinks, top, total, .. } = tile;
    // SAFETY: `start` made buffers of these sizes; the caller vouches for the instruction set.
    unsafe { kernel::exponentials::<V, M>(scores, sinks, top, total) };
    if dv > 0 {
        // SAFETY: `start` made buffers of these sizes; the caller vouches for the instruction set.
        unsafe { kernel::weighted_sum::<V, M>(scores, v, dv, sums) };
    }
    tile.finish(rows, &mut results.output, &mut results.lse);
}
