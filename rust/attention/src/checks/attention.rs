//! Rungs and relatives of sdpa.

use ndarray::ArrayRef1;

use super::{
    Dim4, InvalidConfig, ShapeMismatch, check_lengths, check_sdpa, require, require_shape,
};
use crate::errors::Result;
use crate::flash::Tiles;
use crate::float::Float;
use crate::masks::Offset;
use crate::scoring::Scoring;
use crate::sdpa::Sdpa;
use crate::varlen::Varlen;

/// The sizes of an array of rank 3.
pub(crate) type Dim3 = (usize, usize, usize);

pub(crate) fn check_tiles(name: &'static str, tiles: Tiles) -> Result<()> {
    for (argument, size) in [("block_q", tiles.block_q), ("block_k", tiles.block_k)] {
        require(size >= 1, InvalidConfig, name, argument, "an integer >= 1", size)?;
    }
    Ok(())
}

pub(crate) fn check_splits(name: &'static str, splits: usize) -> Result<()> {
    require(splits >= 1, InvalidConfig, name, "splits", "an integer >= 1", splits)
}

pub(crate) fn check_threads(name: &'static str, threads: usize) -> Result<()> {
    require(threads >= 1, InvalidConfig, name, "threads", "an integer >= 1", threads)
}

/// Outputs (…, Dv) of one shape, each with a log-sum-exp (…).
pub(crate) fn check_merge(
    name: &'static str,
    a_output: &[usize],
    a_lse: &[usize],
    b_output: &[usize],
    b_lse: &[usize],
) -> Result<()> {
    let expected = "at least one axis";
    require(!a_output.is_empty(), ShapeMismatch, name, "a_output", expected, "rank 0")?;
    require_shape(name, "b_output", b_output, a_output)?;
    let rows = &a_output[..a_output.len() - 1];
    require_shape(name, "a_lse", a_lse, rows)?;
    require_shape(name, "b_lse", b_lse, rows)
}

/// q (Nq, Hq, D), k (Nk, Hkv, D), v (Nk, Hkv, Dv) against where their sequences start.
pub(crate) fn check_varlen(
    name: &'static str,
    (q, k, v): (Dim3, Dim3, Dim3),
    (cu_seqlens_q, cu_seqlens_k): (&ArrayRef1<i64>, &ArrayRef1<i64>),
    options: &Varlen<'_>,
) -> Result<()> {
    let as_batch = |(rows, heads, n): Dim3| -> Dim4 { (1, heads, rows, n) };
    let sdpa = Sdpa::<f32> { scale: options.scale, softcap: options.softcap, ..Sdpa::default() };
    check_sdpa(name, as_batch(q), as_batch(k), as_batch(v), &sdpa)?;
    let size = cu_seqlens_q.len(); // S + 1
    require(size >= 1, ShapeMismatch, name, "cu_seqlens_q", "at least one value", size)?;
    require_shape(name, "cu_seqlens_k", cu_seqlens_k.shape(), &[size])?;
    for (argument, cu, rows) in
        [("cu_seqlens_q", cu_seqlens_q, q.0), ("cu_seqlens_k", cu_seqlens_k, k.0)]
    {
        let falls = cu.iter().zip(cu.iter().skip(1)).any(|(start, end)| end < start);
        let good = cu[0] == 0 && !falls && cu[size - 1] == rows as i64;
        let expected = format_args!("values that start at 0, never fall and end at {rows}");
        require(good, InvalidConfig, name, argument, expected, cu)?;
    }
    match options.q_offset {
        Some(Offset::PerRow(offsets)) => {
            require_shape(name, "q_offset", offsets.shape(), &[size - 1])
        }
        _ => Ok(()),
    }
}

/// q (B, Tq, Dq), k (B, Tk, Dk), v (B, Tk, Dv) against the weights of a form of score.
pub(crate) fn check_scoring<T: Float>(
    name: &'static str,
    form: &Scoring<'_, T>,
    ((batch, _, dq), k, v): (Dim3, Dim3, Dim3),
    kv_lengths: Option<&ArrayRef1<i64>>,
) -> Result<()> {
    let (_, len, dk) = k; // Tk, Dk
    let rows = format_args!("batch {batch} as in q");
    require(k.0 == batch, ShapeMismatch, name, "k", rows, k.0)?;
    let expected = format_args!("batch {batch} and length {len} as in k");
    let got = format_args!("{} and {}", v.0, v.1);
    require((v.0, v.1) == (batch, len), ShapeMismatch, name, "v", expected, got)?;
    require(dq >= 1, ShapeMismatch, name, "q", "a size of at least 1", dq)?;
    require(dk >= 1, ShapeMismatch, name, "k", "a size of at least 1", dk)?;
    match form {
        Scoring::Dot | Scoring::Scaled => {
            let expected = format_args!("size {dq} as in q");
            require(dk == dq, ShapeMismatch, name, "k", expected, dk)?;
        }
        Scoring::General { w } => require_shape(name, "w", w.shape(), &[dq, dk])?,
        Scoring::Additive { w_q, w_k, w_v } => {
            let hidden = w_v.len(); // A
            require_shape(name, "w_q", w_q.shape(), &[hidden, dq])?;
            require_shape(name, "w_k", w_k.shape(), &[hidden, dk])?;
        }
    }
    kv_lengths.map_or(Ok(()), |lengths| check_lengths(name, "kv_lengths", lengths, batch, len))
}
