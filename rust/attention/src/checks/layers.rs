//! Layers of weights: latent attention, feed-forward layers, blocks and whole transformers.

use ndarray::{ArrayRef1, ArrayRef2};

use super::norms::require_eps;
use super::{
    InvalidConfig, ShapeMismatch, check_lengths, check_options, check_rope, require, require_shape,
};
use crate::block::{Block, BlockOptions, Norm, NormKind};
use crate::errors::Result;
use crate::feed_forward::{Activation, FeedForward};
use crate::float::Float;
use crate::mla::{MlaOptions, MultiHeadLatentAttention};
use crate::transformer::Transformer;

/// x (B, T, C) against the weights of the layer, which are (out, in).
pub(crate) fn check_mla<T: Float>(
    name: &'static str,
    (batch, len, width): (usize, usize, usize),
    layer: &MultiHeadLatentAttention<'_, T>,
    options: &MlaOptions<'_>,
) -> Result<()> {
    let heads = layer.num_heads; // H
    require(heads >= 1, InvalidConfig, name, "num_heads", "an integer >= 1", heads)?;
    let source = match &layer.w_dq {
        Some(w_dq) => {
            require_columns(name, "w_dq", w_dq.ncols(), width)?;
            w_dq.nrows() // Rq
        }
        None => {
            let good = layer.q_norm.is_none();
            require(good, InvalidConfig, name, "q_norm", "None without w_dq", "an array")?;
            width
        }
    };
    let (latent, rotary) = (layer.w_dkv.nrows(), layer.w_kr.nrows()); // R, Dr
    for (argument, w, columns) in [
        ("w_q", &layer.w_q, source),
        ("w_dkv", &layer.w_dkv, width),
        ("w_kr", &layer.w_kr, width),
        ("w_uk", &layer.w_uk, latent),
        ("w_uv", &layer.w_uv, latent),
    ] {
        require_columns(name, argument, w.ncols(), columns)?;
    }
    for (argument, w) in [("w_uk", &layer.w_uk), ("w_uv", &layer.w_uv)] {
        let expected = format_args!("rows in {heads} equal blocks");
        let good = w.nrows().is_multiple_of(heads);
        require(good, ShapeMismatch, name, argument, expected, w.nrows())?;
    }
    let (plain, dv) = (layer.w_uk.nrows() / heads, layer.w_uv.nrows() / heads); // Dn, Dv
    let (rows, expected) = (layer.w_q.nrows(), format_args!("{heads} x ({plain} + {rotary}) rows"));
    require(rows == heads * (plain + rotary), ShapeMismatch, name, "w_q", expected, rows)?;
    require_columns(name, "w_o", layer.w_o.ncols(), heads * dv)?;
    for (argument, norm, size) in
        [("q_norm", &layer.q_norm, source), ("kv_norm", &layer.kv_norm, latent)]
    {
        if let Some(norm) = norm {
            require(size >= 1, ShapeMismatch, name, argument, "at least one channel", size)?;
            require_shape(name, argument, norm.shape(), &[size])?;
        }
    }
    require_eps(name, "eps", layer.eps)?;
    check_rope::<T>(name, (batch, 1, len, rotary), &layer.rope, None, None)?;
    check_options(name, options.scale, None)?;
    let lengths = options.kv_lengths;
    lengths.map_or(Ok(()), |lengths| check_lengths(name, "kv_lengths", lengths, batch, len))
}

/// Inputs of width C against the weights of the layer, which are (out, in).
pub(crate) fn check_feed_forward<T: Float>(
    name: &'static str,
    width: usize,
    layer: &FeedForward<'_, T>,
) -> Result<()> {
    let gated = layer.activation == Activation::Swiglu;
    let expected = if gated { "an array with swiglu" } else { "None without swiglu" };
    let got = if layer.w_3.is_some() { "an array" } else { "None" };
    require(layer.w_3.is_some() == gated, InvalidConfig, name, "w_3", expected, got)?;
    let good = gated || layer.b_3.is_none();
    require(good, InvalidConfig, name, "b_3", "None without swiglu", "an array")?;
    require_columns(name, "w_1", layer.w_1.ncols(), width)?;
    let (hidden, out) = (layer.w_1.nrows(), layer.w_2.nrows()); // F, C
    require_columns(name, "w_2", layer.w_2.ncols(), hidden)?;
    if let Some(w_3) = &layer.w_3 {
        require_shape(name, "w_3", w_3.shape(), &[hidden, width])?;
    }
    for (argument, b, size) in
        [("b_1", &layer.b_1, hidden), ("b_2", &layer.b_2, out), ("b_3", &layer.b_3, hidden)]
    {
        b.as_ref().map_or(Ok(()), |b| require_shape(name, argument, b.shape(), &[size]))?;
    }
    Ok(())
}

