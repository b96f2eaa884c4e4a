//! Masks as tables.

use pyo3::prelude::*;
use rosetta_attention as core;

use crate::arguments::{MaskArguments, size};
use crate::arrays::{Object, give};
use crate::errors::released;

/// (mask, B, Hq, Tq, Tk) -> table
#[pyfunction]
pub fn visible<'py>(
    mask: &Object<'py>,
    batch: &Object<'py>,
    num_heads: &Object<'py>,
    q_len: &Object<'py>,
    kv_len: &Object<'py>,
) -> PyResult<Object<'py>> {
    let (py, name) = (mask.py(), "visible");
    let shape = (
        size(name, "batch", batch, 0)?,
        size(name, "num_heads", num_heads, 0)?,
        size(name, "q_len", q_len, 0)?,
        size(name, "kv_len", kv_len, 0)?,
    );
    let mask = MaskArguments::extract(name, mask)?;
    let views = mask.views(py)?;
    let table = released(py, || core::visible(&views.mask(), shape))?;
    Ok(give(py, table))
}
