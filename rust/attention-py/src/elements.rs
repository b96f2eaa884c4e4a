//! What is done element by element: other types, and dropout.

use half::{bf16, f16};
use pyo3::prelude::*;
use rosetta_attention::{self as core, AttentionError};

use crate::arguments::{dropout as dropout_options, size};
use crate::arrays::{Object, array, float_kind, give, give_narrow, wide, with_float};
use crate::errors::{exception, released};

/// (x, to) -> output
#[pyfunction]
pub fn cast<'py>(x: &Object<'py>, to: &Object<'py>) -> PyResult<Object<'py>> {
    let (py, name) = (x.py(), "cast");
    with_float!(float_kind(name, "x", x)?, S => {
        let x = array::<S>(name, "x", x)?;
        let x = x.as_array();
        match to.str()?.to_str()? {
            "f16" => Ok(give(py, released(py, || Ok(core::cast::<S, f16, _>(&x)))?)),
            "bf16" => Ok(give(py, released(py, || Ok(core::cast::<S, bf16, _>(&x)))?)),
            "f32" => Ok(give(py, released(py, || Ok(core::cast::<S, f32, _>(&x)))?)),
            "f64" => Ok(give(py, released(py, || Ok(core::cast::<S, f64, _>(&x)))?)),
            other => Err(exception(py, &AttentionError::Unsupported(format!("cast.{other}")))),
        }
    })
}

/// (x, dropout, offset) -> output, keep
#[pyfunction]
pub fn dropout<'py>(
    x: &Object<'py>,
    options: &Object<'py>,
    offset: &Object<'py>,
) -> PyResult<(Object<'py>, Object<'py>)> {
    let (py, name) = (x.py(), "dropout");
    with_float!(float_kind(name, "x", x)?, S => {
        let x = array::<S>(name, "x", x)?;
        let x = wide(&x);
        let options = dropout_options(name, options)?;
        let offset = size(name, "offset", offset, 0)? as u64;
        let steps = released(py, || core::dropout_steps(&x, &options, offset))?;
        Ok((give_narrow::<S, _>(py, steps.output), give(py, steps.keep)))
    })
}
