//! Multi-head attention on a layer of the Python package.

use ndarray::{Ix1, Ix2, Ix3};
use pyo3::prelude::*;
use rosetta_attention::{self as core, MhaOptions, MultiHeadAttention, Packing, Rope};

use crate::arguments::{Arguments, Options, number, size};
use crate::arrays::{
    Floating, Object, array, float_kind, give, give_narrow, optional_array, optional_view,
    optional_wide_view, view, wide_view, with_float,
};
use crate::caches::{Cache, write};
use crate::errors::{exception, released};
use crate::positions::{POSITIONS, optional_rope_options};
use crate::weights::{MATRIX, VECTOR, Weights};

/// output, weights, lse, mean_weights
type MhaObjects<'py> = (Object<'py>, Object<'py>, Object<'py>, Object<'py>);

/// (layer, x, context, (mask, bias, scale, softcap, None, dropout), positions, head_mask)
/// -> output, weights, lse, mean_weights
#[pyfunction]
pub fn mha<'py>(
    layer: &Object<'py>,
    x: &Object<'py>,
    context: &Object<'py>,
    options: Options<'py>,
    positions: &Object<'py>,
    head_mask: &Object<'py>,
) -> PyResult<MhaObjects<'py>> {
    let (py, name) = (x.py(), "mha");
    with_float!(float_kind(name, "x", x)?, S => {
        let x = array::<S>(name, "x", x)?;
        let context = optional_array::<S>(name, "context", context)?;
        let layer = Layer::<S>::extract(name, layer)?;
        let options = Arguments::<S>::extract(name, &options)?;
        let positions = optional_array(name, "positions", positions)?;
        let head_mask = optional_array(name, "head_mask", head_mask)?;

        let rank_3 = "rank 3 (B, T, C)";
        let x = wide_view::<S, Ix3>(py, name, "x", &x, rank_3)?;
        let context = optional_wide_view::<S, Ix3>(py, name, "context", context.as_ref(), rank_3)?;
        let layer = layer.view(py)?;
        let positions = optional_view(py, name, "positions", positions.as_ref(), POSITIONS)?;
        let head_mask = optional_view(py, name, "head_mask", head_mask.as_ref(), "shape (Hq,)")?;
        let views = options.views(py)?;
        let options = MhaOptions {
            attention: views.options(),
            positions: positions.as_deref(),
            head_mask: head_mask.as_deref(),
        };
        let steps = released(py, || layer.steps(&x, context.as_deref(), &options))?;
        Ok((
            give_narrow::<S, _>(py, steps.output),
            give_narrow::<S, _>(py, steps.weights),
            give(py, steps.lse),
            give_narrow::<S, _>(py, steps.mean_weights),
        ))
    })
}

/// (layer, x, cache, (mask, bias, scale, softcap, None, None)) -> output
#[pyfunction]
pub fn decode<'py>(
    layer: &Object<'py>,
    x: &Object<'py>,
    cache: &Bound<'py, Cache>,
    options: Options<'py>,
) -> PyResult<Object<'py>> {
    let (py, name) = (x.py(), "decode");
    with_float!(float_kind(name, "x", x)?, S => {
        let x = array::<S>(name, "x", x)?;
        let layer = Layer::<S>::extract(name, layer)?;
        let options = Arguments::<S>::extract(name, &options)?;
        let x = wide_view::<S, Ix3>(py, name, "x", &x, "rank 3 (B, T, C)")?;
        let layer = layer.view(py)?;
        let views = options.views(py)?;
        let lock = cache.get().of::<S>(py, name)?;
        let call = || layer.decode::<S>(&x, &mut **write(lock), &views.options());
        Ok(give_narrow::<S, _>(py, released(py, call)?))
    })
}

/// (packed, is_bias, num_heads, num_kv_heads, packing) -> the rows of q, of k and of v
#[pyfunction]
pub fn unpack<'py>(
    packed: &Object<'py>,
    is_bias: bool,
    num_heads: &Object<'py>,
    num_kv_heads: &Object<'py>,
    packing: &Object<'py>,
) -> PyResult<[Object<'py>; 3]> {
    let (py, name) = (packed.py(), "mha");
    let heads = size(name, "num_heads", num_heads, 1)?;
    let kv_heads = size(name, "num_kv_heads", num_kv_heads, 1)?;
    let packing: core::Result<Packing> = packing.str()?.to_cow()?.parse();
    let packing = packing.map_err(|error| exception(py, &error))?;
    let argument = if is_bias { "b_qkv" } else { "w_qkv" };
    with_float!(float_kind(name, argument, packed)?, S => {
        let packed = array::<S>(name, argument, packed)?;
        if is_bias {
            let rows = view::<S, Ix1>(py, name, argument, &packed, VECTOR)?;
            let parts = released(py, || core::unpack(argument, &rows, heads, kv_heads, packing))?;
            Ok(parts.map(|part| give(py, part)))
        } else {
            let rows = view::<S, Ix2>(py, name, argument, &packed, MATRIX)?;
            let parts = released(py, || core::unpack(argument, &rows, heads, kv_heads, packing))?;
            Ok(parts.map(|part| give(py, part)))
        }
    })
}

/// A `MultiHeadAttention` of the Python package.
pub struct Layer<'py, S: Floating> {
    weights: Weights<'py, S>,
    qk_norm_eps: f64,
    rope: Option<Rope>,
    num_heads: usize,
    num_kv_heads: usize,
}

impl<'py, S: Floating> Layer<'py, S> {
    pub fn extract(function: &'static str, layer: &Object<'py>) -> PyResult<Self> {
        let required = ["w_q", "w_k", "w_v", "w_o"];
        let optional = ["b_q", "b_k", "b_v", "b_o", "q_norm", "k_norm"];
        Ok(Self {
            num_heads: size(function, "num_heads", &layer.getattr("num_heads")?, 1)?,
            num_kv_heads: size(function, "num_kv_heads", &layer.getattr("kv_heads")?, 1)?,
            weights: Weights::extract(function, layer, &required, &optional)?,
            qk_norm_eps: number(function, "qk_norm_eps", &layer.getattr("qk_norm_eps")?)?,
            rope: optional_rope_options(function, &layer.getattr("rope")?)?,
        })
    }

    /// The layer of the core, which refers to the arrays of this one.
    pub fn view(&self, py: Python<'_>) -> PyResult<MultiHeadAttention<'_, S::Compute>> {
        Ok(MultiHeadAttention {
            w_q: self.weights.matrix(py, "w_q")?,
            w_k: self.weights.matrix(py, "w_k")?,
            w_v: self.weights.matrix(py, "w_v")?,
            w_o: self.weights.matrix(py, "w_o")?,
            b_q: self.weights.optional_vector(py, "b_q")?,
            b_k: self.weights.optional_vector(py, "b_k")?,
            b_v: self.weights.optional_vector(py, "b_v")?,
            b_o: self.weights.optional_vector(py, "b_o")?,
            q_norm: self.weights.optional_vector(py, "q_norm")?,
            k_norm: self.weights.optional_vector(py, "k_norm")?,
            qk_norm_eps: self.qk_norm_eps,
            rope: self.rope.clone(),
            num_heads: self.num_heads,
            num_kv_heads: Some(self.num_kv_heads),
        })
    }
}
