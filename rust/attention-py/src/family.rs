//! The other rungs of sdpa and its nearest relatives.

use ndarray::{Ix1, Ix2, Ix3};
use pyo3::prelude::*;
use rosetta_attention::AttentionError::InvalidConfig;
use rosetta_attention::{self as core, Scoring, Stored, Tier, Tiles, Varlen};

use crate::arguments::{
    Options, Start, flag, optional_number, optional_start, optional_window, size,
};
use crate::arrays::{
    Object, array, float_kind, give, give_narrow, optional_array, optional_view,
    optional_wide_view, view, wide, wide_view, with_float,
};
use crate::errors::{refuse, released};
use crate::sdpa::{attend, tier_of};

/// output, lse
type OutputLse<'py> = (Object<'py>, Object<'py>);

/// (q, k, v, (mask, bias, scale, softcap, sinks, dropout)) -> output, lse
#[pyfunction]
pub fn blocked<'py>(
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    options: Options<'py>,
) -> PyResult<OutputLse<'py>> {
    let (py, name) = (q.py(), "blocked");
    with_float!(float_kind(name, "q", q)?, S => {
        let (output, lse) = attend::<S, _>(name, q, k, v, &options, core::blocked)?;
        Ok((give_narrow::<S, _>(py, output), give(py, lse)))
    })
}

/// (q, k, v, (mask, bias, scale, softcap, sinks, dropout), block_q, block_k) -> output, lse
#[pyfunction]
pub fn flash<'py>(
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    options: Options<'py>,
    block_q: &Object<'py>,
    block_k: &Object<'py>,
) -> PyResult<OutputLse<'py>> {
    let (py, name) = (q.py(), "flash");
    let tiles = Tiles {
        block_q: size(name, "block_q", block_q, 1)?,
        block_k: size(name, "block_k", block_k, 1)?,
    };
    with_float!(float_kind(name, "q", q)?, S => {
        let (output, lse) = attend::<S, _>(name, q, k, v, &options, |q, k, v, options| {
            core::flash(q, k, v, options, tiles)
        })?;
        Ok((give_narrow::<S, _>(py, output), give(py, lse)))
    })
}

/// (q, k, v, (mask, bias, scale, softcap, sinks, dropout), splits) -> output, lse
#[pyfunction]
pub fn split_kv<'py>(
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    options: Options<'py>,
    splits: &Object<'py>,
) -> PyResult<OutputLse<'py>> {
    let (py, name) = (q.py(), "split_kv");
    let splits = size(name, "splits", splits, 1)?;
    with_float!(float_kind(name, "q", q)?, S => {
        let (output, lse) = attend::<S, _>(name, q, k, v, &options, |q, k, v, options| {
            core::split_kv(q, k, v, options, splits)
        })?;
        Ok((give_narrow::<S, _>(py, output), give(py, lse)))
    })
}

/// (a_output, a_lse, b_output, b_lse) -> output, lse
#[pyfunction]
pub fn merge<'py>(
    a_output: &Object<'py>,
    a_lse: &Object<'py>,
    b_output: &Object<'py>,
    b_lse: &Object<'py>,
) -> PyResult<OutputLse<'py>> {
    let (py, name) = (a_output.py(), "merge");
    with_float!(float_kind(name, "a_output", a_output)?, S => {
        let a = array::<S>(name, "a_output", a_output)?;
        let a_lse = array::<<S as Stored>::Compute>(name, "a_lse", a_lse)?;
        let b = array::<S>(name, "b_output", b_output)?;
        let b_lse = array::<<S as Stored>::Compute>(name, "b_lse", b_lse)?;
        let ((a, b), a_lse, b_lse) = ((wide(&a), wide(&b)), a_lse.as_array(), b_lse.as_array());
        let (output, lse) = released(py, || core::merge(&a, &a_lse, &b, &b_lse))?;
        Ok((give_narrow::<S, _>(py, output), give(py, lse)))
    })
}

/// cu_seqlens_q, cu_seqlens_k.
type Bounds<'py> = (Object<'py>, Object<'py>);

/// causal, q_offset, window, scale, softcap.
type VarlenOptions<'py> = (Object<'py>, Object<'py>, Object<'py>, Object<'py>, Object<'py>);

/// (q, k, v, (cu_seqlens_q, cu_seqlens_k), (causal, q_offset, window, scale, softcap)) -> output, lse
#[pyfunction]
pub fn varlen<'py>(
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    bounds: Bounds<'py>,
    options: VarlenOptions<'py>,
) -> PyResult<OutputLse<'py>> {
    varlen_rung(q, k, v, bounds, options, None)
}

/// (q, k, v, (cu_seqlens_q, cu_seqlens_k), (causal, q_offset, window, scale, softcap), tier) -> output, lse
#[pyfunction]
pub fn varlen_simd<'py>(
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    bounds: Bounds<'py>,
    options: VarlenOptions<'py>,
    tier: Option<&str>,
) -> PyResult<OutputLse<'py>> {
    let tier = tier_of(q.py(), tier)?;
    varlen_rung(q, k, v, bounds, options, Some(tier))
}

