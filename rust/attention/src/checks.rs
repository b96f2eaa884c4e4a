//! What a call must satisfy, tested once at the edge; the algorithms behind it trust their arguments.
//!
//! Every message names the function, the argument, what was expected and what came. Element types
//! and most ranks are in the signatures already.

mod attention;
mod cache_file;
mod cache_write;
mod caches;
mod eviction;
mod layers;
mod linear;
mod mha;
mod norms;
mod positions;
mod sparse;

use std::fmt::{Arguments, Display};

use ndarray::ArrayRef1;

use crate::dropout::Dropout;
use crate::errors::{AttentionError, Fault, Result};
use crate::masks::{Mask, Offset};
use crate::sdpa::Sdpa;

pub(crate) use attention::{
    check_merge, check_scoring, check_splits, check_threads, check_tiles, check_varlen,
};
pub(crate) use cache_file::{
    check_described, check_file, check_file_rows, check_tensor, check_whole_rows,
};
pub(crate) use cache_write::check_cache_write;
pub(crate) use caches::{
    check_append, check_attend, check_cache_config, check_cache_rope, check_codes,
    check_cross_attend, check_finite, check_group, check_index, check_joined_heads,
    check_key_groups, check_latent_append, check_latent_config, check_no_tokens, check_not_written,
    check_page_size, check_pages, check_quantisation, check_range, check_rollback, check_room,
    check_shift, check_tokens, check_truncate, check_window,
};
pub(crate) use eviction::{check_policy, check_queries, check_tracking};
pub(crate) use layers::{
    check_block, check_feed_forward, check_mla, check_norm_kind, check_transformer,
};
pub(crate) use linear::{check_chunk, check_gated_linear, check_linear_attention};
pub(crate) use mha::{check_decode, check_mha, check_packed};
pub(crate) use norms::{check_layer_norm, check_rms_norm, check_swiglu};
pub(crate) use positions::{check_relative_bias, check_rope, check_sinusoidal};
pub(crate) use sparse::{check_keys, check_pattern, check_sparse, check_structured};

use AttentionError::{CapacityExceeded, InvalidConfig, ShapeMismatch};

/// The sizes of an array of rank 4.
pub(crate) type Dim4 = (usize, usize, usize, usize);

pub(crate) fn check_softmax(x: &[usize], sink: Option<&[usize]>) -> Result<()> {
    let name = "softmax";
    require(!x.is_empty(), ShapeMismatch, name, "x", "at least one axis", "rank 0")?;
    sink.map_or(Ok(()), |sink| require_broadcast(name, "sink", sink, &x[..x.len() - 1]))
}

/// Against the shape (B, Hq, Tq, Tk) that the mask is asked for.
pub(crate) fn check_mask(name: &'static str, mask: &Mask<'_>, shape: Dim4) -> Result<()> {
    let (batch, hq, tq, tk) = shape;
    if let Some(keep) = mask.keep {
        require_broadcast(name, "mask", keep.shape(), &[batch, hq, tq, tk])?;
    }
    if let Some(lengths) = mask.kv_lengths {
        check_lengths(name, "kv_lengths", lengths, batch, tk)?;
    }
    if let Some(Offset::PerRow(offsets)) = mask.q_offset {
        require_shape(name, "q_offset", offsets.shape(), &[batch])?;
    }
    Ok(())
}

/// q (B, Hq, Tq, D), k (B, Hkv, Tk, D) and v (B, Hkv, Tk, Dv), Hq a multiple of Hkv.
fn check_qkv(name: &'static str, (batch, hq, _, d): Dim4, k: Dim4, v: Dim4) -> Result<()> {
    let (_, hkv, tk, _) = k;
    let fits = |good: bool, argument, expected: Arguments<'_>, got: usize| {
        require(good, ShapeMismatch, name, argument, expected, got)
    };
    fits(d >= 1, "q", format_args!("a head size of at least 1"), d)?;
    fits(k.0 == batch, "k", format_args!("batch {batch} as in q"), k.0)?;
    fits(v.0 == batch, "v", format_args!("batch {batch} as in q"), v.0)?;
    fits(k.3 == d, "k", format_args!("head size {d} as in q"), k.3)?;
    fits(v.1 == hkv, "v", format_args!("{hkv} heads as in k"), v.1)?;
    fits(v.2 == tk, "v", format_args!("length {tk} as in k"), v.2)?;
    let divides = if hkv == 0 { hq == 0 } else { hq.is_multiple_of(hkv) };
    let expected = format_args!("a multiple of the {hkv} key/value heads");
    require(divides, ShapeMismatch, name, "q", expected, format_args!("{hq} heads"))
}