/// A norm that takes no mean away has nothing to put back.
pub(crate) fn check_norm_kind<T>(name: &'static str, norm: &Norm<'_, T>) -> Result<()> {
    let good = norm.kind == NormKind::Layer || norm.bias.is_none();
    require(good, InvalidConfig, name, "bias", "None with rms", "an array")
}

/// x (B, T, C), and layers that give back rows as wide as they take; what each takes it checks itself.
pub(crate) fn check_block<T: Float>(
    name: &'static str,
    (_, _, width): (usize, usize, usize),
    with_context: bool,
    block: &Block<'_, T>,
    options: &BlockOptions<'_>,
) -> Result<()> {
    let presence = |there| if there { "one" } else { "None" };
    let crosses = block.cross.is_some();
    for (argument, there) in [("norm_3", block.norm_3.is_some()), ("context", with_context)] {
        let expected = if crosses { "one beside cross" } else { "None without cross" };
        require(there == crosses, InvalidConfig, name, argument, expected, presence(there))?;
    }
    let good = with_context || options.context_lengths.is_none();
    require(good, InvalidConfig, name, "context_lengths", "None without a context", "an array")?;
    let cross = block.cross.as_ref().map(|cross| ("cross.w_o", cross.w_o.nrows()));
    let outs = [
        ("attention.w_o", block.attention.w_o.nrows()),
        ("ff.w_2", block.feed_forward.w_2.nrows()),
    ];
    for (argument, rows) in outs.into_iter().chain(cross) {
        let expected = format_args!("{width} rows, as wide as x");
        require(rows == width, ShapeMismatch, name, argument, expected, rows)?;
    }
    Ok(())
}

/// tokens (B, T), and the tables in which they, their places and their segments are looked up.
pub(crate) fn check_transformer<T: Float>(
    name: &'static str,
    tokens: &ArrayRef2<i64>,
    segments: Option<&ArrayRef2<i64>>,
    kv_lengths: Option<&ArrayRef1<i64>>,
    model: &Transformer<'_, T>,
) -> Result<()> {
    let ((batch, len), (vocabulary, width)) = (tokens.dim(), model.embedding.dim());
    for (argument, table) in [
        ("position_embedding", &model.position_embedding),
        ("segment_embedding", &model.segment_embedding),
        ("unembedding", &model.unembedding),
    ] {
        if let Some(table) = table {
            require_columns(name, argument, table.ncols(), width)?;
        }
    }
    if let Some(table) = &model.unembedding {
        require_shape(name, "unembedding", table.shape(), &[vocabulary, width])?;
    }
    require_indices(name, "tokens", tokens, vocabulary)?;
    if let Some(table) = &model.position_embedding {
        let (most, expected) = (table.nrows(), format_args!("at most {} positions", table.nrows()));
        require(len <= most, InvalidConfig, name, "tokens", expected, len)?;
    }
    let (given, table) = (segments.is_some(), model.segment_embedding.is_some());
    let expected =
        if table { "one beside segment_embedding" } else { "None without segment_embedding" };
    let got = if given { "one" } else { "None" };
    require(given == table, InvalidConfig, name, "segments", expected, got)?;
    if let (Some(segments), Some(table)) = (segments, &model.segment_embedding) {
        require_shape(name, "segments", segments.shape(), &[batch, len])?;
        require_indices(name, "segments", segments, table.nrows())?;
    }
    kv_lengths.map_or(Ok(()), |lengths| check_lengths(name, "kv_lengths", lengths, batch, len))
}

/// Each 0 <= index < rows.
fn require_indices(
    name: &'static str,
    argument: &'static str,
    indices: &ArrayRef2<i64>,
    rows: usize,
) -> Result<()> {
    let wrong = indices.iter().find(|&&index| !(0..rows as i64).contains(&index));
    let expected = format_args!("indices below {rows}");
    wrong.map_or(Ok(()), |index| require(false, InvalidConfig, name, argument, expected, index))
}

/// A weight (out, in) against what it is multiplied with.
fn require_columns(
    name: &'static str,
    argument: &'static str,
    columns: usize,
    expected: usize,
) -> Result<()> {
    let want = format_args!("{expected} columns");
    require(columns == expected, ShapeMismatch, name, argument, want, columns)
}
