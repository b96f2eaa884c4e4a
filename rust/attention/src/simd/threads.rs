//! The `threads` rung of `sdpa`: the queries of the [simd rung](super), piece by piece, on as many threads as are
//! granted.
//!
//! What it changes, beside that rung:
//! - A piece is some query heads of one group, or some queries of one head: 128 rows or a few times that. It is an
//!   attention of its own. Threads take piece after piece until there is none, so that a slow one takes fewer.
//! - Where a head has few rows, as in decode, a piece is a segment of its keys. How many segments there are depends
//!   on the number of keys alone, also in the simd rung, and they are put together in their order: these are the bits
//!   of that rung, on any number of threads (`tests/threads.rs`).
//! - Threads begin and end with the call, which takes tens of microseconds: a call that is over before that stays on
//!   the one that it came on.
//!
//! `cargo run --release --example rungs` measures what two threads gain on two processors: 1.8 times at 512 queries and
//! keys, 1.98 at 2048, 1.94 if these are causal, 1.67 in decode of 32 heads on 8 at 4096 (Zen 4).

use std::ops::Range;
use std::sync::Mutex;
use std::thread;

use ndarray::{Array3, Array4, ArrayRef4, CowArray, Ix4, s};

use super::attend::{Call, finish_head};
use super::decode::Partial;
use super::tier::Tier;
use crate::checks::check_threads;
use crate::errors::Result;
use crate::float::Float;
use crate::masks::{Mask, Offset};
use crate::sdpa::Sdpa;

/// Rows of a small piece: whole tiles of every tier, and enough of them that a piece takes longer than its share of what
/// is not attention.
const ROWS: usize = 128;

/// Small pieces in a large one: the tiles of a wave share what they bring into the cache.
const MOST: usize = 4;

/// Pieces that each thread has at least, if there are as many, so that the last one is not waited for long.
const EACH: usize = 8;

/// Multiplications below which a call is not shared: about the time in which a thread begins.
const SMALL: usize = 1 << 20;

/// Some query heads of one group, or some queries of one head, and where their results go.
struct Piece<'a, T> {
    b: usize,
    heads: Range<usize>,
    queries: Range<usize>,
    output: &'a mut [T], // (heads, queries, Dv)
    lse: &'a mut [T],    // (heads, queries)
}

/// [`sdpa_simd`](super::sdpa_simd) on so many threads, that of the caller included; the same bits for any number.
///
/// # Errors
/// As for `sdpa_simd`; `InvalidConfig` for no thread at all.
///
/// ```
/// use ndarray::Array4;
/// use rosetta_attention::{Sdpa, sdpa_simd, sdpa_threads};
/// let x = Array4::from_shape_fn((2, 4, 300, 64), |(b, h, t, c)| ((b + h + t * c) % 7) as f32);
/// let alone = sdpa_simd(&x, &x, &x, &Sdpa::default(), None)?;
/// assert_eq!(sdpa_threads(&x, &x, &x, &Sdpa::default(), None, 2)?, alone);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn sdpa_threads<T: Float>(
    q: &ArrayRef4<T>,
    k: &ArrayRef4<T>,
    v: &ArrayRef4<T>,
    options: &Sdpa<'_, T>,
    tier: Option<Tier>,
    threads: usize,
) -> Result<(Array4<T>, Array3<T>)> {
    let call = Call::new((q, k, v), options, tier)?;
    check_threads("sdpa", threads)?;
    let ((batch, hq, tq, d), (_, _, tk, dv)) = (q.dim(), v.dim());
    let products = [hq, tq, tk, d + dv].into_iter().fold(batch, usize::saturating_mul);
    if threads == 1 || products < SMALL {
        return Ok(T::attend(&call));
    }
    if call.is_few() {
        let (k, v) = (in_rows(k), in_rows(v));
        return Ok(attend_few(&Call { k: &k, v: &v, ..call }, threads));
    }
    let (k, v) = (in_blocks(k), in_blocks(v)); // once, not for each piece
    let call = Call { k: &k, v: &v, ..call };
    let (mut output, mut lse) =
        (Array4::zeros((batch, hq, tq, dv)), Array3::zeros((batch, hq, tq)));
    let pieces = pieces(
        &call,
        threads,
        output.as_slice_mut().expect("standard layout"),
        lse.as_slice_mut().expect("standard layout"),
    );
    share(threads, pieces, |piece| attend_piece(&call, piece));
    Ok((output, lse))
}

