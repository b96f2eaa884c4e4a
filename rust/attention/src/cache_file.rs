//! A cache in a file, from which another one, in any of the languages, can go on.
//!
//! The file is a safetensors file: what the cache is stands in its metadata, what it holds in tensors, with the
//! positions of the slots among them. Memory that is not in use is not in it.
//!
//! Letters: R rows, B of them or (B, Hkv), L slots of the longest one, B batch, Hkv key/value heads.
//!
//! Source: Hugging Face, "safetensors", the format of the file.

use std::collections::HashMap;
use std::fmt::Display;
use std::fs;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::cache::Cache;
use crate::cache_content::{Column, from_bytes, to_bytes};
use crate::cast::Stored;
use crate::checks::{check_described, check_file, check_file_rows, check_tensor};
use crate::errors::{AttentionError, Fault, Result};
use crate::rows::Rows;

/// By which the file of a cache is known.
const SIGNATURE: [(&str, &str); 2] = [("format", "rosetta-kv-cache"), ("version", "1")];

/// What a file says that the cache need not agree with.
const FREE: [&str; 1] = ["num_pages"];

/// What a file does not say of a cache that has the default.
const OPTIONAL: [&str; 3] = ["group", "key_groups", "track"];

/// Writes all that `cache` holds to a file.
///
/// # Errors
/// `InvalidFile` where it cannot be written.
pub fn save<S: Stored>(cache: &dyn Cache<S>, path: &Path) -> Result<()> {
    // 1. describe: kind, type and sizes, and which positions the slots have
    let mut said: HashMap<String, String> = HashMap::new();
    said.extend(SIGNATURE.map(|(field, value)| (field.into(), value.into())));
    said.extend(cache.describe().0.into_iter().map(|(field, value)| (field.into(), value)));
    let rows = cache.rows();
    let bookkeeping = [
        to_bytes(rows.lengths()),   // (R)
        to_bytes(rows.next()),      // (R)
        to_bytes(rows.positions()), // (R, L)
    ];

    // 2. write: the positions, and the contents of the slots
    let (batch, lengths, longest) = (cache.sizes().batch, rows.lengths().to_vec(), rows.longest());
    let (columns, contents) = (cache.columns(), cache.contents());
    let named = row_tensors(&cache.row_shape(), longest).into_iter();
    let named = named.map(|(name, shape)| (name, Dtype::I64, shape));
    let shaped = columns.into_iter().map(|column| {
        let shape = column.shape(batch, &lengths, longest);
        (column.name, column.dtype, shape)
    });
    let all = named.chain(shaped).zip(bookkeeping.iter().chain(&contents));
    let tensors = all.map(|((name, dtype, shape), bytes)| {
        let view = TensorView::new(dtype, shape, bytes).expect("as many bytes as it takes");
        (name, view)
    });
    let bytes =
        safetensors::serialize(tensors, Some(said)).map_err(|error| broken("save", error))?;
    fs::write(path, bytes).map_err(|error| broken("save", error))
}

/// Replaces all that `cache` holds by what is in a file.
///
/// # Errors
/// `InvalidFile` for a file that cannot be read, is damaged, or is none of a cache; `InvalidConfig` for one of
/// another kind or size; `DtypeMismatch` for one of another type; `CapacityExceeded`.
pub fn load<S: Stored>(cache: &mut dyn Cache<S>, path: &Path) -> Result<()> {
    let bytes = fs::read(path).map_err(|error| broken("load", error))?;
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| broken("load", error))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| broken("load", error))?;
    let said = header.metadata().clone().unwrap_or_default();

    // 3. check: everything, before anything is changed
    check_file("load", &said, &SIGNATURE)?;
    check_described("load", &said, &cache.describe(), &FREE, &OPTIONAL)?;
    let columns = cache.columns();
    let row_tensors = row_tensors(&cache.row_shape(), longest_row(&file));
    let expected = row_tensors.len() + columns.len();
    if file.len() != expected {
        return Err(broken("load", format_args!("{} tensors instead of {expected}", file.len())));
    }
    let bookkeeping: Vec<Vec<i64>> = row_tensors
        .into_iter()
        .map(|(name, shape)| Ok(from_bytes(tensor(&file, name, Dtype::I64, &shape)?)))
        .collect::<Result<_>>()?;
    let [lengths, next, positions] = &bookkeeping[..] else { unreachable!("three of them") };
    let longest = longest_row(&file);
    let positions: Vec<&[i64]> =
        (0..lengths.len()).map(|row| &positions[row * longest..][..longest]).collect();
    check_file_rows("load", (lengths, next), &positions, longest)?;
    let contents: Vec<&[u8]> = columns
        .iter()
        .map(|column| {
            let shape = column.shape(cache.sizes().batch, lengths, longest);
            tensor(&file, column.name, column.dtype, &shape)
        })
        .collect::<Result<_>>()?;

    // 4. restore: rows and contents, if the cache has room for them
    let held = positions.iter().zip(lengths).map(|(row, &length)| row[..length as usize].to_vec());
    let rows = Rows::from_parts(held.collect(), next.clone());
    let up_to_longest = |(column, &bytes): (&Column, &&[u8])| {
        let width = column.width.unwrap_or(1) * column.dtype.bitsize() / 8; // bytes of a slot and head
        let held = column.entries.count(lengths, rows.longest()) * width;
        let heads = bytes.chunks((column.entries.count(lengths, longest) * width).max(1));
        heads.flat_map(|head| &head[..held]).copied().collect()
    };
    let contents = columns.iter().zip(&contents).map(up_to_longest).collect();
    cache.restore(rows, &contents)
}

/// The tensors that say which positions are held, and their shapes, for rows of `shape`.
fn row_tensors(shape: &[usize], longest: usize) -> [(&'static str, Vec<usize>); 3] {
    let with_slots = shape.iter().copied().chain([longest]).collect();
    [("lengths", shape.to_vec()), ("next", shape.to_vec()), ("positions", with_slots)]
}

/// L of a file.
fn longest_row(file: &SafeTensors<'_>) -> usize {
    file.tensor("positions").map_or(0, |tensor| tensor.shape().last().copied().unwrap_or(0))
}

/// The bytes of a tensor that must be of this type and shape.
fn tensor<'a>(
    file: &SafeTensors<'a>,
    name: &'static str,
    dtype: Dtype,
    shape: &[usize],
) -> Result<&'a [u8]> {
    let tensor = file.tensor(name).ok();
    let got = tensor.as_ref().map(|tensor| (tensor.dtype(), tensor.shape()));
    check_tensor("load", name, (dtype, shape), got)?;
    Ok(tensor.expect("checked").data())
}

/// A file that is of no use, and why.
fn broken(function: &'static str, why: impl Display) -> AttentionError {
    AttentionError::InvalidFile(Fault::new(function, "file", "the file of a cache", why))
}
