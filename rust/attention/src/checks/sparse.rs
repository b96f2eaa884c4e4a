//! The patterns of sparse attention, and structured attention.

use ndarray::ArrayRef1;

use super::{
    Dim4, InvalidConfig, check_lengths, check_options, check_qkv, check_seed, require,
    require_shape,
};
use crate::errors::Result;
use crate::sparse_patterns::Pattern;

/// Queries, keys and values as for sdpa, and a pattern over their lengths.
pub(crate) fn check_sparse(
    name: &'static str,
    q: Dim4,
    k: Dim4,
    v: Dim4,
    pattern: &Pattern<'_>,
    scale: Option<f64>,
) -> Result<()> {
    check_qkv(name, q, k, v)?;
    check_options(name, scale, None)?;
    check_pattern(name, pattern, q.2, k.2)
}

pub(crate) fn check_pattern(
    name: &'static str,
    pattern: &Pattern<'_>,
    q_len: usize,
    kv_len: usize,
) -> Result<()> {
    let positive =
        |argument, size| require(size >= 1, InvalidConfig, name, argument, "an integer >= 1", size);
    match pattern {
        Pattern::Window { .. } | Pattern::Global { .. } => Ok(()),
        &Pattern::Dilated { dilation, .. } => positive("dilation", dilation),
        &Pattern::Strided { stride } => positive("stride", stride),
        &Pattern::Fixed { stride, summary } => {
            positive("stride", stride)?;
            let expected = format_args!("an integer from 0 to the stride {stride}");
            require(summary <= stride, InvalidConfig, name, "summary", expected, summary)
        }
        &Pattern::BigBird { block, seed, .. } => {
            positive("block", block)?;
            check_seed(name, seed)
        }
        Pattern::Blocks { block, mask } => {
            positive("block", *block)?;
            let blocks = [q_len.div_ceil(*block), kv_len.div_ceil(*block)];
            require_shape(name, "block_mask", mask.shape(), &blocks)
        }
    }
}

/// A pattern, and a query that there is.
pub(crate) fn check_keys(
    name: &'static str,
    pattern: &Pattern<'_>,
    i: usize,
    q_len: usize,
    kv_len: usize,
) -> Result<()> {
    check_pattern(name, pattern, q_len, kv_len)?;
    require(i < q_len, InvalidConfig, name, "i", format_args!("an integer below {q_len}"), i)
}

/// h (B, T, C), w_1 (A, C), w_2 (R, A).
pub(crate) fn check_structured(
    name: &'static str,
    (batch, len, width): (usize, usize, usize),
    w_1: (usize, usize),
    w_2: (usize, usize),
    lengths: Option<&ArrayRef1<i64>>,
) -> Result<()> {
    require_shape(name, "w_1", &[w_1.0, w_1.1], &[w_1.0, width])?;
    require_shape(name, "w_2", &[w_2.0, w_2.1], &[w_2.0, w_1.0])?;
    lengths.map_or(Ok(()), |lengths| check_lengths(name, "kv_lengths", lengths, batch, len))
}
