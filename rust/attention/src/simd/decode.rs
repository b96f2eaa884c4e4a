//! The walk of few rows over the keys and values of a head, wherever these lie.
//!
//! Keys are taken in segments of 1024, each with a softmax of its own, which are put together in the end: so threads
//! can share a head. How many there are depends on the number of keys alone, and so do all bits of the result.

use std::marker::PhantomData;
use std::ops::Range;

use ndarray::ArrayRef1;

use super::across::Across;
use super::buffer::Buffer;
use super::few::{self, AHEAD};
use super::lanes::{Lanes, Work};
use super::source::{Bf16, Computed, F16, Int4, Int8, Kind, Lines, Source};
use super::tile::{KEY_BLOCK, Layout, Rows, Sizes, Tile, blocks};
use super::weigh;
use super::widen::{Narrow, widen};
use crate::float::Float;
use crate::sdpa::Sdpa;

/// Keys of a segment, a multiple of KEY_BLOCK. Putting two together takes as long as some ten keys.
const SEGMENT: usize = 1024;

/// One KV head, and the queries of its group as one block of memory.
#[derive(Clone, Copy)]
pub(super) struct Decode<'a, T> {
    pub options: &'a Sdpa<'a, T>,
    pub scale: T,
    /// (B, Hq, Tq, Tk)
    pub table: (usize, usize, usize, usize),
    /// Keys that there are; Tk, or in a cache the slots of this row.
    pub keys: usize,
    /// D and Dv.
    pub sizes: (usize, usize),
    /// (G · Tq, D)
    pub q: &'a [T],
    /// As what keys and values are stored.
    pub kind: Kind,
    /// (Tk, D)
    pub k: &'a Lines<'a, T>,
    /// (Tk, Dv)
    pub v: &'a Lines<'a, T>,
}

/// Buffers, kept from head to head.
pub(super) struct Room<T> {
    addresses: Vec<*const u8>,
    made: Vec<T>,
    widened: Vec<T>,
}

impl<T> Room<T> {
    pub fn new() -> Self {
        Self { addresses: vec![std::ptr::null(); KEY_BLOCK + AHEAD], made: vec![], widened: vec![] }
    }
}

/// The softmax of some rows over some keys, not yet divided.
#[derive(Debug)]
pub struct Partial<T> {
    /// (R): the largest score
    top: Buffer<T>,
    /// (R): the sum of the exponentials
    total: Buffer<T>,
    /// (R, Dv rounded up)
    sums: Buffer<T>,
}

impl<T: Float> Partial<T> {
    /// What `segment` has left.
    pub(super) fn of(tile: &mut Tile<T>) -> Self {
        let take = std::mem::take;
        Self { top: take(&mut tile.top), total: take(&mut tile.total), sums: take(&mut tile.sums) }
    }

    /// Over these keys and those of `later`.
    fn join(&mut self, later: &Self, sinks: &[T]) {
        let room = self.sums.len() / self.top.len();
        for (r, &sink) in sinks.iter().enumerate() {
            let (a, b) = (self.top[r], later.top[r]);
            let new = if b > a { b } else { a };
            let (of_a, of_b) = (factor(sink, a, new), factor(sink, b, new));
            self.top[r] = new;
            self.total[r] = self.total[r] * of_a + later.total[r] * of_b;
            let own = r * room..(r + 1) * room;
            for (x, &y) in self.sums[own.clone()].iter_mut().zip(&later.sums[own]) {
                *x = *x * of_a + y * of_b;
            }
        }
    }
}

/// As of [`Step`](super::online::Step), what sums relative to `old` must be multiplied by once `new` is the largest
/// score.
fn factor<T: Float>(sink: T, old: T, new: T) -> T {
    let largest = |x: T| if sink > x { sink } else { x };
    let (before, now) = (largest(old), largest(new));
    if before == now { T::one() } else { (before - now).exp() }
}

/// The parts of a range that lie in different segments.
pub(super) fn segments(reach: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let first = reach.start - reach.start % SEGMENT;
    (first..reach.end)
        .step_by(SEGMENT)
        .map(move |start| start.max(reach.start)..reach.end.min(start + SEGMENT))
}

