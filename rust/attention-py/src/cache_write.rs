//! A write into a cache of fixed length. Nothing is computed, so the numbers are moved as they are stored.

use ndarray::{Ix1, IxDyn};
use pyo3::prelude::*;
use rosetta_attention as core;

use crate::arguments::flag;
use crate::arrays::{Object, array, float_kind, give, optional_array, optional_view, with_float};
use crate::errors::released;

/// (cache, update, write_indices, circular) -> output
#[pyfunction]
pub fn cache_write<'py>(
    cache: &Object<'py>,
    update: &Object<'py>,
    write_indices: &Object<'py>,
    circular: &Object<'py>,
) -> PyResult<Object<'py>> {
    let (py, name) = (cache.py(), "cache_write");
    with_float!(float_kind(name, "cache", cache)?, S => {
        let cache = array::<S>(name, "cache", cache)?;
        let update = array::<S>(name, "update", update)?;
        let indices = optional_array::<i64>(name, "write_indices", write_indices)?;
        let circular = flag(name, "circular", circular)?;
        let (cache, update) = (cache.as_array(), update.as_array());
        let indices =
            optional_view::<_, Ix1>(py, name, "write_indices", indices.as_ref(), "shape (B,)")?;
        let output = released(py, || {
            core::cache_write::<_, IxDyn>(&cache, &update, indices.as_deref(), circular)
        })?;
        Ok(give(py, output))
    })
}
