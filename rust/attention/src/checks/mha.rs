//! Multi-head attention and its packed weights.

use ndarray::ArrayRef2;

use super::attention::Dim3;
use super::norms::require_eps;
use super::positions::check_rope;
use super::{Dim4, InvalidConfig, ShapeMismatch, require, require_shape};
use crate::cache::{Cache, Sizes};
use crate::cast::Stored;
use crate::errors::Result;
use crate::float::Float;
use crate::mha::{MhaOptions, MultiHeadAttention};
use crate::rope::Rope;

/// A cache that takes the keys and values of a layer, and rotates them as the layer would.
pub(crate) fn check_decode<S: Stored>(
    name: &'static str,
    (k, v): (Dim4, Dim4),
    rope: Option<&Rope>,
    cache: &dyn Cache<S>,
) -> Result<()> {
    let own = Sizes { batch: k.0, num_kv_heads: k.1, head_dim: k.3, value_dim: v.3 };
    let fits = cache.sizes() == own;
    let (expected, got) = (format_args!("{own:?}"), format_args!("{:?}", cache.sizes()));
    require(fits, ShapeMismatch, name, "cache", expected, got)?;
    let expected = "the rope of the layer";
    require(cache.rope() == rope, InvalidConfig, name, "cache", expected, "another")
}

/// x (B, Tq, C), context (B, Tk, Cc) against the weights of the layer, which are (out, in).
pub(crate) fn check_mha<T: Float>(
    name: &'static str,
    x: Dim3,
    context: Option<Dim3>,
    layer: &MultiHeadAttention<'_, T>,
    options: &MhaOptions<'_, T>,
) -> Result<()> {
    let (hq, hkv) = (layer.num_heads, layer.num_kv_heads.unwrap_or(layer.num_heads));
    check_heads(name, hq, hkv)?;
    let source = context.unwrap_or(x);
    let batch = format_args!("batch {} as in x", x.0);
    require(source.0 == x.0, ShapeMismatch, name, "context", batch, source.0)?;

    check_projection(name, "w_q", &layer.w_q, hq, x.2)?;
    check_projection(name, "w_k", &layer.w_k, hkv, source.2)?;
    check_projection(name, "w_v", &layer.w_v, hkv, source.2)?;
    let (d, dv) = (layer.w_q.nrows() / hq, layer.w_v.nrows() / hkv);
    let expected = format_args!("{hkv} x {d} rows as in w_q");
    require(layer.w_k.nrows() == hkv * d, ShapeMismatch, name, "w_k", expected, layer.w_k.nrows())?;
    let expected = format_args!("{hq} x {dv} columns as in w_v");
    require(layer.w_o.ncols() == hq * dv, ShapeMismatch, name, "w_o", expected, layer.w_o.ncols())?;
    for (argument, vector, size) in [
        ("b_q", &layer.b_q, layer.w_q.nrows()),
        ("b_k", &layer.b_k, layer.w_k.nrows()),
        ("b_v", &layer.b_v, layer.w_v.nrows()),
        ("b_o", &layer.b_o, layer.w_o.nrows()),
        ("q_norm", &layer.q_norm, d),
        ("k_norm", &layer.k_norm, d),
    ] {
        if let Some(vector) = vector {
            require_shape(name, argument, vector.shape(), &[size])?;
        }
    }
    require_eps(name, "qk_norm_eps", layer.qk_norm_eps)?;
    if let Some(head_mask) = options.head_mask {
        require_shape(name, "head_mask", head_mask.shape(), &[hq])?;
    }
    match &layer.rope {
        None => {
            let alone = options.positions.is_none();
            require(alone, InvalidConfig, name, "positions", "None without a rope", "positions")
        }
        Some(rope) => {
            let alone = context.is_none();
            require(alone, InvalidConfig, name, "rope", "None beside a context", "a Rope")?;
            check_rope::<T>(name, (x.0, hq, x.1, d), rope, options.positions, None)
        }
    }
}

/// How many heads there are of each kind.
pub(crate) fn check_heads(name: &'static str, hq: usize, hkv: usize) -> Result<()> {
    require(hq >= 1, InvalidConfig, name, "num_heads", "an integer >= 1", hq)?;
    let divides = hkv >= 1 && hq.is_multiple_of(hkv);
    let expected = format_args!("an integer >= 1 that divides num_heads = {hq}");
    require(divides, InvalidConfig, name, "num_kv_heads", expected, hkv)
}

/// Rows that belong to Hq + 2·Hkv heads of one size.
pub(crate) fn check_packed(
    name: &'static str,
    argument: &'static str,
    rows: usize,
    (hq, hkv): (usize, usize),
) -> Result<()> {
    check_heads(name, hq, hkv)?;
    let heads = hq.saturating_add(hkv).saturating_add(hkv);
    let expected = format_args!("rows in {heads} equal blocks");
    require(rows.is_multiple_of(heads), ShapeMismatch, name, argument, expected, rows)
}

/// A weight (heads·n, width).
fn check_projection<T: Float>(
    name: &'static str,
    argument: &'static str,
    w: &ArrayRef2<T>,
    heads: usize,
    width: usize,
) -> Result<()> {
    let expected = format_args!("{width} columns");
    require(w.ncols() == width, ShapeMismatch, name, argument, expected, w.ncols())?;
    let expected = format_args!("rows in {heads} equal blocks");
    require(w.nrows().is_multiple_of(heads), ShapeMismatch, name, argument, expected, w.nrows())
}
