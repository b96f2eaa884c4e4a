//! The functions of the module. All arguments are positional; defaults are the Python package's.

use ndarray::ArrayRef4;
use numpy::IntoPyArray;
use pyo3::prelude::*;
use rosetta_attention::{self as core, Float, Sdpa, Steps, Tier};

use crate::arguments::{Arguments, MaskArguments, Object, Options, size};
use crate::arrays::{Named, array, float_kind, optional_array, view_4, with_float};
use crate::errors::{exception, released};

/// The fields of the Python package's `Steps`, in their order.
pub type StepObjects<'py> =
    (Object<'py>, Object<'py>, Object<'py>, Object<'py>, Object<'py>, Object<'py>);

/// (x, sink) -> (weights, lse)
#[pyfunction]
pub fn softmax_lse<'py>(
    x: &Object<'py>,
    sink: &Object<'py>,
) -> PyResult<(Object<'py>, Object<'py>)> {
    let (py, name) = (x.py(), "softmax");
    with_float!(float_kind(name, "x", x)?, T => {
        let (x, sink) = (array::<T>(name, "x", x)?, optional_array::<T>(name, "sink", sink)?);
        let (x, sink) = (x.as_array(), sink.as_ref().map(|sink| sink.as_array()));
        let (weights, lse) = released(py, || core::softmax_lse(&x, sink.as_deref()))?;
        Ok((weights.into_pyarray(py).into_any(), lse.into_pyarray(py).into_any()))
    })
}

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
    Ok(table.into_pyarray(py).into_any())
}

/// (q, k, v, (mask, bias, scale, softcap, sinks)) -> output
#[pyfunction]
pub fn sdpa<'py>(
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    options: Options<'py>,
) -> PyResult<Object<'py>> {
    with_float!(float_kind("sdpa", "q", q)?, T => {
        let output = attend::<T, _>(q, k, v, &options, core::sdpa)?;
        Ok(output.into_pyarray(q.py()).into_any())
    })
}

/// (q, k, v, (mask, bias, scale, softcap, sinks)) -> output, weights, lse, scores, capped, biased
#[pyfunction]
pub fn sdpa_steps<'py>(
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    options: Options<'py>,
) -> PyResult<StepObjects<'py>> {
    with_float!(float_kind("sdpa", "q", q)?, T => {
        Ok(step_objects(q.py(), attend::<T, _>(q, k, v, &options, core::sdpa_steps)?))
    })
}

/// (q, k, v, (mask, bias, scale, softcap, sinks), tier) -> output, lse
#[pyfunction]
pub fn sdpa_simd<'py>(
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    options: Options<'py>,
    tier: Option<&str>,
) -> PyResult<(Object<'py>, Object<'py>)> {
    let py = q.py();
    let tier: Option<Tier> =
        tier.map(|name| name.parse().map_err(|error| exception(py, &error))).transpose()?;
    with_float!(float_kind("sdpa", "q", q)?, T => {
        let (output, lse) = attend::<T, _>(q, k, v, &options, |q, k, v, options| {
            core::sdpa_simd(q, k, v, options, tier)
        })?;
        Ok((output.into_pyarray(py).into_any(), lse.into_pyarray(py).into_any()))
    })
}

/// The tiers of `sdpa_simd` that this machine has, the widest first.
#[pyfunction]
pub fn simd_tiers() -> Vec<String> {
    Tier::ALL.iter().filter(|tier| tier.is_available()).map(Tier::to_string).collect()
}

/// One call of a rung of sdpa.
fn attend<'py, T: Named + Float, R: Send>(
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    options: &Options<'py>,
    rung: impl FnOnce(&ArrayRef4<T>, &ArrayRef4<T>, &ArrayRef4<T>, &Sdpa<'_, T>) -> core::Result<R>
    + Send,
) -> PyResult<R> {
    let (py, name) = (q.py(), "sdpa");
    let (q, k, v) = (array(name, "q", q)?, array(name, "k", k)?, array(name, "v", v)?);
    let options = Arguments::extract(name, options)?;
    let (q, k, v) =
        (view_4(py, name, "q", &q)?, view_4(py, name, "k", &k)?, view_4(py, name, "v", &v)?);
    let views = options.views(py)?;
    released(py, || rung(&q, &k, &v, &views.options()))
}

/// The fields of the Python package's `Steps`.
pub fn step_objects<'py, T: Named>(py: Python<'py>, steps: Steps<T>) -> StepObjects<'py> {
    (
        steps.output.into_pyarray(py).into_any(),
        steps.weights.into_pyarray(py).into_any(),
        steps.lse.into_pyarray(py).into_any(),
        steps.scores.into_pyarray(py).into_any(),
        steps.capped.into_pyarray(py).into_any(),
        steps.biased.into_pyarray(py).into_any(),
    )
}
