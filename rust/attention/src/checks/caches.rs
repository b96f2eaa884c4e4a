//! Everything that is done to a cache.

use ndarray::{Array1, ArrayRef1, ArrayRef3, Dimension};

use super::positions::check_rope;
use super::{
    CapacityExceeded, Dim4, InvalidConfig, ShapeMismatch, check_lengths, check_sdpa, require,
    require_shape,
};
use crate::cache::{Append, Sizes};
use crate::errors::Result;
use crate::masks::Mask;
use crate::quantise::{Codes, Quantisation};
use crate::rope::Rope;
use crate::rows::Rows;
use crate::sdpa::Sdpa;

/// What a float64 can tell apart.
pub(super) const LAST_POSITION: i64 = (1 << 53) - 1;

/// The sizes of a cache: some at least 1, and all in all not more numbers than an f64 can count.
pub(crate) fn check_cache_config(
    name: &'static str,
    sizes: Sizes,
    capacity: Option<usize>,
) -> Result<()> {
    let Sizes { batch, num_kv_heads, head_dim, value_dim } = sizes;
    for (argument, size) in [("num_kv_heads", num_kv_heads), ("head_dim", head_dim)] {
        at_least_1(name, argument, size)?;
    }
    let sizes = [batch, num_kv_heads, capacity.unwrap_or(0), head_dim.max(value_dim)];
    let count = sizes.iter().fold(1_u128, |count, &n| count.saturating_mul(n.max(1) as u128));
    let expected = "a cache of at most 2^53 numbers";
    require(count <= 1 << 53, InvalidConfig, name, "capacity", expected, count)
}

pub(crate) fn check_window(name: &'static str, window: usize) -> Result<()> {
    at_least_1(name, "window", window)
}

pub(crate) fn check_page_size(name: &'static str, page_size: usize) -> Result<()> {
    at_least_1(name, "page_size", page_size)
}

/// As for the others: a latent and a rotary key are the key of one head.
pub(crate) fn check_latent_config(
    name: &'static str,
    batch: usize,
    (latent_dim, rope_dim): (usize, usize),
    capacity: Option<usize>,
) -> Result<()> {
    at_least_1(name, "latent_dim", latent_dim)?;
    let head_dim = latent_dim.saturating_add(rope_dim);
    check_cache_config(name, Sizes { batch, num_kv_heads: 1, head_dim, value_dim: 0 }, capacity)
}

fn at_least_1(name: &'static str, argument: &'static str, size: usize) -> Result<()> {
    require(size >= 1, InvalidConfig, name, argument, "an integer >= 1", size)
}

/// A rotation that is the same whatever comes later: keys that are held are never rotated anew.
pub(crate) fn check_cache_rope(name: &'static str, sizes: Sizes, rope: &Rope) -> Result<()> {
    check_rope::<f32>(name, (sizes.batch, 1, 0, sizes.head_dim), rope, None, None)?;
    require(rope.offset == 0, InvalidConfig, name, "offset", "0 in a cache", rope.offset)?;
    let fixed = rope.scaling.as_ref().is_none_or(|scaling| !scaling.follows_the_text());
    let expected = "a length for this scaling in a cache";
    require(fixed, InvalidConfig, name, "length", expected, "none")
}

/// k (B, Hkv, T, D) and v (B, Hkv, T, Dv) against the cache's own B, Hkv, D and Dv.
pub(crate) fn check_append(
    name: &'static str,
    k: Dim4,
    v: Dim4,
    options: &Append<'_>,
    Sizes { batch, num_kv_heads, head_dim, value_dim }: Sizes,
) -> Result<()> {
    let new = k.2; // T
    let shape = |x: Dim4| [x.0, x.1, x.2, x.3];
    require_shape(name, "k", &shape(k), &[batch, num_kv_heads, new, head_dim])?;
    require_shape(name, "v", &shape(v), &[batch, num_kv_heads, new, value_dim])?;
    check_counts(name, options, batch, new)
}

/// latent (B, 1, T, R) and rope_key (B, 1, T, Dr), whose head the caller has added.
pub(crate) fn check_latent_append(
    name: &'static str,
    latent: Dim4,
    rope_key: Dim4,
    options: &Append<'_>,
    batch: usize,
    (latent_dim, rope_dim): (usize, usize),
) -> Result<()> {
    let new = latent.2; // T
    let shape = |x: Dim4| [x.0, x.1, x.2, x.3];
    require_shape(name, "latent", &shape(latent), &[batch, 1, new, latent_dim])?;
    require_shape(name, "rope_key", &shape(rope_key), &[batch, 1, new, rope_dim])?;
    check_counts(name, options, batch, new)
}

