//! Numbers in few bits, to NumPy arrays and back.

use ndarray::{ArrayD, Dimension};
use pyo3::prelude::*;
use rosetta_attention::{self as core, Codes, Format, Quantisation};

use crate::arguments::{flag, optional_size, size};
use crate::arrays::{Object, array, float_kind, give, optional_array, with_float};
use crate::errors::{exception, released};

/// codes as bytes, scale, zero; None where the format has none.
pub type CodeObjects<'py> = (Object<'py>, Option<Object<'py>>, Option<Object<'py>>);

/// (format, group, zero_point) of the Python package.
pub fn quantisation(
    function: &'static str,
    (format, group, zero_point): &(Object<'_>, Object<'_>, Object<'_>),
) -> PyResult<Quantisation> {
    let format_name = format.str()?;
    let format: core::Result<Format> = format_name.to_cow()?.parse();
    Ok(Quantisation {
        format: format.map_err(|error| exception(format_name.py(), &error))?,
        group: if group.is_none() { None } else { Some(size(function, "group", group, 1)?) },
        zero_point: flag(function, "zero_point", zero_point)?,
    })
}

/// The arrays of codes.
pub fn code_objects<D: Dimension>(py: Python<'_>, codes: Codes<D>) -> CodeObjects<'_> {
    let has_scale = codes.quantisation.format.is_integer();
    let has_zero = codes.quantisation.zero_point;
    (
        give(py, codes.codes),
        has_scale.then(|| give(py, codes.scale)),
        has_zero.then(|| give(py, codes.zero)),
    )
}

/// (x, (format, group, zero_point)) -> codes, scale, zero
#[pyfunction]
pub fn quantise<'py>(
    x: &Object<'py>,
    format: (Object<'py>, Object<'py>, Object<'py>),
) -> PyResult<CodeObjects<'py>> {
    let (py, name) = (x.py(), "quantise");
    let quantisation = quantisation(name, &format)?;
    with_float!(float_kind(name, "x", x)?, S => {
        let x = array::<S>(name, "x", x)?;
        let x = x.as_array();
        let codes = released(py, || {
            let x: ArrayD<f32> = core::cast(&x);
            core::quantise(&x, quantisation)
        })?;
        Ok(code_objects(py, codes))
    })
}

/// (codes as bytes, scale, zero, (format, group, zero_point), channels) -> x
#[pyfunction]
pub fn restore<'py>(
    codes: &Object<'py>,
    scale: &Object<'py>,
    zero: &Object<'py>,
    format: (Object<'py>, Object<'py>, Object<'py>),
    channels: &Object<'py>,
) -> PyResult<Object<'py>> {
    let (py, name) = (codes.py(), "restore");
    let quantisation = quantisation(name, &format)?;
    let codes = array::<u8>(name, "codes", codes)?;
    let codes = codes.as_array().to_owned();
    let per_group = |argument, x| -> PyResult<ArrayD<f32>> {
        let mut none = codes.raw_dim();
        none.as_array_view_mut().last_mut().into_iter().for_each(|groups| *groups = 0);
        let x = optional_array::<f32>(name, argument, x)?;
        Ok(x.map_or_else(|| ArrayD::zeros(none), |x| x.as_array().to_owned()))
    };
    let (scale, zero) = (per_group("scale", scale)?, per_group("zero", zero)?);
    let channels = optional_size(name, "channels", channels)?.unwrap_or(0);
    let codes = Codes { quantisation, channels, codes, scale, zero };
    Ok(give(py, released(py, || core::restore(&codes))?))
}
