//! Rotary position embedding (RoPE): pairs of channels turned by an angle that grows with the position.
//!
//! ```text
//! (a, b) -> (a cos - b sin, a sin + b cos),   angle = position · base^(-2i/R) for pair i of R/2
//! ```
//!
//! The dot product of a turned query and a turned key depends on the distance of the two only.
//! Pair i is the channels (i, i + R/2), or (2i, 2i + 1) when interleaved; channels from R on pass through.
//! Angles are in f64 whatever the type.
//!
//! Letters: B batch, H heads, T positions, D head size, R rotary size, P rows of a table.
//!
//! Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, section 3.2;
//! for the scaling of frequencies see [`rope_scaling`](crate::rope_scaling).

use ndarray::{Array2, Array3, Array4, ArrayRef2, ArrayRef3, ArrayRef4, s};

use crate::checks::check_rope;
use crate::errors::Result;
use crate::float::Float;
use crate::rope_scaling::{RopeScaling, frequencies};

/// How positions become angles, and which channels are a pair.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Frequencies fall from 1 to almost 1/base.
    pub base: f64,
    /// Whether a pair is two neighbours, instead of one channel of each half.
    pub interleaved: bool,
    /// R; `None` = D.
    pub rotary_dim: Option<usize>,
    /// Position of the first element, where no positions are given.
    pub offset: i64,
    /// How frequencies are changed for long texts.
    pub scaling: Option<RopeScaling>,
}

impl Default for Rope {
    fn default() -> Self {
        Self { base: BASE, interleaved: false, rotary_dim: None, offset: 0, scaling: None }
    }
}

/// The base of the paper.
pub(crate) const BASE: f64 = 10000.0;

/// Cosines and sines made beforehand, in place of base and scaling: row p belongs to position p.
#[derive(Debug, Clone, Copy)]
pub struct RopeTables<'a, T> {
    /// (P, R/2)
    pub cos: &'a ArrayRef2<T>,
    /// (P, R/2)
    pub sin: &'a ArrayRef2<T>,
}

/// The output of one call with the cosines and sines that it used.
#[derive(Debug, Clone)]
pub struct RopeSteps<T> {
    /// (B, H, T, D)
    pub output: Array4<T>,
    /// (B, T, R/2)
    pub cos: Array3<T>,
    /// (B, T, R/2)
    pub sin: Array3<T>,
}

/// `x` (B, H, T, D) turned by its positions; same shape.
///
/// `positions`: (B, T), `None` = offset, offset + 1, …
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
///
/// ```
/// use ndarray::{Array4, array};
/// use rosetta_attention::{Rope, rope};
/// // Position 0 stays; at position 1 the first pair turns by 1 radian.
/// let x = array![[[[1.0, 0.0], [1.0, 0.0]]]];
/// let output = rope(&x, &Rope::default(), None, None)?;
/// assert_eq!(output, array![[[[1.0, 0.0], [1.0_f64.cos(), 1.0_f64.sin()]]]]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn rope<T: Float>(
    x: &ArrayRef4<T>,
    options: &Rope,
    positions: Option<&ArrayRef2<i64>>,
    tables: Option<RopeTables<'_, T>>,
) -> Result<Array4<T>> {
    Ok(rope_steps(x, options, positions, tables)?.output)
}

/// [`rope`](fn@rope) with the cosines and sines; same arguments and errors.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
pub fn rope_steps<T: Float>(
    x: &ArrayRef4<T>,
    options: &Rope,
    positions: Option<&ArrayRef2<i64>>,
    tables: Option<RopeTables<'_, T>>,
) -> Result<RopeSteps<T>> {
    check_rope("rope", x.dim(), options, positions, tables)?;
    let (batch, _, len, d) = x.dim();
    let positions = placed(batch, len, options.offset, positions); // (B, T)
    let (cos, sin) = match tables {
        Some(RopeTables { cos, sin }) => (rows_at(cos, &positions), rows_at(sin, &positions)),
        None => turns(options, d, &positions),
    }; // (B, T, R/2) each
    let output = rotate(x, &cos, &sin, options.interleaved); // (B, H, T, D)
    Ok(RopeSteps { output, cos, sin })
}

/// The position of every element: (B, T).
pub(crate) fn placed(
    batch: usize,
    len: usize,
    offset: i64,
    positions: Option<&ArrayRef2<i64>>,
) -> Array2<i64> {
    let counted = || Array2::from_shape_fn((batch, len), |(_, t)| offset.saturating_add(t as i64));
    positions.map_or_else(counted, ArrayRef2::to_owned)
}

/// The row of a table (P, n) that each position names: (B, T, n).
fn rows_at<T: Float>(table: &ArrayRef2<T>, positions: &ArrayRef2<i64>) -> Array3<T> {
    let (batch, len) = positions.dim();
    Array3::from_shape_fn((batch, len, table.ncols()), |(b, t, i)| {
        table[[positions[[b, t]] as usize, i]]
    })
}

