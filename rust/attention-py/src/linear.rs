//! The linear and the gated kinds of attention.

use ndarray::{Array4, ArrayRef4};
use numpy::PyReadonlyArrayDyn;
use pyo3::prelude::*;
use rosetta_attention::{self as core, AttentionError::InvalidConfig, LinearState, Rule};

use crate::arguments::{flag, optional_number, size};
use crate::arrays::{
    Floating, Object, array, float_kind, give_narrow, optional_array, optional_wide_view, wide_4,
    wide_view, with_float,
};
use crate::errors::{exception, refuse, released};

/// output, state, norm
type LinearObjects<'py> = (Object<'py>, Object<'py>, Object<'py>);

/// What a rung of linear attention gives.
type Linear<T> = core::Result<(Array4<T>, LinearState<T>)>;

/// (q, k, v, causal, state) -> output, state, norm
#[pyfunction]
pub fn linear_attention<'py>(
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    causal: &Object<'py>,
    state: &Object<'py>,
) -> PyResult<LinearObjects<'py>> {
    with_float!(float_kind("linear_attention", "q", q)?, S => {
        attend::<S>("linear_attention", [q, k, v], causal, state, core::linear_attention)
    })
}

/// (q, k, v, causal, state) -> output, state, norm
#[pyfunction]
pub fn linear_recurrent<'py>(
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    causal: &Object<'py>,
    state: &Object<'py>,
) -> PyResult<LinearObjects<'py>> {
    with_float!(float_kind("linear_recurrent", "q", q)?, S => {
        attend::<S>("linear_recurrent", [q, k, v], causal, state, core::linear_recurrent)
    })
}

/// (q, k, v, causal, state, chunk) -> output, state, norm
#[pyfunction]
pub fn linear_chunked<'py>(
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    causal: &Object<'py>,
    state: &Object<'py>,
    chunk: &Object<'py>,
) -> PyResult<LinearObjects<'py>> {
    let name = "linear_chunked";
    with_float!(float_kind(name, "q", q)?, S => {
        let chunk = size(name, "chunk", chunk, 1)?;
        attend::<S>(name, [q, k, v], causal, state, |q, k, v, causal, state| {
            core::linear_chunked(q, k, v, causal, state, chunk)
        })
    })
}

/// One call of a rung.
fn attend<'py, S: Floating>(
    name: &'static str,
    [q, k, v]: [&Object<'py>; 3],
    causal: &Object<'py>,
    state: &Object<'py>,
    rung: impl FnOnce(
        &ArrayRef4<S::Compute>,
        &ArrayRef4<S::Compute>,
        &ArrayRef4<S::Compute>,
        bool,
        Option<&LinearState<S::Compute>>,
    ) -> Linear<S::Compute>
    + Send,
) -> PyResult<LinearObjects<'py>> {
    let py = q.py();
    let (q, k, v) =
        (array::<S>(name, "q", q)?, array::<S>(name, "k", k)?, array::<S>(name, "v", v)?);
    let causal = flag(name, "causal", causal)?;
    let state = memory::<S>(name, state)?;
    let (q, k, v) =
        (wide_4(py, name, "q", &q)?, wide_4(py, name, "k", &k)?, wide_4(py, name, "v", &v)?);
    let state = match &state {
        None => None,
        Some((state, norm)) => Some(LinearState {
            state: wide_view(py, name, "state", state, "rank 4 (B, Hkv, D, Dv)")?.into_owned(),
            norm: wide_view(py, name, "norm", norm, "rank 3 (B, Hkv, D)")?.into_owned(),
        }),
    };
    let (output, state) = released(py, || rung(&q, &k, &v, causal, state.as_ref()))?;
    Ok((
        give_narrow::<S, _>(py, output),
        give_narrow::<S, _>(py, state.state),
        give_narrow::<S, _>(py, state.norm),
    ))
}

/// A `LinearState` of the Python package, or `None`.
#[allow(clippy::type_complexity, reason = "two arrays")]
fn memory<'py, S: Floating>(
    name: &'static str,
    state: &Object<'py>,
) -> PyResult<Option<(PyReadonlyArrayDyn<'py, S>, PyReadonlyArrayDyn<'py, S>)>> {
    if state.is_none() {
        return Ok(None);
    }
    let (Ok(matrix), Ok(norm)) = (state.getattr("state"), state.getattr("norm")) else {
        let expected = "a LinearState or None";
        return Err(refuse(state.py(), InvalidConfig, name, "state", expected, state));
    };
    Ok(Some((array(name, "state", &matrix)?, array(name, "norm", &norm)?)))
}

/// state, decay, beta
type Arrays<'py> = (Object<'py>, Object<'py>, Object<'py>);

/// (q, k, v, rule, (state, decay, beta), scale) -> output, state
#[pyfunction]
pub fn gated_linear<'py>(
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    rule: &Object<'py>,
    arrays: Arrays<'py>,
    scale: &Object<'py>,
) -> PyResult<(Object<'py>, Object<'py>)> {
    let (py, name) = (q.py(), "gated_linear");
    let (state, decay, beta) = arrays;
    with_float!(float_kind(name, "q", q)?, S => {
        let (q, k, v) = (array::<S>(name, "q", q)?, array(name, "k", k)?, array(name, "v", v)?);
        let state = optional_array::<S>(name, "state", &state)?;
        let decay = optional_array::<S>(name, "decay", &decay)?;
        let beta = optional_array::<S>(name, "beta", &beta)?;
        let rule: core::Result<Rule> = rule.str()?.to_cow()?.parse();
        let rule = rule.map_err(|error| exception(py, &error))?;
        let scale = optional_number(name, "scale", scale)?;

        let (q, k, v) =
            (wide_4(py, name, "q", &q)?, wide_4::<S>(py, name, "k", &k)?, wide_4::<S>(py, name, "v", &v)?);
        let view = |argument, x, expected| optional_wide_view(py, name, argument, x, expected);
        let state = view("state", state.as_ref(), "rank 4 (B, Hkv, D, Dv)")?;
        let decay = view("decay", decay.as_ref(), "rank 4 (B, Hkv, T, D or 1)")?;
        let beta = view("beta", beta.as_ref(), "rank 4 (B, Hkv or 1, T, 1)")?;
        let options = core::GatedLinear {
            rule,
            state: state.as_deref(),
            decay: decay.as_deref(),
            beta: beta.as_deref(),
            scale,
        };
        let (output, state) = released(py, || core::gated_linear(&q, &k, &v, &options))?;
        Ok((give_narrow::<S, _>(py, output), give_narrow::<S, _>(py, state)))
    })
}
