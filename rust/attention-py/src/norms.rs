//! Norms and activations, on arrays of any rank.

use ndarray::IxDyn;
use pyo3::prelude::*;
use rosetta_attention::{self as core, Approximate};

use crate::arguments::number;
use crate::arrays::{
    Object, array, float_kind, give_narrow, optional_array, optional_wide_view, wide, with_float,
};
use crate::errors::{exception, released};

/// What is expected of the weight and the bias of a norm.
const CHANNELS: &str = "shape (n,)";

/// (x, weight, bias, eps) -> output, mean, inv_std
#[pyfunction]
pub fn layer_norm<'py>(
    x: &Object<'py>,
    weight: &Object<'py>,
    bias: &Object<'py>,
    eps: &Object<'py>,
) -> PyResult<(Object<'py>, Object<'py>, Object<'py>)> {
    let (py, name) = (x.py(), "layer_norm");
    with_float!(float_kind(name, "x", x)?, S => {
        let x = array::<S>(name, "x", x)?;
        let weight = optional_array::<S>(name, "weight", weight)?;
        let bias = optional_array::<S>(name, "bias", bias)?;
        let eps = number(name, "eps", eps)?;
        let x = wide(&x);
        let weight = optional_wide_view(py, name, "weight", weight.as_ref(), CHANNELS)?;
        let bias = optional_wide_view(py, name, "bias", bias.as_ref(), CHANNELS)?;
        let steps = released(py, || {
            core::layer_norm_steps::<_, IxDyn>(&x, weight.as_deref(), bias.as_deref(), eps)
        })?;
        Ok((
            give_narrow::<S, _>(py, steps.output),
            give_narrow::<S, _>(py, steps.mean),
            give_narrow::<S, _>(py, steps.inv_std),
        ))
    })
}

/// (x, weight, eps) -> output
#[pyfunction]
pub fn rms_norm<'py>(
    x: &Object<'py>,
    weight: &Object<'py>,
    eps: &Object<'py>,
) -> PyResult<Object<'py>> {
    let (py, name) = (x.py(), "rms_norm");
    with_float!(float_kind(name, "x", x)?, S => {
        let x = array::<S>(name, "x", x)?;
        let weight = optional_array::<S>(name, "weight", weight)?;
        let eps = number(name, "eps", eps)?;
        let x = wide(&x);
        let weight = optional_wide_view(py, name, "weight", weight.as_ref(), CHANNELS)?;
        let output = released(py, || core::rms_norm::<_, IxDyn>(&x, weight.as_deref(), eps))?;
        Ok(give_narrow::<S, _>(py, output))
    })
}

/// (x, approximate) -> output
#[pyfunction]
pub fn gelu<'py>(x: &Object<'py>, approximate: &Object<'py>) -> PyResult<Object<'py>> {
    let (py, name) = (x.py(), "gelu");
    with_float!(float_kind(name, "x", x)?, S => {
        let x = array::<S>(name, "x", x)?;
        let approximate: core::Result<Approximate> = approximate.str()?.to_cow()?.parse();
        let approximate = approximate.map_err(|error| exception(py, &error))?;
        let x = wide(&x);
        let output = released(py, || Ok(core::gelu::<_, IxDyn>(&x, approximate)))?;
        Ok(give_narrow::<S, _>(py, output))
    })
}

/// (a, b, alpha) -> output
#[pyfunction]
pub fn swiglu<'py>(a: &Object<'py>, b: &Object<'py>, alpha: &Object<'py>) -> PyResult<Object<'py>> {
    let (py, name) = (a.py(), "swiglu");
    with_float!(float_kind(name, "a", a)?, S => {
        let (a, b) = (array::<S>(name, "a", a)?, array::<S>(name, "b", b)?);
        let alpha = number(name, "alpha", alpha)?;
        let (a, b) = (wide(&a), wide(&b));
        let output = released(py, || core::swiglu::<_, IxDyn>(&a, &b, alpha))?;
        Ok(give_narrow::<S, _>(py, output))
    })
}