/// Cosines and sines (B, T, R/2) of the angles at `positions` (B, T), for a head size of `d`.
pub(crate) fn turns<T: Float>(
    options: &Rope,
    d: usize,
    positions: &ArrayRef2<i64>,
) -> (Array3<T>, Array3<T>) {
    tables(options, d, positions, true)
}

/// `turns` for what was turned before: it has the attention factor already.
pub(crate) fn further_turns<T: Float>(
    options: &Rope,
    d: usize,
    positions: &ArrayRef2<i64>,
) -> (Array3<T>, Array3<T>) {
    tables(options, d, positions, false)
}

fn tables<T: Float>(
    options: &Rope,
    d: usize,
    positions: &ArrayRef2<i64>,
    with_factor: bool,
) -> (Array3<T>, Array3<T>) {
    let (batch, len) = positions.dim();
    let pairs = options.rotary_dim.unwrap_or(d) / 2; // R/2
    let mut cos = Array3::zeros((batch, len, pairs)); // (B, T, R/2)
    let mut sin = Array3::zeros((batch, len, pairs)); // (B, T, R/2)
    for (b, row) in positions.outer_iter().enumerate() {
        // 1. frequencies: a geometric sequence, the first pair turns by 1 a position
        let plain = frequencies(options.base, pairs); // (R/2)

        // 2. scaling: of this row, whose length is its largest position plus 1
        let seen = row.iter().max().map_or(0.0, |&last| last as f64 + 1.0);
        let (scaled, factor) = match &options.scaling {
            None => (plain, 1.0),
            Some(scaling) => scaling.apply(options.base, &plain, seen),
        }; // (R/2)
        let factor = if with_factor { factor } else { 1.0 };

        // 3. angles: in f64, since at large positions an f32 is a part of a turn off
        for (t, &position) in row.iter().enumerate() {
            for (i, &frequency) in scaled.iter().enumerate() {
                let angle = position as f64 * frequency;
                cos[[b, t, i]] = T::from_f64(angle.cos() * factor);
                sin[[b, t, i]] = T::from_f64(angle.sin() * factor);
            }
        }
    }
    (cos, sin)
}

