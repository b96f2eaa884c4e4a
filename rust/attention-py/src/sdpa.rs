//! sdpa in the readable rung and in the vectorised ones. All arguments are positional; defaults are the Python package's.

use ndarray::ArrayRef4;
use pyo3::prelude::*;
use rosetta_attention::{self as core, Sdpa, Steps, Tier};

use crate::arguments::{Arguments, Options, size};
use crate::arrays::{Floating, Object, array, float_kind, give, give_narrow, wide_4, with_float};
use crate::errors::{exception, released};

/// The fields of the Python package's `Steps`, in their order.
pub type StepObjects<'py> =
    (Object<'py>, Object<'py>, Object<'py>, Object<'py>, Object<'py>, Object<'py>);

/// (q, k, v, (mask, bias, scale, softcap, sinks, dropout)) -> output
#[pyfunction]
pub fn sdpa<'py>(
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    options: Options<'py>,
) -> PyResult<Object<'py>> {
    with_float!(float_kind("sdpa", "q", q)?, S => {
        let output = attend::<S, _>("sdpa", q, k, v, &options, core::sdpa)?;
        Ok(give_narrow::<S, _>(q.py(), output))
    })
}

/// (q, k, v, (mask, bias, scale, softcap, sinks, dropout)) -> output, weights, lse, scores, capped, biased
#[pyfunction]
pub fn sdpa_steps<'py>(
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    options: Options<'py>,
) -> PyResult<StepObjects<'py>> {
    with_float!(float_kind("sdpa", "q", q)?, S => {
        let steps = attend::<S, _>("sdpa", q, k, v, &options, core::sdpa_steps)?;
        Ok(step_objects::<S>(q.py(), steps))
    })
}

/// (q, k, v, (mask, bias, scale, softcap, sinks, dropout), tier) -> output, lse
#[pyfunction]
pub fn sdpa_simd<'py>(
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    options: Options<'py>,
    tier: Option<&str>,
) -> PyResult<(Object<'py>, Object<'py>)> {
    let py = q.py();
    let tier = tier_of(py, tier)?;
    with_float!(float_kind("sdpa", "q", q)?, S => {
        let (output, lse) = attend::<S, _>("sdpa", q, k, v, &options, |q, k, v, options| {
            core::sdpa_simd(q, k, v, options, tier)
        })?;
        Ok((give_narrow::<S, _>(py, output), give(py, lse)))
    })
}

/// (q, k, v, (mask, bias, scale, softcap, sinks, dropout), tier, threads) -> output, lse
#[pyfunction]
pub fn sdpa_threads<'py>(
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    options: Options<'py>,
    tier: Option<&str>,
    threads: &Object<'py>,
) -> PyResult<(Object<'py>, Object<'py>)> {
    let py = q.py();
    let tier = tier_of(py, tier)?;
    let threads = size("sdpa", "threads", threads, 1)?;
    with_float!(float_kind("sdpa", "q", q)?, S => {
        let (output, lse) = attend::<S, _>("sdpa", q, k, v, &options, |q, k, v, options| {
            core::sdpa_threads(q, k, v, options, tier, threads)
        })?;
        Ok((give_narrow::<S, _>(py, output), give(py, lse)))
    })
}

/// The tier of a name.
pub fn tier_of(py: Python<'_>, name: Option<&str>) -> PyResult<Option<Tier>> {
    name.map(|name| name.parse().map_err(|error| exception(py, &error))).transpose()
}

/// The tiers of `sdpa_simd` that this machine has, the widest first.
#[pyfunction]
pub fn simd_tiers() -> Vec<String> {
    Tier::ALL.iter().filter(|tier| tier.is_available()).map(Tier::to_string).collect()
}

/// One call of a rung of sdpa.
pub fn attend<'py, S: Floating, R: Send>(
    name: &'static str,
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    options: &Options<'py>,
    rung: impl FnOnce(
        &ArrayRef4<S::Compute>,
        &ArrayRef4<S::Compute>,
        &ArrayRef4<S::Compute>,
        &Sdpa<'_, S::Compute>,
    ) -> core::Result<R>
    + Send,
) -> PyResult<R> {
    let py = q.py();
    let (q, k, v) =
        (array::<S>(name, "q", q)?, array::<S>(name, "k", k)?, array::<S>(name, "v", v)?);
    let options = Arguments::<S>::extract(name, options)?;
    let (q, k, v) =
        (wide_4(py, name, "q", &q)?, wide_4(py, name, "k", &k)?, wide_4(py, name, "v", &v)?);
    let views = options.views(py)?;
    released(py, || rung(&q, &k, &v, &views.options()))
}

/// The fields of the Python package's `Steps`.
pub fn step_objects<'py, S: Floating>(
    py: Python<'py>,
    steps: Steps<S::Compute>,
) -> StepObjects<'py> {
    (
        give_narrow::<S, _>(py, steps.output),
        give_narrow::<S, _>(py, steps.weights),
        give(py, steps.lse),
        give_narrow::<S, _>(py, steps.scores),
        give_narrow::<S, _>(py, steps.capped),
        give_narrow::<S, _>(py, steps.biased),
    )
}
