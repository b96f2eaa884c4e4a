//! Everything that has to do with where an element stands.

use ndarray::ArrayRef2;

use super::{Dim4, InvalidConfig, ShapeMismatch, require, require_shape};
use crate::errors::Result;
use crate::relative_bias::RelativeBias;
use crate::rope::{BASE, Rope, RopeTables};
use crate::rope_scaling::RopeScaling;
use crate::sinusoidal::Sinusoidal;

/// x (B, H, T, D) against positions (B, T) and tables (P, R/2).
pub(crate) fn check_rope<T>(
    name: &'static str,
    (batch, _, len, d): Dim4,
    options: &Rope,
    positions: Option<&ArrayRef2<i64>>,
    tables: Option<RopeTables<'_, T>>,
) -> Result<()> {
    check_rotary_dim(name, d, options)?;
    require_positive(name, "base", options.base)?;
    let pairs = options.rotary_dim.unwrap_or(d) / 2; // R/2
    if let Some(scaling) = &options.scaling {
        check_scaling(name, scaling, options.base, pairs)?;
    }
    check_positions(name, positions, (batch, len), options.offset)?;
    let Some(RopeTables { cos, sin }) = tables else {
        return Ok(());
    };
    let own = options.base == BASE;
    require(own, InvalidConfig, name, "base", "no base beside tables", options.base)?;
    let own = options.scaling.is_none();
    require(own, InvalidConfig, name, "scaling", "no scaling beside tables", "one")?;
    let rows = cos.nrows(); // P
    require_shape(name, "cos", cos.shape(), &[rows, pairs])?;
    require_shape(name, "sin", sin.shape(), &[rows, pairs])?;
    let covered = |position: i64| usize::try_from(position).is_ok_and(|p| p < rows);
    let good = match positions {
        Some(positions) => positions.iter().all(|&position| covered(position)),
        None if batch == 0 || len == 0 => true,
        None => covered(options.offset) && covered(options.offset.saturating_add(len as i64 - 1)),
    };
    let expected = format_args!("positions within the {rows} rows of cos and sin");
    require(good, InvalidConfig, name, "positions", expected, "others")
}

fn check_rotary_dim(name: &'static str, d: usize, options: &Rope) -> Result<()> {
    let Some(rotary_dim) = options.rotary_dim else {
        let good = d >= 2 && d.is_multiple_of(2);
        return require(good, ShapeMismatch, name, "x", "an even head size of at least 2", d);
    };
    let good = rotary_dim >= 2 && rotary_dim.is_multiple_of(2) && rotary_dim <= d;
    let expected = format_args!("an even integer from 2 to the head size {d}");
    require(good, InvalidConfig, name, "rotary_dim", expected, rotary_dim)
}

/// Positions (B, T), which leave no room for an offset.
pub(crate) fn check_positions(
    name: &'static str,
    positions: Option<&ArrayRef2<i64>>,
    (batch, len): (usize, usize),
    offset: i64,
) -> Result<()> {
    let Some(positions) = positions else {
        return Ok(());
    };
    require_shape(name, "positions", positions.shape(), &[batch, len])?;
    require(offset == 0, InvalidConfig, name, "offset", "no offset beside positions", offset)
}

/// Every number of a scaling, and what makes two of them fit together.
fn check_scaling(name: &'static str, scaling: &RopeScaling, base: f64, pairs: usize) -> Result<()> {
    let positive = |argument, number: f64| require_positive(name, argument, number);
    let optional = |argument, number: Option<f64>| number.map_or(Ok(()), |x| positive(argument, x));
    let length =
        |argument, n: usize| require(n >= 1, InvalidConfig, name, argument, "an integer >= 1", n);
    match scaling {
        &RopeScaling::Linear { factor } => positive("factor", factor),
        &RopeScaling::Dynamic { factor, original_length, length: own } => {
            positive("factor", factor)?;
            length("original_length", original_length)?;
            own.map_or(Ok(()), |own| length("length", own))
        }
        &RopeScaling::Yarn {
            factor,
            original_length,
            beta_fast,
            beta_slow,
            attention_factor,
            ..
        } => {
            positive("factor", factor)?;
            length("original_length", original_length)?;
            positive("beta_fast", beta_fast)?;
            positive("beta_slow", beta_slow)?;
            optional("attention_factor", attention_factor)?;
            require(base != 1.0, InvalidConfig, name, "base", "another one than 1 with yarn", base)
        }
        &RopeScaling::Llama3 { factor, original_length, low_freq_factor, high_freq_factor } => {
            positive("factor", factor)?;
            length("original_length", original_length)?;
            positive("low_freq_factor", low_freq_factor)?;
            positive("high_freq_factor", high_freq_factor)?;
            let (good, argument) = (low_freq_factor < high_freq_factor, "high_freq_factor");
            let expected = format_args!("more than low_freq_factor = {low_freq_factor}");
            require(good, InvalidConfig, name, argument, expected, high_freq_factor)
        }
        RopeScaling::LongRope {
            short_factor,
            long_factor,
            original_length,
            factor,
            attention_factor,
            length: own,
        } => {
            for (argument, factors) in
                [("short_factor", short_factor), ("long_factor", long_factor)]
            {
                let expected = format_args!("{pairs} numbers, one a pair");
                let good = factors.len() == pairs;
                require(good, InvalidConfig, name, argument, expected, factors.len())?;
                factors.iter().try_for_each(|&n| positive(argument, n))?;
            }
            length("original_length", *original_length)?;
            optional("factor", *factor)?;
            optional("attention_factor", *attention_factor)?;
            own.map_or(Ok(()), |own| length("length", own))?;
            let by_logarithm = attention_factor.is_none() && factor.is_some_and(|s| s > 1.0);
            let good = !by_logarithm || *original_length >= 2;
            let expected = "an integer >= 2 beside a factor > 1";
            require(good, InvalidConfig, name, "original_length", expected, original_length)
        }
    }
}

/// A finite number > 0.
fn require_positive(name: &'static str, argument: &'static str, number: f64) -> Result<()> {
    let good = number.is_finite() && number > 0.0;
    require(good, InvalidConfig, name, argument, "a finite number > 0", number)
}

/// x (B, T, C) with pairs of channels.
pub(crate) fn check_sinusoidal(
    name: &'static str,
    (batch, len, width): (usize, usize, usize),
    options: &Sinusoidal<'_>,
) -> Result<()> {
    require(width.is_multiple_of(2), ShapeMismatch, name, "x", "an even width", width)?;
    require_positive(name, "base", options.base)?;
    check_positions(name, options.positions, (batch, len), options.offset)
}

/// scores (B, H, Tq, Tk) against a table (buckets, H) with at least 2 buckets for each direction.
pub(crate) fn check_relative_bias(
    name: &'static str,
    (_, heads, _, _): Dim4,
    (rows, columns): (usize, usize),
    options: &RelativeBias,
) -> Result<()> {
    let expected = format_args!("{heads} columns as heads in scores");
    require(columns == heads, ShapeMismatch, name, "table", expected, columns)?;
    let (expected, buckets, good) = if options.bidirectional {
        ("an even number of rows, at least 4", rows / 2, rows >= 4 && rows.is_multiple_of(2))
    } else {
        ("at least 2 rows", rows, rows >= 2)
    };
    require(good, ShapeMismatch, name, "table", expected, rows)?;
    let exact = buckets / 2;
    let good = options.max_distance > exact as i64;
    let expected = format_args!("more than {exact}");
    require(good, InvalidConfig, name, "max_distance", expected, options.max_distance)
}
