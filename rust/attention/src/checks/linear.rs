//! The linear and the gated kinds of attention.

use super::{Dim4, InvalidConfig, ShapeMismatch, check_options, check_qkv, require, require_shape};
use crate::errors::Result;
use crate::gated_linear::GatedLinear;
use crate::linear_attention::LinearState;

/// Queries, keys and values as for sdpa, and a memory of (B, Hkv, D, Dv) and (B, Hkv, D).
pub(crate) fn check_linear_attention<T>(
    name: &'static str,
    q: Dim4,
    k: Dim4,
    v: Dim4,
    causal: bool,
    state: Option<&LinearState<T>>,
) -> Result<()> {
    check_qkv(name, q, k, v)?;
    let expected = format_args!("length {} as in q, when causal", q.2);
    require(!causal || k.2 == q.2, ShapeMismatch, name, "k", expected, k.2)?;
    if let Some(memory) = state {
        require_shape(name, "state", memory.state.shape(), &[k.0, k.1, k.3, v.3])?;
        require_shape(name, "norm", memory.norm.shape(), &[k.0, k.1, k.3])?;
    }
    Ok(())
}

pub(crate) fn check_chunk(name: &'static str, chunk: usize) -> Result<()> {
    require(chunk >= 1, InvalidConfig, name, "chunk", "an integer >= 1", chunk)
}

/// One length for queries, keys and values; decay and beta exactly where the rule takes them.
pub(crate) fn check_gated_linear<T>(
    name: &'static str,
    q: Dim4,
    k: Dim4,
    v: Dim4,
    options: &GatedLinear<'_, T>,
) -> Result<()> {
    check_qkv(name, q, k, v)?;
    require(k.2 == q.2, ShapeMismatch, name, "k", format_args!("length {} as in q", q.2), k.2)?;
    check_options(name, options.scale, None)?;
    let rule = options.rule;
    for (argument, given, due) in [
        ("decay", options.decay.is_some(), rule.is_gated()),
        ("beta", options.beta.is_some(), rule.is_delta()),
    ] {
        let expected = if due { "an array" } else { "None" };
        let got = if given { "an array" } else { "None" };
        let expected = format_args!("{expected} with the rule {rule:?}");
        require(given == due, InvalidConfig, name, argument, expected, got)?;
    }

    let (batch, heads, len, d) = k;
    if let Some(state) = options.state {
        require_shape(name, "state", state.shape(), &[batch, heads, d, v.3])?;
    }
    let either = |argument, shape: &[usize], one: [usize; 4], other: [usize; 4]| {
        let expected = format_args!("shape {one:?} or {other:?}");
        let good = shape == one || shape == other;
        require(good, ShapeMismatch, name, argument, expected, format_args!("{shape:?}"))
    };
    if let Some(decay) = options.decay {
        either("decay", decay.shape(), [batch, heads, len, d], [batch, heads, len, 1])?;
    }
    if let Some(beta) = options.beta {
        either("beta", beta.shape(), [batch, heads, len, 1], [batch, 1, len, 1])?;
    }
    Ok(())
}
