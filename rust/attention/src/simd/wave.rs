//! Some tiles of one head together, so that they share what they bring into the cache.
//!
//! A block of keys and its values are taken by all tiles of a wave, one after the other, before the next block: it comes
//! from memory once for all of them, and is in L2 for all but the first. What belongs to a tile, its queries and sums,
//! is small beside that. No tile knows of the others: a query gets the same bits in any wave.

use std::ops::Range;

use super::attend::{Call, Head};
use super::buffer::Buffer;
use super::lanes::{Lanes, Work};
use super::tile::{Layout, Rows, Sizes, Tile, blocks};
use super::{kernel, online};
use crate::float::Float;

/// Tiles of a wave. With D = 128 and f32 each has 64 KiB of queries and sums; so many of them, the scores of one, and a
/// block of keys and values, 256 KiB, leave half of an L2 of 2 MiB free.
pub(super) const WAVE: usize = 8;

/// What a thread keeps from call to call at most: with f32, the buffers of a full wave of D = Dv = 256.
const MOST_KEPT: usize = 5 << 18;

/// Buffers, kept from wave to wave, and by a thread from call to call: a piece of a shared call, or a small call, takes
/// about as long as it takes to get memory for them from the system.
#[derive(Debug)]
pub struct Wave<T> {
    tiles: Vec<Tile<T>>,
    /// Of each tile, the keys that some row of it sees.
    reaches: Vec<Range<usize>>,
    /// Of the tile that is at work.
    scores: Buffer<T>,
}

impl<T: Float> Wave<T> {
    /// The buffers that this thread has kept, or new ones.
    pub fn take() -> Self {
        T::kept().take().unwrap_or_else(|| Self {
            tiles: vec![Tile::default()],
            reaches: Vec::new(),
            scores: Buffer::default(),
        })
    }

    /// Leaves the buffers to the next call on this thread, unless they are large.
    pub fn keep(self) {
        let of_tiles: usize = self.tiles.iter().map(Tile::bytes).sum();
        if of_tiles + self.scores.bytes() <= MOST_KEPT {
            T::kept().set(Some(self));
        }
    }
}

/// `output` (rows, Dv) and `lse` (rows) of rows that make up at most `WAVE` tiles of M · COUNT rows.
///
/// # Safety
/// The processor has the instruction set of `V`.
pub(super) unsafe fn some_tiles<V: Lanes, const M: usize>(
    call: &Call<'_, V::Scalar>,
    rows: Rows,
    head: Head<'_, V::Scalar>,
    wave: &mut Wave<V::Scalar>,
    output: &mut [V::Scalar],
    lse: &mut [V::Scalar],
) {
    let ((_, _, tk, _), dv, width) = (call.k.dim(), call.v.dim().3, M * V::COUNT);
    let each = (0..rows.count).step_by(width).map(|at| Rows {
        first: rows.first + at,
        count: width.min(rows.count - at),
        ..rows
    });
    let count = each.len();
    if wave.tiles.len() < count {
        wave.tiles.resize_with(count, Tile::default);
    }
    wave.reaches.clear();
    for (tile, rows) in wave.tiles.iter_mut().zip(each.clone()) {
        wave.reaches.push(tile.reach(&call.options.mask, rows, tk));
        // SAFETY: the caller vouches for the instruction set.
        unsafe { V::apart(Begin::<V, M> { call, rows, head, tile }) };
    }

    let seen = wave.reaches.iter().filter(|reach| !reach.is_empty());
    let first = seen.clone().map(|reach| reach.start).min().unwrap_or(0);
    let last = seen.map(|reach| reach.end).max().unwrap_or(0);
    for keys in blocks(first..last) {
        for ((tile, reach), rows) in wave.tiles.iter_mut().zip(&wave.reaches).zip(each.clone()) {
            let keys = keys.start.max(reach.start)..keys.end.min(reach.end);
            if !keys.is_empty() {
                std::mem::swap(&mut tile.scores, &mut wave.scores);
                let follows = keys.start > reach.start;
                // SAFETY: `Begin` made room; the caller vouches for the instruction set.
                unsafe { V::apart(Advance::<V, M> { call, rows, head, tile, keys, follows }) };
                std::mem::swap(&mut tile.scores, &mut wave.scores);
            }
        }
    }

    for (n, (tile, rows)) in wave.tiles.iter_mut().zip(each).enumerate() {
        let (start, end) = (n * width, n * width + rows.count);
        tile.divisors(&mut lse[start..end]);
        let output = &mut output[start * dv..end * dv];
        // SAFETY: `Begin` made room; the caller vouches for the instruction set.
        unsafe { V::apart(Finish::<V, M> { tile, count: rows.count, dv, output }) };
    }
}

