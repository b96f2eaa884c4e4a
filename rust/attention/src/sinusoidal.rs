//! Sinusoidal position encoding: a fixed pattern for each position, added to the input.
//!
//! ```text
//! angle = position · base^(-2i/C) for pair i of C/2;   table = its sine and cosine
//! ```
//!
//! Letters: B batch, T positions, C model width.
//!
//! Source: Vaswani et al., "Attention Is All You Need", 2017, section 3.5.

use ndarray::{Array3, ArrayRef2, ArrayRef3};

use crate::checks::check_sinusoidal;
use crate::errors::Result;
use crate::float::Float;
use crate::rope::{BASE, placed};
use crate::rope_scaling::frequencies;

/// Where the positions stand, and how the table is laid out.
#[derive(Debug, Clone, Copy)]
pub struct Sinusoidal<'a> {
    /// (B, T); `None` = offset, offset + 1, …
    pub positions: Option<&'a ArrayRef2<i64>>,
    /// Position of the first element, where no positions are given.
    pub offset: i64,
    /// Frequencies fall from 1 to almost 1/base.
    pub base: f64,
    /// All sines before all cosines, instead of sine and cosine of each pair side by side.
    pub halves: bool,
}

impl Default for Sinusoidal<'_> {
    fn default() -> Self {
        Self { positions: None, offset: 0, base: BASE, halves: false }
    }
}

/// The output of one call and what was added.
#[derive(Debug, Clone)]
pub struct SinusoidalSteps<T> {
    /// (B, T, C)
    pub output: Array3<T>,
    /// (B, T, C)
    pub table: Array3<T>,
}

/// `x` (B, T, C) plus the encoding of its positions; same shape.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
///
/// ```
/// use ndarray::{Array3, array};
/// use rosetta_attention::{Sinusoidal, sinusoidal};
/// let output = sinusoidal(&Array3::<f64>::zeros((1, 2, 2)), &Sinusoidal::default())?;
/// assert_eq!(output, array![[[0.0, 1.0], [1.0_f64.sin(), 1.0_f64.cos()]]]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn sinusoidal<T: Float>(x: &ArrayRef3<T>, options: &Sinusoidal<'_>) -> Result<Array3<T>> {
    Ok(sinusoidal_steps(x, options)?.output)
}

/// [`sinusoidal`](fn@sinusoidal) with its table; same arguments and errors.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
pub fn sinusoidal_steps<T: Float>(
    x: &ArrayRef3<T>,
    options: &Sinusoidal<'_>,
) -> Result<SinusoidalSteps<T>> {
    check_sinusoidal("sinusoidal", x.dim(), options)?;
    let (batch, len, width) = x.dim();
    let pairs = width / 2; // C/2

    // 1. angles: in f64, a position times the frequency of each pair
    let positions = placed(batch, len, options.offset, options.positions); // (B, T)
    let frequencies = frequencies(options.base, pairs); // (C/2)
    let angles = Array3::from_shape_fn((batch, len, pairs), |(b, t, i)| {
        positions[[b, t]] as f64 * frequencies[i]
    }); // (B, T, C/2)

    // 2. table: the sine of each pair, and its cosine
    let table = Array3::from_shape_fn((batch, len, width), |(b, t, channel)| {
        let (i, is_cosine) = if options.halves {
            (channel % pairs, channel >= pairs)
        } else {
            (channel / 2, channel % 2 == 1)
        };
        let angle = angles[[b, t, i]];
        T::from_f64(if is_cosine { angle.cos() } else { angle.sin() })
    }); // (B, T, C)

    // 3. add: to what is at the position
    let output = &x.view() + &table; // (B, T, C)
    Ok(SinusoidalSteps { output, table })
}

#[cfg(test)]
mod tests {
    use ndarray::{array, s};

    use super::*;

    #[test]
    fn layouts() {
        let x = Array3::<f64>::zeros((1, 1, 4));
        let at = |halves| {
            let options = Sinusoidal { offset: 3, base: 100.0, halves, ..Sinusoidal::default() };
            sinusoidal(&x, &options).unwrap().into_raw_vec_and_offset().0
        };
        let (fast, slow) = (3.0_f64, 3.0 * 100.0_f64.powf(-0.5));
        assert_eq!(at(false), [fast.sin(), fast.cos(), slow.sin(), slow.cos()]);
        assert_eq!(at(true), [fast.sin(), slow.sin(), fast.cos(), slow.cos()]);
    }

    #[test]
    fn positions_take_the_place_of_the_count() {
        let x = Array3::<f32>::ones((2, 2, 6));
        let positions = array![[5, 6], [-1, 0]];
        let options = Sinusoidal { positions: Some(&positions), ..Sinusoidal::default() };
        let steps = sinusoidal_steps(&x, &options).unwrap();
        let counted = Sinusoidal { offset: 5, ..Sinusoidal::default() };
        let first = sinusoidal_steps(&x, &counted).unwrap();
        assert_eq!(steps.table.slice(s![0, .., ..]), first.table.slice(s![0, .., ..]));
        assert_eq!(steps.output[[1, 1, 1]], 2.0);
    }

    #[test]
    fn sizes_and_faults() {
        for dim in [(0, 2, 4), (2, 0, 4), (2, 2, 0)] {
            let x = Array3::<f32>::zeros(dim);
            assert_eq!(sinusoidal(&x, &Sinusoidal::default()).unwrap().dim(), dim);
        }
        let code = |width, options: &Sinusoidal<'_>| {
            sinusoidal(&Array3::<f32>::zeros((1, 2, width)), options).unwrap_err().code()
        };
        assert_eq!(code(3, &Sinusoidal::default()), "shape_mismatch");
        assert_eq!(code(2, &Sinusoidal { base: 0.0, ..Sinusoidal::default() }), "invalid_config");
        let positions = array![[0, 1]];
        let given = Sinusoidal { positions: Some(&positions), ..Sinusoidal::default() };
        assert_eq!(code(2, &Sinusoidal { offset: 1, ..given }), "invalid_config");
        let short = array![[0]];
        assert_eq!(code(2, &Sinusoidal { positions: Some(&short), ..given }), "shape_mismatch");
    }
}