/// How many of `new` tokens count: (B).
fn check_counts(name: &'static str, options: &Append<'_>, batch: usize, new: usize) -> Result<()> {
    options.lengths.map_or(Ok(()), |lengths| check_lengths(name, "lengths", lengths, batch, new))
}

/// Tokens (B, T), where a cache can make use of them.
pub(crate) fn check_tokens(
    name: &'static str,
    options: &Append<'_>,
    (batch, new): (usize, usize),
) -> Result<()> {
    options
        .tokens
        .map_or(Ok(()), |tokens| require_shape(name, "tokens", tokens.shape(), &[batch, new]))
}

/// For all other caches.
pub(crate) fn check_no_tokens(name: &'static str, options: &Append<'_>) -> Result<()> {
    let none = options.tokens.is_none();
    require(none, InvalidConfig, name, "tokens", "None but in a paged cache", "a value")
}

pub(crate) fn check_room(name: &'static str, needed: usize, capacity: Option<usize>) -> Result<()> {
    capacity.map_or(Ok(()), |most| {
        let expected = format_args!("at most {most} positions in a row");
        require(needed <= most, CapacityExceeded, name, "k", expected, needed)
    })
}

pub(crate) fn check_pages(name: &'static str, needed: usize, free: usize) -> Result<()> {
    let expected = format_args!("at most {free} pages, which are free");
    require(needed <= free, CapacityExceeded, name, "k", expected, needed)
}

pub(crate) fn check_not_written(name: &'static str, written: bool) -> Result<()> {
    let expected = "a cache that is written once";
    require(!written, InvalidConfig, name, "k", expected, "another change")
}

/// q (B, Hq, Tq, D) and the options against `slots` slots, which need not be there yet.
pub(crate) fn check_attend<T>(
    name: &'static str,
    q: Dim4,
    Sizes { batch, num_kv_heads, head_dim, value_dim }: Sizes,
    slots: usize,
    options: &Sdpa<'_, T>,
) -> Result<()> {
    let own = options.mask.kv_lengths.is_none();
    let expected = "None, since the cache has its own";
    require(own, InvalidConfig, name, "kv_lengths", expected, "a value")?;
    let (k, v) = ((batch, num_kv_heads, slots, head_dim), (batch, num_kv_heads, slots, value_dim));
    check_sdpa(name, q, k, v, options)
}

/// Positions of another sequence stand in no order with those of the queries.
pub(crate) fn check_cross_attend(name: &'static str, mask: &Mask<'_>) -> Result<()> {
    let expected = "no such condition in a cross cache";
    require(!mask.causal, InvalidConfig, name, "causal", expected, mask.causal)?;
    require(mask.window.is_none(), InvalidConfig, name, "window", expected, "a window")
}

/// What no cache can do whose heads hold slots of their own.
pub(crate) fn check_joined_heads(name: &'static str, argument: &'static str) -> Result<()> {
    let expected = "a cache whose heads hold the same tokens";
    require(false, InvalidConfig, name, argument, expected, "slots of their own")
}

/// One integer a row, from 0 to what the row holds.
pub(crate) fn check_truncate(
    name: &'static str,
    lengths: &[i64],
    held: &ArrayRef1<i64>,
) -> Result<()> {
    let expected = format_args!("{} values", held.len());
    require(lengths.len() == held.len(), ShapeMismatch, name, "lengths", expected, lengths.len())?;
    let good = lengths.iter().zip(held).all(|(n, most)| (0..=*most).contains(n));
    let expected = format_args!("integers from 0 to the lengths held, {held}");
    require(good, InvalidConfig, name, "lengths", expected, format_args!("{lengths:?}"))
}

/// Each row still holds all from `oldest(n)` on that lies before its new length n.
pub(crate) fn check_rollback(
    name: &'static str,
    lengths: &[i64],
    rows: &Rows,
    oldest: impl Fn(i64) -> i64,
) -> Result<()> {
    for (b, &n) in lengths.iter().enumerate() {
        let good = (oldest(n)..n).all(|j| rows.row(b).binary_search(&j).is_ok());
        let expected = format_args!("a length of row {b} whose window is still held");
        require(good, InvalidConfig, name, "lengths", expected, n)?;
    }
    Ok(())
}