/// The pairs of `x` (B, H, T, D) turned by the angles of `cos` and `sin` (B, T, R/2); same shape.
pub(crate) fn rotate<T: Float>(
    x: &ArrayRef4<T>,
    cos: &ArrayRef3<T>,
    sin: &ArrayRef3<T>,
    interleaved: bool,
) -> Array4<T> {
    // 4. rotate: each pair in its plane; what is in no pair passes through
    let mut output = x.to_owned(); // (B, H, T, D)
    for ((b, t, i), &cos) in cos.indexed_iter() {
        let pairs = sin.dim().2; // R/2
        let (first, second) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + pairs) };
        for mut channels in output.slice_mut(s![b, .., t, ..]).outer_iter_mut() {
            let (x, y, sin) = (channels[first], channels[second], sin[[b, t, i]]);
            channels[first] = x * cos - y * sin;
            channels[second] = x * sin + y * cos;
        }
    }
    output
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    fn signed(dim: (usize, usize, usize, usize)) -> Array4<f64> {
        let mut state = 1_u64;
        Array4::from_shape_simple_fn(dim, || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f64 / f64::from(1 << 23) - 1.0
        })
    }

    #[test]
    fn conventions_of_pairs() {
        let x = array![[[[1.0, 2.0, 3.0, 4.0, 9.0]]]];
        let (cos, sin) = (array![[0.0, 1.0], [0.0, -1.0]], array![[1.0, 0.0], [1.0, 0.0]]);
        let tables = Some(RopeTables { cos: &cos, sin: &sin });
        let half = Rope { rotary_dim: Some(4), ..Rope::default() };
        let output = rope(&x, &half, None, tables).unwrap();
        assert_eq!(output, array![[[[-3.0, 2.0, 1.0, 4.0, 9.0]]]]);
        let output = rope(&x, &Rope { interleaved: true, ..half.clone() }, None, tables).unwrap();
        assert_eq!(output, array![[[[-2.0, 1.0, 3.0, 4.0, 9.0]]]]);
        let output = rope(&x, &half, Some(&array![[1]]), tables).unwrap();
        assert_eq!(output, array![[[[-3.0, -2.0, 1.0, -4.0, 9.0]]]]);
    }

    #[test]
    fn scores_depend_on_the_distance_only() {
        let (q, k) = (signed((1, 1, 1, 8)), signed((1, 1, 2, 8)));
        let score = |p: i64, j: i64| {
            let turned = |x: &ArrayRef4<f64>, at: i64| {
                rope(x, &Rope { offset: at, ..Rope::default() }, None, None).unwrap()
            };
            (turned(&q, p) * turned(&k.slice(s![.., .., 1.., ..]), j)).sum()
        };
        // In units of 2^-53, of pairs up to sqrt(2) long: frequencies are 1, 1/10, 1/100, 1/1000, so the angles of the
        // pairs are off by 0, 64, 8 and 1, twice, which makes 4 times that in a score; 8 · 40 for all else.
        let room = (4.0 * 73.0 + 320.0) * 2.0_f64.powi(-53);
        assert!((score(7, 3) - score(1004, 1000)).abs() <= room);
        assert!((score(7, 3) - score(-2, -6)).abs() <= room);
        assert!((score(7, 3) - score(7, 4)).abs() > 1e-3);
    }

    #[test]
    fn large_positions_are_not_rounded() {
        let x = array![[[[1.0_f32, 0.0]]]];
        let at = (1_i64 << 24) + 1; // no f32
        let steps = rope_steps(&x, &Rope { offset: at, ..Rope::default() }, None, None).unwrap();
        assert_eq!(steps.cos[[0, 0, 0]], (at as f64).cos() as f32);
        assert_eq!(steps.output[[0, 0, 0, 1]], (at as f64).sin() as f32);
    }

    #[test]
    fn rows_have_lengths_of_their_own() {
        let x = signed((2, 3, 2, 4));
        let scaling = RopeScaling::Dynamic { factor: 2.0, original_length: 4, length: None };
        let options = Rope { scaling: Some(scaling), ..Rope::default() };
        let positions = array![[0, 1], [8, 9]];
        let both = rope(&x, &options, Some(&positions), None).unwrap();
        for b in 0..2 {
            let (x, positions) = (x.slice(s![b..=b, .., .., ..]), positions.slice(s![b..=b, ..]));
            let alone = rope(&x, &options, Some(&positions), None).unwrap();
            assert_eq!(both.slice(s![b..=b, .., .., ..]), alone);
        }
        let plain = rope(&x, &Rope::default(), Some(&positions), None).unwrap();
        assert_eq!(both.slice(s![0, .., .., ..]), plain.slice(s![0, .., .., ..]));
        assert_ne!(both.slice(s![1, .., .., ..]), plain.slice(s![1, .., .., ..]));
    }

    #[test]
    fn empty_sizes() {
        for dim in [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4)] {
            let steps =
                rope_steps(&Array4::<f32>::ones(dim), &Rope::default(), None, None).unwrap();
            assert_eq!((steps.output.dim(), steps.cos.dim()), (dim, (dim.0, dim.2, 2)));
        }
    }

    #[test]
    fn faults() {
        let x = Array4::<f64>::zeros((2, 1, 3, 4));
        let code = |options: &Rope| rope(&x, options, None, None).unwrap_err().code();
        for rotary_dim in [0, 1, 3, 6] {
            let options = Rope { rotary_dim: Some(rotary_dim), ..Rope::default() };
            assert_eq!(code(&options), "invalid_config");
        }
        for base in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(code(&Rope { base, ..Rope::default() }), "invalid_config");
        }
        let scaled = |scaling| Rope { scaling: Some(scaling), ..Rope::default() };
        assert_eq!(code(&scaled(RopeScaling::Linear { factor: 0.0 })), "invalid_config");
        let short = RopeScaling::LongRope {
            short_factor: vec![1.0],
            long_factor: vec![1.0, 1.0],
            original_length: 8,
            factor: None,
            attention_factor: None,
            length: None,
        };
        assert_eq!(code(&scaled(short)), "invalid_config");
        let odd = rope(&Array4::<f64>::zeros((1, 1, 1, 3)), &Rope::default(), None, None);
        assert_eq!(odd.unwrap_err().code(), "shape_mismatch");

        let positions = array![[0, 1, 2], [0, 1, 3]];
        let at = |options: &Rope| rope(&x, options, Some(&positions), None).map(|_| ());
        assert!(at(&Rope::default()).is_ok());
        let moved = Rope { offset: 1, ..Rope::default() };
        assert_eq!(at(&moved).unwrap_err().code(), "invalid_config");
        let narrow = rope(&x, &Rope::default(), Some(&positions.slice(s![.., ..2])), None);
        assert_eq!(narrow.unwrap_err().code(), "shape_mismatch");

        let table = Array2::ones((3, 2));
        let tables = Some(RopeTables { cos: &table, sin: &table });
        let looked = |options: &Rope, positions: Option<&ArrayRef2<i64>>| {
            rope(&x, options, positions, tables).map(|_| ()).map_err(|error| error.code())
        };
        assert_eq!(looked(&Rope::default(), None), Ok(()));
        assert_eq!(looked(&Rope::default(), Some(&positions)), Err("invalid_config"));
        assert_eq!(looked(&Rope { offset: -1, ..Rope::default() }, None), Err("invalid_config"));
        assert_eq!(looked(&Rope { base: 9.0, ..Rope::default() }, None), Err("invalid_config"));
        let linear = scaled(RopeScaling::Linear { factor: 2.0 });
        assert_eq!(looked(&linear, None), Err("invalid_config"));
        let two = Rope { rotary_dim: Some(2), ..Rope::default() };
        assert_eq!(looked(&two, None), Err("shape_mismatch"));
    }
}