/// The readable rung, or the vectorised one and its tier.
fn varlen_rung<'py>(
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    bounds: Bounds<'py>,
    options: VarlenOptions<'py>,
    simd: Option<Option<Tier>>,
) -> PyResult<OutputLse<'py>> {
    let (py, name) = (q.py(), "varlen");
    let (causal, q_offset, window, scale, softcap) = options;
    with_float!(float_kind(name, "q", q)?, S => {
        let (q, k, v) =
            (array::<S>(name, "q", q)?, array::<S>(name, "k", k)?, array::<S>(name, "v", v)?);
        let cu_q = array::<i64>(name, "cu_seqlens_q", &bounds.0)?;
        let cu_k = array::<i64>(name, "cu_seqlens_k", &bounds.1)?;
        let q_offset = optional_start(name, &q_offset)?;
        let packed = |argument, x| wide_view::<S, Ix3>(py, name, argument, x, "rank 3 (N, H, D)");
        let (q, k, v) = (packed("q", &q)?, packed("k", &k)?, packed("v", &v)?);
        let cu = "shape (S + 1,)";
        let cu_q = view::<i64, Ix1>(py, name, "cu_seqlens_q", &cu_q, cu)?;
        let cu_k = view::<i64, Ix1>(py, name, "cu_seqlens_k", &cu_k, cu)?;
        let q_offset = q_offset.as_ref().map(|start| start.view(py, name, "shape (S,)")).transpose()?;
        let options = Varlen {
            causal: flag(name, "causal", &causal)?,
            q_offset: q_offset.as_ref().map(Start::offset),
            window: optional_window(name, &window)?,
            scale: optional_number(name, "scale", &scale)?,
            softcap: optional_number(name, "softcap", &softcap)?,
        };
        let (output, lse) = released(py, || match simd {
            None => core::varlen(&q, &k, &v, &cu_q, &cu_k, &options),
            Some(tier) => core::varlen_simd(&q, &k, &v, &cu_q, &cu_k, &options, tier),
        })?;
        Ok((give_narrow::<S, _>(py, output), give(py, lse)))
    })
}

/// w_q, w_k, w_v, w.
type Weights<'py> = (Object<'py>, Object<'py>, Object<'py>, Object<'py>);

/// (form, q, k, v, (w_q, w_k, w_v, w), kv_lengths) -> output, weights, scores
#[pyfunction]
pub fn scoring<'py>(
    form: &Object<'py>,
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    weights: Weights<'py>,
    kv_lengths: &Object<'py>,
) -> PyResult<(Object<'py>, Object<'py>, Object<'py>)> {
    let (py, name) = (q.py(), "scoring");
    check_weights(form, &weights)?;
    with_float!(float_kind(name, "q", q)?, S => {
        let (q, k, v) =
            (array::<S>(name, "q", q)?, array::<S>(name, "k", k)?, array::<S>(name, "v", v)?);
        let weight = |argument, x| optional_array::<S>(name, argument, x);
        let (w_q, w_k) = (weight("w_q", &weights.0)?, weight("w_k", &weights.1)?);
        let (w_v, w) = (weight("w_v", &weights.2)?, weight("w", &weights.3)?);
        let lengths = optional_array(name, "kv_lengths", kv_lengths)?;

        let rank_3 = |argument, x| wide_view::<S, Ix3>(py, name, argument, x, "rank 3 (B, T, D)");
        let (q, k, v) = (rank_3("q", &q)?, rank_3("k", &k)?, rank_3("v", &v)?);
        let matrix = |argument, x| {
            optional_wide_view::<S, Ix2>(py, name, argument, x, "rank 2 (out, in)")
        };
        let (w_q, w_k) = (matrix("w_q", w_q.as_ref())?, matrix("w_k", w_k.as_ref())?);
        let w = matrix("w", w.as_ref())?;
        let w_v = optional_wide_view::<S, Ix1>(py, name, "w_v", w_v.as_ref(), "rank 1 (A,)")?;
        let lengths = optional_view(py, name, "kv_lengths", lengths.as_ref(), "shape (B,)")?;
        let form = match (w_q.as_deref(), w_k.as_deref(), w_v.as_deref(), w.as_deref()) {
            (Some(w_q), Some(w_k), Some(w_v), _) => Scoring::Additive { w_q, w_k, w_v },
            (.., Some(w)) => Scoring::General { w },
            _ if form.str()? == "scaled" => Scoring::Scaled,
            _ => Scoring::Dot,
        };
        let steps =
            released(py, || core::scoring_steps(form, &q, &k, &v, lengths.as_deref()))?;
        Ok((
            give_narrow::<S, _>(py, steps.output),
            give_narrow::<S, _>(py, steps.weights),
            give_narrow::<S, _>(py, steps.scores),
        ))
    })
}

/// The weights that the form has, and no others.
fn check_weights(form: &Object<'_>, weights: &Weights<'_>) -> PyResult<()> {
    let (py, form) = (form.py(), form.str()?);
    let refused = |argument, expected: &str, got: &str| {
        refuse(py, InvalidConfig, "scoring", argument, expected, got)
    };
    let due: &[&str] = match form.to_str()? {
        "additive" => &["w_q", "w_k", "w_v"],
        "general" => &["w"],
        "dot" | "scaled" => &[],
        other => return Err(refused("form", "additive, dot, general or scaled", other)),
    };
    let (w_q, w_k, w_v, w) = weights;
    for (argument, x) in [("w_q", w_q), ("w_k", w_k), ("w_v", w_v), ("w", w)] {
        let (is_due, given) = (due.contains(&argument), !x.is_none());
        let [expected, got] = [is_due, given].map(|x| if x { "an array" } else { "None" });
        if is_due != given {
            return Err(refused(argument, &format!("{expected} for the form {form}"), got));
        }
    }
    Ok(())
}
