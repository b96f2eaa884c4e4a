//! Multi-head attention on a layer of the Python package.

use ndarray::{CowArray, Dimension, Ix1, Ix2, Ix3};
use numpy::{IntoPyArray, PyReadonlyArrayDyn};
use pyo3::prelude::*;
use rosetta_attention::{Float, MultiHeadAttention};

use crate::arguments::{Arguments, Object, Options, size};
use crate::arrays::{Named, array, float_kind, optional_array, view, with_float};
use crate::errors::released;

const NAME: &str = "mha";

/// output, weights, lse
type MhaObjects<'py> = (Object<'py>, Object<'py>, Object<'py>);

/// (layer, x, context, (mask, bias, scale, softcap, None)) -> output, weights, lse
#[pyfunction]
pub fn mha<'py>(
    layer: &Object<'py>,
    x: &Object<'py>,
    context: &Object<'py>,
    options: Options<'py>,
) -> PyResult<MhaObjects<'py>> {
    with_float!(float_kind(NAME, "x", x)?, T => mha_typed::<T>(layer, x, context, &options))
}

fn mha_typed<'py, T: Named + Float>(
    layer: &Object<'py>,
    x: &Object<'py>,
    context: &Object<'py>,
    options: &Options<'py>,
) -> PyResult<MhaObjects<'py>> {
    let py = x.py();
    let num_heads = size(NAME, "num_heads", &layer.getattr("num_heads")?, 1)?;
    let num_kv_heads = size(NAME, "num_kv_heads", &layer.getattr("kv_heads")?, 1)?;
    let x = array::<T>(NAME, "x", x)?;
    let context = optional_array::<T>(NAME, "context", context)?;
    let weight = |argument| array::<T>(NAME, argument, &layer.getattr(argument)?);
    let (w_q, w_k, w_v, w_o) = (weight("w_q")?, weight("w_k")?, weight("w_v")?, weight("w_o")?);
    let bias = |argument| optional_array::<T>(NAME, argument, &layer.getattr(argument)?);
    let (b_q, b_k, b_v, b_o) = (bias("b_q")?, bias("b_k")?, bias("b_v")?, bias("b_o")?);
    let options = Arguments::<T>::extract(NAME, options)?;

    let rank_3 = "rank 3 (B, T, C)";
    let x = view::<T, Ix3>(py, NAME, "x", &x, rank_3)?;
    let context = context.as_ref().map(|c| view::<T, Ix3>(py, NAME, "context", c, rank_3));
    let context = context.transpose()?;
    let layer = MultiHeadAttention {
        w_q: matrix(py, "w_q", &w_q)?,
        w_k: matrix(py, "w_k", &w_k)?,
        w_v: matrix(py, "w_v", &w_v)?,
        w_o: matrix(py, "w_o", &w_o)?,
        b_q: vector(py, "b_q", b_q.as_ref())?,
        b_k: vector(py, "b_k", b_k.as_ref())?,
        b_v: vector(py, "b_v", b_v.as_ref())?,
        b_o: vector(py, "b_o", b_o.as_ref())?,
        num_heads,
        num_kv_heads: Some(num_kv_heads),
    };
    let views = options.views(py)?;
    let steps = released(py, || layer.steps(&x, context.as_deref(), &views.options()))?;
    Ok((
        steps.output.into_pyarray(py).into_any(),
        steps.weights.into_pyarray(py).into_any(),
        steps.lse.into_pyarray(py).into_any(),
    ))
}

fn matrix<'a, T: Named>(
    py: Python<'_>,
    argument: &'static str,
    w: &'a PyReadonlyArrayDyn<'_, T>,
) -> PyResult<CowArray<'a, T, Ix2>> {
    borrowed(py, argument, w, "rank 2 (out, in)")
}

fn vector<'a, T: Named>(
    py: Python<'_>,
    argument: &'static str,
    b: Option<&'a PyReadonlyArrayDyn<'_, T>>,
) -> PyResult<Option<CowArray<'a, T, Ix1>>> {
    b.map(|b| borrowed(py, argument, b, "rank 1 (out,)")).transpose()
}

fn borrowed<'a, T: Named, D: Dimension>(
    py: Python<'_>,
    argument: &'static str,
    x: &'a PyReadonlyArrayDyn<'_, T>,
    expected: &str,
) -> PyResult<CowArray<'a, T, D>> {
    Ok(view(py, NAME, argument, x, expected)?.into())
}
