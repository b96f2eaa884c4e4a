//! A cache in a file, from which another one, in any of the languages, can go on.
//!
//! The file is a safetensors file: what the cache is stands in its metadata, what it holds in tensors, with the
//! positions of the slots among them. Memory that is not in use is not in it.
//!
//! Letters: B batch, L slots of the longest row.
//!
//! Source: Hugging Face, "safetensors", the format of the file.

use std::collections::HashMap;
use std::fmt::Display;
use std::fs;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::cache::Cache;
use crate::cache_content::{Column, Contents, from_bytes, to_bytes};
use crate::cast::Stored;
use crate::checks::{check_described, check_file, check_file_rows, check_tensor};
use crate::errors::{AttentionError, Fault, Result};
use crate::rows::Rows;

/// By which the file of a cache is known.
const SIGNATURE: [(&str, &str); 2] = [("format", "rosetta-kv-cache"), ("version", "1")];

/// What a file says that the cache need not agree with.
const FREE: [&str; 1] = ["num_pages"];

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
    let bookkeeping = vec![
        to_bytes(rows.lengths()),   // (B)
        to_bytes(rows.next()),      // (B)
        to_bytes(rows.positions()), // (B, L)
    ];

    // 2. write: the positions, and the contents of the slots
    let (batch, longest) = (rows.batch(), rows.longest());
    let (columns, contents) = (cache.columns(), cache.contents());
    let named = row_tensors(batch, longest).into_iter().zip(&bookkeeping);
    let shaped = columns.into_iter().map(|column| {
        let shape = column.shape(batch, longest);
        (column, shape)
    });
    let tensors = named.chain(shaped.zip(&contents)).map(|((column, shape), bytes)| {
        let view = TensorView::new(column.dtype, shape, bytes).expect("as many bytes as it takes");
        (column.name, view)
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
    check_described("load", &said, &cache.describe(), &FREE)?;
    let batch = cache.sizes().batch;
    let longest =
        file.tensor("positions").map_or(0, |tensor| tensor.shape().last().copied().unwrap_or(0));
    let checked = |(column, shape): (Column, Vec<usize>)| {
        let tensor = file.tensor(column.name).ok();
        let got = tensor.as_ref().map(|tensor| (tensor.dtype(), tensor.shape()));
        check_tensor("load", &column, got, &shape)?;
        Ok(tensor.expect("checked").data().to_vec())
    };
    let bookkeeping: Contents =
        row_tensors(batch, longest).into_iter().map(checked).collect::<Result<_>>()?;
    let columns = cache.columns();
    let expected = bookkeeping.len() + columns.len();
    if file.len() != expected {
        return Err(broken("load", format_args!("{} tensors instead of {expected}", file.len())));
    }
    let shaped = columns.into_iter().map(|column| {
        let shape = column.shape(batch, longest);
        (column, shape)
    });
    let contents: Contents = shaped.map(checked).collect::<Result<_>>()?;
    let [lengths, next, positions] = [0, 1, 2].map(|index| from_bytes::<i64>(&bookkeeping[index]));
    let positions: Vec<&[i64]> = (0..batch).map(|b| &positions[b * longest..][..longest]).collect();
    check_file_rows("load", (&lengths, &next), &positions, longest)?;

    // 4. restore: rows and contents, if the cache has room for them
    let held = positions.iter().zip(&lengths).map(|(row, &length)| row[..length as usize].to_vec());
    let rows = Rows::from_parts(held.collect(), next);
    let up_to_longest = |(column, bytes): (&Column, &Vec<u8>)| {
        let width = column.width * column.dtype.bitsize() / 8; // bytes of a slot and head
        let heads = bytes.chunks(longest.saturating_mul(width).max(1));
        heads.flat_map(|head| &head[..rows.longest() * width]).copied().collect()
    };
    let contents = cache.columns().iter().zip(&contents).map(up_to_longest).collect();
    cache.restore(rows, &contents)
}

/// The tensors that say which positions are held, and their shapes.
fn row_tensors(batch: usize, longest: usize) -> Vec<(Column, Vec<usize>)> {
    let column = |name| Column { name, dtype: Dtype::I64, heads: None, width: 1 };
    vec![
        (column("lengths"), vec![batch]),
        (column("next"), vec![batch]),
        (column("positions"), vec![batch, longest]),
    ]
}

/// A file that is of no use, and why.
fn broken(function: &'static str, why: impl Display) -> AttentionError {
    AttentionError::InvalidFile(Fault::new(function, "file", "the file of a cache", why))
}
