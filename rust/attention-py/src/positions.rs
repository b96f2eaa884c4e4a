//! Everything that has to do with where an element stands.

use ndarray::{Ix2, Ix3};
use pyo3::prelude::*;
use rosetta_attention::AttentionError::InvalidConfig;
use rosetta_attention::{self as core, RelativeBias, Rope, RopeScaling, RopeTables, Sinusoidal};

use crate::arguments::{flag, number, optional_number, optional_size, size, whole};
use crate::arrays::{
    Object, array, float_kind, give, give_narrow, optional_array, optional_view,
    optional_wide_view, wide_4, wide_view, with_float,
};
use crate::errors::{refuse, released};

/// What is expected of positions.
pub const POSITIONS: &str = "shape (B, T)";

/// (x, positions, offset, base, halves) -> output, table
#[pyfunction]
pub fn sinusoidal<'py>(
    x: &Object<'py>,
    positions: &Object<'py>,
    offset: &Object<'py>,
    base: &Object<'py>,
    halves: &Object<'py>,
) -> PyResult<(Object<'py>, Object<'py>)> {
    let (py, name) = (x.py(), "sinusoidal");
    with_float!(float_kind(name, "x", x)?, S => {
        let x = array::<S>(name, "x", x)?;
        let positions = optional_array(name, "positions", positions)?;
        let x = wide_view::<S, Ix3>(py, name, "x", &x, "rank 3 (B, T, C)")?;
        let positions = optional_view(py, name, "positions", positions.as_ref(), POSITIONS)?;
        let options = Sinusoidal {
            positions: positions.as_deref(),
            offset: whole(name, "offset", offset)?,
            base: number(name, "base", base)?,
            halves: flag(name, "halves", halves)?,
        };
        let steps = released(py, || core::sinusoidal_steps(&x, &options))?;
        Ok((give_narrow::<S, _>(py, steps.output), give_narrow::<S, _>(py, steps.table)))
    })
}

/// (x, rope, positions, cos, sin) -> output, cos, sin
#[pyfunction]
pub fn rope<'py>(
    x: &Object<'py>,
    options: &Object<'py>,
    positions: &Object<'py>,
    cos: &Object<'py>,
    sin: &Object<'py>,
) -> PyResult<(Object<'py>, Object<'py>, Object<'py>)> {
    let (py, name) = (x.py(), "rope");
    with_float!(float_kind(name, "x", x)?, S => {
        let x = array::<S>(name, "x", x)?;
        let positions = optional_array(name, "positions", positions)?;
        if cos.is_none() != sin.is_none() {
            return Err(refuse(py, InvalidConfig, name, "cos", "both of cos and sin", "one"));
        }
        let (cos, sin) =
            (optional_array::<S>(name, "cos", cos)?, optional_array::<S>(name, "sin", sin)?);
        let options = rope_options(name, options)?;

        let x = wide_4(py, name, "x", &x)?;
        let positions = optional_view(py, name, "positions", positions.as_ref(), POSITIONS)?;
        let table = "rank 2 (P, R/2)";
        let cos = optional_wide_view::<S, Ix2>(py, name, "cos", cos.as_ref(), table)?;
        let sin = optional_wide_view::<S, Ix2>(py, name, "sin", sin.as_ref(), table)?;
        let tables = cos.as_deref().zip(sin.as_deref()).map(|(cos, sin)| RopeTables { cos, sin });
        let steps =
            released(py, || core::rope_steps(&x, &options, positions.as_deref(), tables))?;
        Ok((
            give_narrow::<S, _>(py, steps.output),
            give_narrow::<S, _>(py, steps.cos),
            give_narrow::<S, _>(py, steps.sin),
        ))
    })
}

/// A `Rope` of the Python package.
pub fn rope_options(function: &'static str, x: &Object<'_>) -> PyResult<Rope> {
    if !x.hasattr("rotary_dim")? {
        return Err(refuse(x.py(), InvalidConfig, function, "rope", "a Rope", x));
    }
    let scaling = x.getattr("scaling")?;
    Ok(Rope {
        base: number(function, "base", &x.getattr("base")?)?,
        interleaved: flag(function, "interleaved", &x.getattr("interleaved")?)?,
        rotary_dim: optional_size(function, "rotary_dim", &x.getattr("rotary_dim")?)?,
        offset: whole(function, "offset", &x.getattr("offset")?)?,
        scaling: if scaling.is_none() { None } else { Some(rope_scaling(function, &scaling)?) },
    })
}

/// `rope_options`, or `None`.
pub fn optional_rope_options(function: &'static str, x: &Object<'_>) -> PyResult<Option<Rope>> {
    if x.is_none() { Ok(None) } else { rope_options(function, x).map(Some) }
}

