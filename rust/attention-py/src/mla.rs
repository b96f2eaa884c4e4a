//! Multi-head latent attention on a layer of the Python package.

use ndarray::{Ix1, Ix3};
use pyo3::prelude::*;
use rosetta_attention::{MlaOptions, MultiHeadLatentAttention};

use crate::arguments::{flag, number, optional_number, size};
use crate::arrays::{
    Object, array, float_kind, give, give_narrow, optional_array, optional_view, wide_view,
    with_float,
};
use crate::errors::released;
use crate::positions::rope_options;
use crate::weights::Weights;

/// output, weights, lse, latent, rope_key
type MlaObjects<'py> = (Object<'py>, Object<'py>, Object<'py>, Object<'py>, Object<'py>);

/// (layer, x, causal, kv_lengths, scale, absorbed) -> output, weights, lse, latent, rope_key
#[pyfunction]
pub fn mla<'py>(
    layer: &Object<'py>,
    x: &Object<'py>,
    causal: &Object<'py>,
    kv_lengths: &Object<'py>,
    scale: &Object<'py>,
    absorbed: bool,
) -> PyResult<MlaObjects<'py>> {
    let (py, name) = (x.py(), "mla");
    with_float!(float_kind(name, "x", x)?, S => {
        let x = array::<S>(name, "x", x)?;
        let required = ["w_q", "w_dkv", "w_kr", "w_uk", "w_uv", "w_o"];
        let weights =
            Weights::<S>::extract(name, layer, &required, &["w_dq", "q_norm", "kv_norm"])?;
        let lengths = optional_array::<i64>(name, "kv_lengths", kv_lengths)?;
        let x = wide_view::<S, Ix3>(py, name, "x", &x, "rank 3 (B, T, C)")?;
        let lengths =
            optional_view::<_, Ix1>(py, name, "kv_lengths", lengths.as_ref(), "shape (B,)")?;
        let layer = MultiHeadLatentAttention {
            w_q: weights.matrix(py, "w_q")?,
            w_dkv: weights.matrix(py, "w_dkv")?,
            w_kr: weights.matrix(py, "w_kr")?,
            w_uk: weights.matrix(py, "w_uk")?,
            w_uv: weights.matrix(py, "w_uv")?,
            w_o: weights.matrix(py, "w_o")?,
            num_heads: size(name, "num_heads", &layer.getattr("num_heads")?, 1)?,
            w_dq: weights.optional_matrix(py, "w_dq")?,
            q_norm: weights.optional_vector(py, "q_norm")?,
            kv_norm: weights.optional_vector(py, "kv_norm")?,
            eps: number(name, "eps", &layer.getattr("eps")?)?,
            rope: rope_options(name, &layer.getattr("rope")?)?,
        };
        let options = MlaOptions {
            causal: flag(name, "causal", causal)?,
            kv_lengths: lengths.as_deref(),
            scale: optional_number(name, "scale", scale)?,
        };
        let steps = released(py, || {
            if absorbed { layer.absorbed(&x, &options) } else { layer.steps(&x, &options) }
        })?;
        Ok((
            give_narrow::<S, _>(py, steps.output),
            give_narrow::<S, _>(py, steps.weights),
            give(py, steps.lse),
            give_narrow::<S, _>(py, steps.latent),
            give_narrow::<S, _>(py, steps.rope_key),
        ))
    })
}