/// `output` (rows, Dv) and `lse` (rows); `reach` is what the rows see, as `tile` has found.
///
/// # Safety
/// The processor has the instruction set of `V`.
pub(super) unsafe fn few_rows<V: Across>(
    head: &Decode<'_, V::Scalar>,
    (rows, reach): (Rows, Range<usize>),
    (tile, room): (&mut Tile<V::Scalar>, &mut Room<V::Scalar>),
    output: &mut [V::Scalar],
    lse: &mut [V::Scalar],
) {
    let (mut all, mut each) = (None, segments(reach));
    let mut next = each.next();
    if next.is_none() {
        tile.start(head.options.sinks, rows, Sizes { rows: rows.count, ..Sizes::default() });
    }
    while let Some(keys) = next {
        // SAFETY: as for this function.
        unsafe { segment::<V>(head, (rows, keys), tile, room) };
        next = each.next();
        if next.is_some() || all.is_some() {
            join(&mut all, Partial::of(tile), &tile.sinks); // else it may stay where it is
        }
    }
    write(all, head.sizes.1, tile, output, lse);
}

/// `few_rows` of segments that were taken apart from each other.
pub(super) fn finish<T: Float>(
    sinks: Option<&ArrayRef1<T>>,
    (rows, dv): (Rows, usize),
    partials: impl Iterator<Item = Partial<T>>,
    tile: &mut Tile<T>,
    output: &mut [T],
    lse: &mut [T],
) {
    tile.start(sinks, rows, Sizes { rows: rows.count, ..Sizes::default() });
    let mut all = None;
    for own in partials {
        join(&mut all, own, &tile.sinks);
    }
    write(all, dv, tile, output, lse);
}

fn join<T: Float>(all: &mut Option<Partial<T>>, own: Partial<T>, sinks: &[T]) {
    match all {
        None => *all = Some(own),
        Some(all) => all.join(&own, sinks),
    }
}

/// Writes the results of all segments, or of the one that is in `tile`.
fn write<T: Float>(
    all: Option<Partial<T>>,
    dv: usize,
    tile: &mut Tile<T>,
    output: &mut [T],
    lse: &mut [T],
) {
    if let Some(Partial { top, total, sums }) = all {
        (tile.top, tile.total, tile.sums) = (top, total, sums);
    }
    let room = tile.sums.len() / lse.len();
    for (to, sums) in output.chunks_exact_mut(dv.max(1)).zip(tile.sums.chunks_exact(room.max(1))) {
        to.copy_from_slice(&sums[..dv]);
    }
    tile.finish(output, lse);
}

/// The softmax over some keys of one segment, at least one, into `tile`.
///
/// # Safety
/// The processor has the instruction set of `V`.
pub(super) unsafe fn segment<V: Across>(
    head: &Decode<'_, V::Scalar>,
    of: (Rows, Range<usize>),
    tile: &mut Tile<V::Scalar>,
    room: &mut Room<V::Scalar>,
) {
    // SAFETY: as for this function.
    unsafe {
        match head.kind {
            _ if head.widens::<V>() => segment_of::<V, Computed>(head, of, tile, room),
            Kind::F16 => segment_of::<V, F16>(head, of, tile, room),
            Kind::Bf16 => segment_of::<V, Bf16>(head, of, tile, room),
            Kind::Int8 => segment_of::<V, Int8>(head, of, tile, room),
            Kind::Int4 => segment_of::<V, Int4>(head, of, tile, room),
            Kind::Computed | Kind::Fp8 => segment_of::<V, Computed>(head, of, tile, room),
        }
    }
}

/// `segment` by kernels that read `S`.
///
/// # Safety
/// The processor has the instruction set of `V`, and `S` is what `head.kind` names, or `Computed` where rows are widened
/// before.
unsafe fn segment_of<V: Across, S: Source<V>>(
    head: &Decode<'_, V::Scalar>,
    (rows, keys): (Rows, Range<usize>),
    tile: &mut Tile<V::Scalar>,
    room: &mut Room<V::Scalar>,
) {
    let source = PhantomData::<S>;
    // SAFETY: as for this function.
    unsafe { V::apart(Segment { head, rows, keys, tile, room, source }) };
}