pub(crate) fn check_sdpa<T>(
    name: &'static str,
    (batch, hq, tq, d): Dim4,
    k: Dim4,
    v: Dim4,
    options: &Sdpa<'_, T>,
) -> Result<()> {
    check_qkv(name, (batch, hq, tq, d), k, v)?;
    let tk = k.2;
    if let Some(bias) = options.bias {
        require_broadcast(name, "bias", bias.shape(), &[batch, hq, tq, tk])?;
    }
    if let Some(sinks) = options.sinks {
        require_shape(name, "sinks", sinks.shape(), &[hq])?;
    }
    check_options(name, options.scale, options.softcap)?;
    options.dropout.map_or(Ok(()), |dropout| check_dropout(name, &dropout))?;
    check_mask(name, &options.mask, (batch, hq, tq, tk))
}

pub(crate) fn check_options(
    name: &'static str,
    scale: Option<f64>,
    softcap: Option<f64>,
) -> Result<()> {
    if let Some(scale) = scale {
        require(scale.is_finite(), InvalidConfig, name, "scale", "a finite number", scale)?;
    }
    if let Some(cap) = softcap {
        let good = cap.is_finite() && cap > 0.0;
        require(good, InvalidConfig, name, "softcap", "a finite number > 0", cap)?;
    }
    Ok(())
}

pub(crate) fn check_dropout(name: &'static str, dropout: &Dropout) -> Result<()> {
    let &Dropout { p, seed } = dropout;
    require((0.0..=1.0).contains(&p), InvalidConfig, name, "p", "a number from 0 to 1", p)?;
    check_seed(name, seed)
}

/// Of random words: what a float64 can tell apart.
fn check_seed(name: &'static str, seed: u64) -> Result<()> {
    require(seed < 1 << 53, InvalidConfig, name, "seed", "an integer from 0 to 2^53 - 1", seed)
}

/// (B), each 0 <= n <= limit.
fn check_lengths(
    name: &'static str,
    argument: &'static str,
    lengths: &ArrayRef1<i64>,
    batch: usize,
    limit: usize,
) -> Result<()> {
    require_shape(name, argument, lengths.shape(), &[batch])?;
    let good = lengths.iter().all(|&n| (0..=limit as i64).contains(&n));
    let expected = format_args!("values from 0 to {limit}");
    require(good, InvalidConfig, name, argument, expected, lengths)
}

fn require(
    condition: bool,
    error: fn(Fault) -> AttentionError,
    name: &'static str,
    argument: &'static str,
    expected: impl Display,
    got: impl Display,
) -> Result<()> {
    if condition { Ok(()) } else { Err(error(Fault::new(name, argument, expected, got))) }
}

fn require_shape(
    name: &'static str,
    argument: &'static str,
    shape: &[usize],
    expected: &[usize],
) -> Result<()> {
    let (want, got) = (format_args!("shape {expected:?}"), format_args!("{shape:?}"));
    require(shape == expected, ShapeMismatch, name, argument, want, got)
}

/// Right-aligned: every axis is the target's or 1.
fn require_broadcast(
    name: &'static str,
    argument: &'static str,
    shape: &[usize],
    target: &[usize],
) -> Result<()> {
    let fits = shape.len() <= target.len()
        && shape.iter().rev().zip(target.iter().rev()).all(|(&n, &t)| n == 1 || n == t);
    let want = format_args!("a shape that broadcasts to {target:?}");
    require(fits, ShapeMismatch, name, argument, want, format_args!("{shape:?}"))
}