/// One old row for each of the `batch` new ones.
pub(crate) fn check_index(name: &'static str, index: &[i64], batch: usize) -> Result<()> {
    let expected = format_args!("{batch} rows");
    require(index.len() == batch, ShapeMismatch, name, "index", expected, index.len())?;
    let good = index.iter().all(|b| (0..batch as i64).contains(b));
    let expected = format_args!("integers from 0 to {}", batch as i64 - 1);
    require(good, InvalidConfig, name, "index", expected, format_args!("{index:?}"))
}

/// Every row stays in order, what comes next after all of it, and all of it from 0 on.
pub(crate) fn check_shift(name: &'static str, rows: &Rows, by: i64, from: i64) -> Result<()> {
    let moved = |moves: bool, position: i64| position.saturating_add(if moves { by } else { 0 });
    for b in 0..rows.batch() {
        let held = rows.row(b).iter().map(|&position| moved(position >= from, position));
        let next = moved(rows.next_of(b) > from, rows.next_of(b));
        let shifted: Vec<i64> = held.chain([next]).collect();
        let ascends = shifted.is_sorted_by(|before, after| before < after);
        let good = ascends && shifted[0] >= 0 && next <= LAST_POSITION;
        let expected = "a shift that keeps positions in order and >= 0";
        require(good, InvalidConfig, name, "by", expected, by)?;
    }
    Ok(())
}

/// A group, and a zero point only where there are scales.
pub(crate) fn check_quantisation(name: &'static str, quantisation: &Quantisation) -> Result<()> {
    let &Quantisation { format, group, zero_point } = quantisation;
    group.map_or(Ok(()), |group| at_least_1(name, "group", group))?;
    let good = !zero_point || format.is_integer();
    let expected = format_args!("false with {format}");
    require(good, InvalidConfig, name, "zero_point", expected, zero_point)
}

/// How many tokens a group of keys has, in a format that has groups.
pub(crate) fn check_key_groups(
    name: &'static str,
    quantisation: &Quantisation,
    key_groups: usize,
) -> Result<()> {
    let format = quantisation.format;
    require(format.is_integer(), InvalidConfig, name, "format", "int8 or int4", format)?;
    at_least_1(name, "key_groups", key_groups)
}

/// Numbers that integer codes stand for.
pub(crate) fn check_finite(
    name: &'static str,
    argument: &'static str,
    x: &ArrayRef3<f32>,
) -> Result<()> {
    let bad = x.iter().find(|x| !x.is_finite());
    let expected = "finite numbers for integer codes";
    let got = bad.copied().unwrap_or_default();
    require(bad.is_none(), InvalidConfig, name, argument, expected, got)
}

/// Numbers to quantise.
pub(crate) fn check_group(
    name: &'static str,
    x: &[usize],
    quantisation: &Quantisation,
) -> Result<()> {
    require(!x.is_empty(), ShapeMismatch, name, "x", "at least one axis", "rank 0")?;
    check_quantisation(name, quantisation)
}

/// Codes (…, bytes) of so many channels, with scales and zeros (…, ·) of their groups.
pub(crate) fn check_codes<D: Dimension>(name: &'static str, codes: &Codes<D>) -> Result<()> {
    check_quantisation(name, &codes.quantisation)?;
    let mut shape = codes.codes.shape().to_vec();
    let Some(last) = shape.len().checked_sub(1) else {
        return require(false, ShapeMismatch, name, "codes", "at least one axis", "rank 0");
    };
    let (bytes, scales, zeros) = codes.quantisation.sizes(codes.channels);
    for (argument, part, width) in [
        ("codes", codes.codes.shape(), bytes),
        ("scale", codes.scale.shape(), scales),
        ("zero", codes.zero.shape(), zeros),
    ] {
        shape[last] = width;
        require_shape(name, argument, part, &shape)?;
    }
    Ok(())
}

/// A group that has a scale.
pub(crate) fn check_range(name: &'static str, channels: &[f32], scale: f32) -> Result<()> {
    let good = scale.is_finite() && channels.iter().all(|x| x.is_finite());
    let expected = "finite numbers, within the range of f32 of one another";
    require(good, InvalidConfig, name, "x", expected, Array1::from(channels.to_vec()))
}
