//! What a write into a cache of fixed length must satisfy.

use ndarray::ArrayRef1;

use super::{CapacityExceeded, InvalidConfig, ShapeMismatch, require, require_shape};
use crate::errors::Result;

/// cache (B, …, L, n) and update (B, …, T, n), with an index (B) that is not negative.
pub(crate) fn check_cache_write(
    cache: &[usize],
    update: &[usize],
    write_indices: Option<&ArrayRef1<i64>>,
    circular: bool,
) -> Result<()> {
    let name = "cache_write";
    let expected = "rank 3 or more (B, …, L, n)";
    let got = format_args!("rank {}", cache.len());
    require(cache.len() >= 3, ShapeMismatch, name, "cache", expected, got)?;
    let along = cache.len() - 2;
    let new = update.get(along).copied().unwrap_or(0); // T
    let mut expected = cache.to_vec();
    expected[along] = new;
    require_shape(name, "update", update, &expected)?;
    if let Some(indices) = write_indices {
        require_shape(name, "write_indices", indices.shape(), &cache[..1])?;
        let good = indices.iter().all(|&index| index >= 0);
        require(good, InvalidConfig, name, "write_indices", "values >= 0", indices)?;
    }

    let length = cache[along]; // L
    let last = write_indices.and_then(|indices| indices.iter().max()).map_or(0, |&n| n as usize);
    let end = if circular { new } else { last.saturating_add(new) };
    let expected = format_args!("an end within the {length} positions of the cache");
    require(end <= length, CapacityExceeded, name, "update", expected, end)
}