/// Makes room for the sums of a tile, and packs its queries.
struct Begin<'a, V: Lanes, const M: usize> {
    call: &'a Call<'a, V::Scalar>,
    rows: Rows,
    head: Head<'a, V::Scalar>,
    tile: &'a mut Tile<V::Scalar>,
}

impl<V: Lanes, const M: usize> Work for Begin<'_, V, M> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { call, rows, head, tile } = self;
        let (d, dv, width) = (call.k.dim().3, call.v.dim().3, M * V::COUNT);
        let sizes = Sizes { rows: width, queries: d * width, sums: dv * width, turned: 0 };
        tile.start(call.options.sinks, rows, sizes);
        // The rows past the last one are zeros.
        if rows.count < width {
            tile.queries.fill(kernel::num(0.0));
        }
        let q = &head.q[rows.first * d..(rows.first + rows.count) * d];
        let to = tile.queries.as_mut_ptr();
        // SAFETY: `q` has the rows, `queries` a line of `width` for each channel; the caller vouches for the rest.
        unsafe { kernel::turn::<V>((rows.count, d), q.as_ptr(), d, to, width) };
        tile.queries.iter_mut().for_each(|x| *x *= call.scale);
    }
}

/// One tile, for which `Begin` has made room, over some keys of one block. `follows`: it has seen others.
struct Advance<'a, V: Lanes, const M: usize> {
    call: &'a Call<'a, V::Scalar>,
    rows: Rows,
    head: Head<'a, V::Scalar>,
    tile: &'a mut Tile<V::Scalar>,
    keys: Range<usize>,
    follows: bool,
}

impl<V: Lanes, const M: usize> Work for Advance<'_, V, M> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { call, rows, head, tile, keys, follows } = self;
        let (d, dv, width) = (call.k.dim().3, call.v.dim().3, M * V::COUNT);
        tile.room(Layout { key: width, row: 1 }, keys.len() * width);
        let k = &head.k[keys.start * d..keys.end * d];
        let v = &head.v[keys.start * dv..keys.end * dv];
        // SAFETY: `room` and `Begin` made buffers of these sizes; the caller vouches for the instruction set.
        unsafe {
            let seen = tile.seen(&keys, width / 2);
            let Tile { queries, scores, .. } = &mut *tile;
            let mut extremes = kernel::scores::<V, M>(queries, (k, seen), d, scores, v.as_ptr());
            if tile.alter(call, rows, &keys) {
                extremes = online::extremes::<V, M>(&tile.scores);
            }
            let Tile { scores, sums, sinks, top, total, factors, .. } = tile;
            let block = online::advance::<V, M>(extremes, sinks, top, total, factors);
            if follows && block.rescales {
                online::rescale::<V, M>(sums, factors);
            }
            kernel::weighted_sum::<V, M>(scores, &block, (v, seen), dv, total, sums);
        }
    }
}

/// Writes the `output` (count, Dv) of a tile that knows its divisors.
struct Finish<'a, V: Lanes, const M: usize> {
    tile: &'a mut Tile<V::Scalar>,
    count: usize,
    dv: usize,
    output: &'a mut [V::Scalar],
}

impl<V: Lanes, const M: usize> Work for Finish<'_, V, M> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { tile, count, dv, output } = self;
        let (from, to) = (&mut tile.sums[..], output.as_mut_ptr());
        // SAFETY: `from` has a line of M · COUNT for each channel, `output` one of Dv for each row; the caller vouches
        // for the instruction set.
        unsafe {
            online::divide::<V, M>(from, &tile.factors);
            kernel::turn::<V>((dv, count), from.as_ptr(), M * V::COUNT, to, dv);
        }
    }
}