/// Does every piece of work, on so many threads at most.
fn share<P: Send>(threads: usize, pieces: Vec<P>, one: impl Fn(P) + Sync) {
    let helpers = threads.min(pieces.len()).saturating_sub(1);
    let pieces = Mutex::new(pieces.into_iter());
    let work = || {
        let next = || pieces.lock().expect("no thread ends while it takes a piece").next();
        while let Some(piece) = next() {
            one(piece);
        }
    };
    thread::scope(|scope| {
        for _ in 0..helpers {
            // A thread that the system does not have is done without.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

/// The segments of keys of all heads, for few rows, which are then put together in their order.
fn attend_few<T: Float>(call: &Call<'_, T>, threads: usize) -> (Array4<T>, Array3<T>) {
    let ((batch, hq, tq, _), (_, hkv, _, dv)) = (call.q.dim(), call.v.dim());
    let shares = call.segments();
    let mut partials: Vec<Option<Partial<T>>> = shares.iter().map(|_| None).collect();
    let pieces = shares.iter().cloned().zip(&mut partials).collect();
    share(threads, pieces, |(share, partial)| *partial = Some(T::attend_segment(call, share)));

    let (mut output, mut lse) =
        (Array4::zeros((batch, hq, tq, dv)), Array3::zeros((batch, hq, tq)));
    let rows = hq / hkv * tq; // G · Tq
    let heads = (0..batch).flat_map(|b| (0..hkv).map(move |kv| (b, kv)));
    let lines = lse.as_slice_mut().expect("standard layout").chunks_exact_mut(rows);
    let mut output_left = output.as_slice_mut().expect("standard layout");
    let mut all = shares.iter().zip(partials).peekable();
    for ((b, kv), lse) in heads.zip(lines) {
        let own;
        (own, output_left) = output_left.split_at_mut(rows * dv);
        let own_partials = std::iter::from_fn(|| {
            all.next_if(|(share, _)| (share.b, share.kv) == (b, kv))
                .map(|(_, partial)| partial.expect("every piece is done"))
        });
        finish_head(call, (b, kv), own_partials, own, lse);
    }
    (output, lse)
}

/// All rows, in their order.
fn pieces<'a, T>(
    call: &Call<'_, T>,
    threads: usize,
    output: &'a mut [T],
    lse: &'a mut [T],
) -> Vec<Piece<'a, T>> {
    let ((batch, hq, tq, _), (_, hkv, _, dv)) = (call.q.dim(), call.v.dim());
    let group = hq / hkv.max(1); // G
    let most = batch * hq * tq / ROWS / EACH / threads;
    let rows = ROWS * most.clamp(1, MOST);
    let heads = (rows / tq.max(1)).clamp(1, group.max(1));
    let queries = if heads == 1 { rows } else { tq };
    let (mut output, mut lse, mut all) = (output, lse, vec![]);
    for (b, kv) in (0..batch).flat_map(|b| (0..hkv).map(move |kv| (b, kv))) {
        for heads in parts(kv * group..(kv + 1) * group, heads) {
            for queries in parts(0..tq, queries) {
                let rows = heads.len() * queries.len();
                let (own_output, own_lse);
                (own_output, output) = output.split_at_mut(rows * dv);
                (own_lse, lse) = lse.split_at_mut(rows);
                let heads = heads.clone();
                all.push(Piece { b, heads, queries, output: own_output, lse: own_lse });
            }
        }
    }
    all
}

/// A range in parts of so many.
fn parts(range: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(size.max(1)).map(move |start| start..range.end.min(start + size))
}

/// The attention of a piece: the call without all that is not of its rows.
fn attend_piece<T: Float>(call: &Call<'_, T>, piece: Piece<'_, T>) {
    let Piece { b, heads, queries, output, lse } = piece;
    let ((batch, hq, tq, _), (_, hkv, tk, _)) = (call.q.dim(), call.k.dim());
    let (table, own) = ((batch, hq, tq, tk), s![b..=b, heads.clone(), queries.clone(), ..]);
    let kv = heads.start / (hq / hkv);
    let q = call.q.slice(own); // (1, heads, queries, D)
    let k = call.k.slice(s![b..=b, kv..=kv, .., ..]); // (1, 1, Tk, D)
    let v = call.v.slice(s![b..=b, kv..=kv, .., ..]); // (1, 1, Tk, Dv)

    let &Sdpa { mask, bias, sinks, .. } = call.options;
    let keep = mask.keep.map(|keep| keep.broadcast(table).expect("checked"));
    let keep = keep.as_ref().map(|keep| keep.slice(own).into_dyn());
    let bias = bias.map(|bias| bias.broadcast(table).expect("checked"));
    let bias = bias.as_ref().map(|bias| bias.slice(own).into_dyn());
    let lengths = mask.kv_lengths.map(|lengths| lengths.slice(s![b..=b]));
    let sinks = sinks.map(|sinks| sinks.slice(s![heads.clone()]));
    let mask = Mask {
        keep: keep.as_deref(),
        kv_lengths: lengths.as_deref(),
        q_offset: Some(Offset::One(mask.position(b, queries.start))),
        ..mask
    };
    let options = Sdpa { mask, bias: bias.as_deref(), sinks: sinks.as_deref(), ..*call.options };
    let results = T::attend(&Call { q: &q, k: &k, v: &v, options: &options, ..*call });
    output.copy_from_slice(results.0.as_slice().expect("standard layout"));
    lse.copy_from_slice(results.1.as_slice().expect("standard layout"));
}

/// The same with each head as one block of memory, copied only where a head is none.
fn in_blocks<T: Float>(x: &ArrayRef4<T>) -> CowArray<'_, T, Ix4> {
    let first = x.slice(s![..x.dim().0.min(1), ..x.dim().1.min(1), .., ..]);
    if first.is_standard_layout() { x.view().into() } else { x.as_standard_layout() }
}

/// The same with the channels of each key or value next to each other, copied only where they are not.
fn in_rows<T: Float>(x: &ArrayRef4<T>) -> CowArray<'_, T, Ix4> {
    let beside = x.dim().3 < 2 || x.strides()[3] == 1;
    if beside { x.view().into() } else { x.as_standard_layout() }
}
