//! Sparse attention on the patterns of the Python package, structured attention, and random words.

use ndarray::{Array1, Array2, Ix1, Ix2, Ix3};
use pyo3::prelude::*;
use rosetta_attention::AttentionError::InvalidConfig;
use rosetta_attention::{self as core, Pattern};

use crate::arguments::{flag, optional_number, size};
use crate::arrays::{
    Object, array, float_kind, give, give_narrow, optional_array, optional_view, view, wide_4,
    wide_view, with_float,
};
use crate::errors::{refuse, released};

/// A pattern of the Python package.
enum PatternArgument {
    OfSizes(Pattern<'static>),
    OfTable { block: usize, mask: Array2<bool> },
}

impl PatternArgument {
    fn extract(name: &'static str, x: &Object<'_>) -> PyResult<Self> {
        let at_least = |argument, least| size(name, argument, &x.getattr(argument)?, least);
        Ok(Self::OfSizes(match x.get_type().name()?.to_cow()?.as_ref() {
            "Window" => {
                Pattern::Window { left: at_least("left", 0)?, right: at_least("right", 0)? }
            }
            "Dilated" => Pattern::Dilated {
                left: at_least("left", 0)?,
                right: at_least("right", 0)?,
                dilation: at_least("dilation", 1)?,
            },
            "Strided" => Pattern::Strided { stride: at_least("stride", 1)? },
            "Fixed" => {
                Pattern::Fixed { stride: at_least("stride", 1)?, summary: at_least("summary", 0)? }
            }
            "Global" => Pattern::Global {
                left: at_least("left", 0)?,
                right: at_least("right", 0)?,
                tokens: tokens(name, &x.getattr("tokens")?)?,
            },
            "BigBird" => Pattern::BigBird {
                block: at_least("block", 1)?,
                window: at_least("window", 0)?,
                global_blocks: at_least("global_blocks", 0)?,
                random: at_least("random", 0)?,
                seed: at_least("seed", 0)? as u64,
            },
            "Blocks" => {
                let mask = array(name, "block_mask", &x.getattr("mask")?)?;
                let mask = view(x.py(), name, "block_mask", &mask, "rank 2")?.into_owned();
                return Ok(Self::OfTable { block: at_least("block", 1)?, mask });
            }
            _ => {
                let expected = "Window, Dilated, Strided, Fixed, Global, BigBird or Blocks";
                return Err(refuse(x.py(), InvalidConfig, name, "pattern", expected, x));
            }
        }))
    }

    fn pattern(&self) -> Pattern<'_> {
        match self {
            Self::OfSizes(pattern) => pattern.clone(),
            Self::OfTable { block, mask } => Pattern::Blocks { block: *block, mask },
        }
    }
}

/// Positions, in any order.
fn tokens(name: &'static str, x: &Object<'_>) -> PyResult<Vec<usize>> {
    let expected = "a list of integers >= 0";
    let items: Vec<Object<'_>> =
        x.extract().map_err(|_| refuse(x.py(), InvalidConfig, name, "tokens", expected, x))?;
    items.iter().map(|token| size(name, "tokens", token, 0)).collect()
}

/// (pattern, Tq, Tk, causal) -> table
#[pyfunction]
pub fn sparse_mask<'py>(
    pattern: &Object<'py>,
    q_len: &Object<'py>,
    kv_len: &Object<'py>,
    causal: &Object<'py>,
) -> PyResult<Object<'py>> {
    let (py, name) = (pattern.py(), "sparse_mask");
    let pattern = PatternArgument::extract(name, pattern)?;
    let (q_len, kv_len) = (size(name, "q_len", q_len, 0)?, size(name, "kv_len", kv_len, 0)?);
    let causal = flag(name, "causal", causal)?;
    let table = released(py, || core::sparse_mask(&pattern.pattern(), q_len, kv_len, causal))?;
    Ok(give(py, table))
}