/// One of the scalings of the Python package, by the name of its class.
fn rope_scaling(function: &'static str, x: &Object<'_>) -> PyResult<RopeScaling> {
    let real = |field| number(function, field, &x.getattr(field)?);
    let maybe = |field| optional_number(function, field, &x.getattr(field)?);
    let factors = |field| -> PyResult<Vec<f64>> {
        let bad = |got: &Object<'_>| {
            refuse(x.py(), InvalidConfig, function, field, "finite numbers > 0", got)
        };
        let list = x.getattr(field)?;
        let items = list.try_iter().map_err(|_| bad(&list))?;
        items.map(|item| number(function, field, &item?)).collect()
    };
    let original_length = || size(function, "original_length", &x.getattr("original_length")?, 1);
    let length = || optional_size(function, "length", &x.getattr("length")?);
    match x.get_type().name()?.to_str()? {
        "LinearScaling" => Ok(RopeScaling::Linear { factor: real("factor")? }),
        "DynamicScaling" => Ok(RopeScaling::Dynamic {
            factor: real("factor")?,
            original_length: original_length()?,
            length: length()?,
        }),
        "YarnScaling" => Ok(RopeScaling::Yarn {
            factor: real("factor")?,
            original_length: original_length()?,
            beta_fast: real("beta_fast")?,
            beta_slow: real("beta_slow")?,
            attention_factor: maybe("attention_factor")?,
            truncate: flag(function, "truncate", &x.getattr("truncate")?)?,
        }),
        "Llama3Scaling" => Ok(RopeScaling::Llama3 {
            factor: real("factor")?,
            original_length: original_length()?,
            low_freq_factor: real("low_freq_factor")?,
            high_freq_factor: real("high_freq_factor")?,
        }),
        "LongRopeScaling" => Ok(RopeScaling::LongRope {
            short_factor: factors("short_factor")?,
            long_factor: factors("long_factor")?,
            original_length: original_length()?,
            factor: maybe("factor")?,
            attention_factor: maybe("attention_factor")?,
            length: length()?,
        }),
        _ => Err(refuse(x.py(), InvalidConfig, function, "scaling", "one of the scalings", x)),
    }
}

/// (scores, q_offset) -> output, slopes, bias
#[pyfunction]
pub fn alibi<'py>(
    scores: &Object<'py>,
    q_offset: &Object<'py>,
) -> PyResult<(Object<'py>, Object<'py>, Object<'py>)> {
    let (py, name) = (scores.py(), "alibi");
    with_float!(float_kind(name, "scores", scores)?, S => {
        let scores = array::<S>(name, "scores", scores)?;
        let scores = wide_view(py, name, "scores", &scores, "rank 4 (B, H, Tq, Tk)")?;
        let q_offset = whole(name, "q_offset", q_offset)?;
        let steps = released(py, || core::alibi_steps(&scores, q_offset))?;
        Ok((
            give_narrow::<S, _>(py, steps.output),
            give_narrow::<S, _>(py, steps.slopes),
            give_narrow::<S, _>(py, steps.bias),
        ))
    })
}

/// num_heads -> slopes, in float64
#[pyfunction]
pub fn alibi_slopes<'py>(num_heads: &Object<'py>) -> PyResult<Object<'py>> {
    let (py, heads) = (num_heads.py(), size("alibi_slopes", "num_heads", num_heads, 0)?);
    Ok(give(py, released(py, || core::alibi_slopes(heads))?))
}

/// (scores, table, q_offset, bidirectional, max_distance) -> output, buckets
#[pyfunction]
pub fn relative_bias<'py>(
    scores: &Object<'py>,
    table: &Object<'py>,
    q_offset: &Object<'py>,
    bidirectional: &Object<'py>,
    max_distance: &Object<'py>,
) -> PyResult<(Object<'py>, Object<'py>)> {
    let (py, name) = (scores.py(), "relative_bias");
    with_float!(float_kind(name, "scores", scores)?, S => {
        let scores = array::<S>(name, "scores", scores)?;
        let table = array::<S>(name, "table", table)?;
        let scores = wide_view(py, name, "scores", &scores, "rank 4 (B, H, Tq, Tk)")?;
        let table = wide_view::<S, Ix2>(py, name, "table", &table, "rank 2 (buckets, H)")?;
        let options = RelativeBias {
            q_offset: whole(name, "q_offset", q_offset)?,
            bidirectional: flag(name, "bidirectional", bidirectional)?,
            max_distance: whole(name, "max_distance", max_distance)?,
        };
        let steps = released(py, || core::relative_bias_steps(&scores, &table, &options))?;
        Ok((give_narrow::<S, _>(py, steps.output), give(py, steps.buckets)))
    })
}
