//! The softmax alone.

use pyo3::prelude::*;
use rosetta_attention as core;

use crate::arrays::{
    Object, array, float_kind, give, give_narrow, optional_array, wide, with_float,
};
use crate::errors::released;

/// (x, sink) -> (weights, lse)
#[pyfunction]
pub fn softmax_lse<'py>(
    x: &Object<'py>,
    sink: &Object<'py>,
) -> PyResult<(Object<'py>, Object<'py>)> {
    let (py, name) = (x.py(), "softmax");
    with_float!(float_kind(name, "x", x)?, S => {
        let (x, sink) = (array::<S>(name, "x", x)?, optional_array::<S>(name, "sink", sink)?);
        let (x, sink) = (wide(&x), sink.as_ref().map(wide));
        let (weights, lse) = released(py, || core::softmax_lse(&x, sink.as_deref()))?;
        Ok((give_narrow::<S, _>(py, weights), give(py, lse)))
    })
}