/// (pattern, i, Tq, Tk) -> keys of query i
#[pyfunction]
pub fn pattern_keys<'py>(
    pattern: &Object<'py>,
    i: &Object<'py>,
    q_len: &Object<'py>,
    kv_len: &Object<'py>,
) -> PyResult<Object<'py>> {
    let (py, name) = (pattern.py(), "keys");
    let pattern = PatternArgument::extract(name, pattern)?;
    let (i, q_len) = (size(name, "i", i, 0)?, size(name, "q_len", q_len, 0)?);
    let kv_len = size(name, "kv_len", kv_len, 0)?;
    let keys = released(py, || pattern.pattern().keys(i, q_len, kv_len))?;
    Ok(give(py, keys.into_iter().map(|j| j as i64).collect::<Array1<_>>()))
}

/// (q, k, v, pattern, scale, causal) -> output, lse, visited
#[pyfunction]
pub fn sparse<'py>(
    q: &Object<'py>,
    k: &Object<'py>,
    v: &Object<'py>,
    pattern: &Object<'py>,
    scale: &Object<'py>,
    causal: &Object<'py>,
) -> PyResult<(Object<'py>, Object<'py>, Object<'py>)> {
    let (py, name) = (q.py(), "sparse");
    with_float!(float_kind(name, "q", q)?, S => {
        let (q, k, v) =
            (array::<S>(name, "q", q)?, array::<S>(name, "k", k)?, array::<S>(name, "v", v)?);
        let pattern = PatternArgument::extract(name, pattern)?;
        let scale = optional_number(name, "scale", scale)?;
        let causal = flag(name, "causal", causal)?;
        let (q, k, v) =
            (wide_4(py, name, "q", &q)?, wide_4(py, name, "k", &k)?, wide_4(py, name, "v", &v)?);
                let steps = released(py, || core::sparse_steps(&q, &k, &v, &pattern.pattern(), scale, causal))?;
        Ok((give_narrow::<S, _>(py, steps.output), give(py, steps.lse), give(py, steps.visited)))
    })
}

/// (h, w_1, w_2, kv_lengths) -> output, weights, penalty
#[pyfunction]
pub fn structured<'py>(
    h: &Object<'py>,
    w_1: &Object<'py>,
    w_2: &Object<'py>,
    kv_lengths: &Object<'py>,
) -> PyResult<(Object<'py>, Object<'py>, Object<'py>)> {
    let (py, name) = (h.py(), "structured");
    with_float!(float_kind(name, "h", h)?, S => {
        let (h, w_1, w_2) =
            (array::<S>(name, "h", h)?, array::<S>(name, "w_1", w_1)?, array::<S>(name, "w_2", w_2)?);
        let lengths = optional_array::<i64>(name, "kv_lengths", kv_lengths)?;
        let h = wide_view::<S, Ix3>(py, name, "h", &h, "rank 3 (B, T, C)")?;
        let w_1 = wide_view::<S, Ix2>(py, name, "w_1", &w_1, "rank 2 (A, C)")?;
        let w_2 = wide_view::<S, Ix2>(py, name, "w_2", &w_2, "rank 2 (R, A)")?;
        let lengths =
            optional_view::<_, Ix1>(py, name, "kv_lengths", lengths.as_ref(), "shape (B,)")?;
        let steps =
            released(py, || core::structured_steps(&h, &w_1, &w_2, lengths.as_deref()))?;
        Ok((
            give_narrow::<S, _>(py, steps.output),
            give_narrow::<S, _>(py, steps.weights),
            give_narrow::<S, _>(py, steps.penalty),
        ))
    })
}

/// (seed, first, count) -> uint32 words
#[pyfunction]
pub fn philox_words<'py>(
    seed: &Object<'py>,
    first: &Object<'py>,
    count: &Object<'py>,
) -> PyResult<Object<'py>> {
    let (py, name) = (seed.py(), "philox_words");
    let seed = size(name, "seed", seed, 0)? as u64;
    let (first, count) = (size(name, "first", first, 0)? as u64, size(name, "count", count, 0)?);
    let words = released(py, || core::philox_words(seed, first, count))?;
    Ok(give(py, words))
}