/// The arguments of `segment_of`.
struct Segment<'a, V: Lanes, S> {
    head: &'a Decode<'a, V::Scalar>,
    rows: Rows,
    keys: Range<usize>,
    tile: &'a mut Tile<V::Scalar>,
    room: &'a mut Room<V::Scalar>,
    source: PhantomData<S>,
}

impl<V: Across, S: Source<V>> Work for Segment<'_, V, S> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { head, rows, keys, tile, room, .. } = self;
        let (count, (d, dv)) = (rows.count, head.sizes);
        let (queries, sums) = (count * few::room::<V>(d), count * few::room::<V>(dv));
        tile.start(head.options.sinks, rows, Sizes { rows: count, queries, sums, turned: 0 });
        let q = &head.q[rows.first * d..(rows.first + count) * d];
        few::pack::<V>(q, d, head.scale, &mut tile.queries);

        let stride = keys.len().min(KEY_BLOCK).next_multiple_of(V::COUNT);
        tile.room(Layout { key: 1, row: stride }, count * stride);
        // How many rows lie in memory together: what has become wide is read again while it is in L1.
        let step = if head.widens::<V>() { weigh::VALUE_BLOCK } else { KEY_BLOCK };
        for keys in blocks(keys) {
            let padded = keys.len().next_multiple_of(V::COUNT);
            for at in (0..keys.len()).step_by(step) {
                let (padded, here) = (step.min(padded - at), step.min(keys.len() - at));
                // SAFETY: `start` and `room` made buffers of these sizes; the addresses are those of rows that there
                // are; the caller vouches for the instruction set.
                unsafe {
                    let k = head.addresses::<V>(head.k, d, (keys.start + at, padded), room);
                    let (k, to) = ((k, here), (&mut tile.scores[at..], stride));
                    few::scores::<V, S>((&tile.queries, count), k, d, to);
                }
            }
            if let Some(scales) = head.k.scales.get(keys.clone()) {
                few::scaled(&mut tile.scores, stride, scales);
            }
            tile.alter_slots(head.options, head.table, rows, &keys);

            let Tile { scores, sums, sinks, top, total, factors, .. } = &mut *tile;
            // SAFETY: as above.
            let hides = unsafe {
                let slots = (&mut scores[..], stride);
                let hides = few::exponentials::<V>(slots, keys.len(), sinks, top, total, factors);
                weigh::rescale::<V>(sums, few::room::<V>(dv), factors);
                hides
            };
            if let Some(scales) = head.v.scales.get(keys.clone()) {
                few::scaled(scores, stride, scales);
            }
            for at in (0..keys.len()).step_by(step) {
                let (weights, here) = (&scores[at..], step.min(keys.len() - at));
                // SAFETY: as above.
                unsafe {
                    let v = head.addresses::<V>(head.v, dv, (keys.start + at, here), room);
                    let of = weigh::Weighing { weights, stride, keys: here, v, dv, hides };
                    weigh::weighted_sum::<V, S>(of, sums);
                }
            }
        }
    }
}

impl<T: Float> Decode<'_, T> {
    /// Whether the kernels of `V` read rows that have become wide before.
    fn widens<V: Across>(&self) -> bool {
        let levels = self.k.levels.is_some() || self.v.levels.is_some();
        !V::NARROW || levels || self.kind == Kind::Fp8
    }

    /// The addresses of `count` rows of `n` numbers from `start` on, as the kernels of `V` read them, and of AHEAD that
    /// are needed next.
    ///
    /// # Safety
    /// The processor has the instruction set of `V`.
    #[inline(always)]
    unsafe fn addresses<'a, V: Across<Scalar = T>>(
        &self,
        lines: &Lines<'_, T>,
        n: usize,
        (start, count): (usize, usize),
        room: &'a mut Room<T>,
    ) -> &'a [*const u8] {
        let addresses = &mut room.addresses[..count + AHEAD];
        lines.addresses(start, (count, AHEAD), self.keys, &mut room.made, addresses);
        if self.widens::<V>() {
            let of =
                Narrow { kind: self.kind, n, levels: lines.levels, start, last: self.keys - 1 };
            // SAFETY: the addresses are those of rows of `n` numbers of this kind; the caller vouches for the rest.
            unsafe { widen::<V>(of, addresses, &mut room.widened) };
        }
        addresses
    }
}
