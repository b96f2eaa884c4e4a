//! Attention with linear biases (ALiBi): each head loses score with the distance, at a rate of its own.
//!
//! ```text
//! output = scores - slope_h · |p - j|,   p = i + q_offset
//! ```
//!
//! Letters: B batch, H heads, Tq and Tk query and key lengths.
//!
//! Source: Press et al., "Train Short, Test Long: Attention with Linear Biases Enables Input Length
//! Extrapolation", 2021, section 3 and its footnote on numbers of heads that are no power of two.

use ndarray::{Array1, Array3, Array4, ArrayRef4};

use crate::allocation::Purpose;
use crate::errors::Result;
use crate::float::Float;
use crate::masks::distance;

/// The output of one call and what was added.
#[derive(Debug, Clone)]
pub struct AlibiSteps<T> {
    /// (B, H, Tq, Tk)
    pub output: Array4<T>,
    /// (H)
    pub slopes: Array1<T>,
    /// (H, Tq, Tk)
    pub bias: Array3<T>,
}

/// `scores` (B, H, Tq, Tk) with their biases; same shape. `q_offset`: position of query 0.
///
/// # Errors
/// None: every shape and offset has an answer.
///
/// ```
/// use ndarray::{Array4, array};
/// // One head: a slope of 1/256.
/// let output = rosetta_attention::alibi(&Array4::<f32>::zeros((1, 1, 1, 3)), 1)?;
/// assert_eq!(output * 256.0, array![[[[-1.0, 0.0, -1.0]]]]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn alibi<T: Float>(scores: &ArrayRef4<T>, q_offset: i64) -> Result<Array4<T>> {
    Ok(alibi_steps(scores, q_offset)?.output)
}

/// [`alibi`](fn@alibi) with slopes and bias; same arguments and errors.
///
/// # Errors
/// None: every shape and offset has an answer.
pub fn alibi_steps<T: Float>(scores: &ArrayRef4<T>, q_offset: i64) -> Result<AlibiSteps<T>> {
    let (_, heads, tq, tk) = scores.dim();

    // 1. slopes: one a head, a geometric sequence
    let slopes: Array1<T> = slopes(heads).map(T::from_f64).collect(); // (H)

    // 2. distances: of this query and of this key, whichever comes first
    let bias = Array3::from_shape_fn((heads, tq, tk), |(h, i, j)| {
        -slopes[h] * T::from_f64(distance(q_offset, i, j).unsigned_abs() as f64)
    }); // (H, Tq, Tk)

    // 3. add: the same bias in every row of the batch
    let output = &scores.view() + &bias; // (B, H, Tq, Tk)
    Ok(AlibiSteps { output, slopes, bias })
}

/// The slopes of `num_heads` heads: (H).
///
/// # Errors
/// `InvalidConfig` for more heads than there is memory for.
///
/// ```
/// let slopes = rosetta_attention::alibi_slopes(4)?;
/// assert_eq!(slopes.to_vec(), [1.0 / 4.0, 1.0 / 16.0, 1.0 / 64.0, 1.0 / 256.0]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn alibi_slopes(num_heads: usize) -> Result<Array1<f64>> {
    let mut memory = Purpose::option("alibi_slopes", "num_heads").array(num_heads, 0.0)?; // (H)
    memory.iter_mut().zip(slopes(num_heads)).for_each(|(slot, slope)| *slot = slope);
    Ok(memory)
}

/// The slopes of [`alibi_slopes`], one by one.
fn slopes(num_heads: usize) -> impl Iterator<Item = f64> {
    let of_power =
        |heads: usize| (1..=heads).map(move |h| 2.0_f64.powf(-8.0 * h as f64 / heads as f64));
    let power = if num_heads == 0 { 0 } else { 1 << num_heads.ilog2() }; // the largest within
    let between = of_power(2 * power).step_by(2); // what is missing lies between those that are there
    of_power(power).chain(between).take(num_heads)
}

#[cfg(test)]
mod tests {
    use ndarray::{Array4, s};

    use super::*;

    #[test]
    fn numbers_of_heads() {
        let alibi_slopes = |heads| alibi_slopes(heads).unwrap();
        assert!(alibi_slopes(0).is_empty());
        assert_eq!(alibi_slopes(1).to_vec(), [2.0_f64.powi(-8)]);
        let eight: Vec<f64> = (1..=8).map(|h| 2.0_f64.powi(-h)).collect();
        assert_eq!(alibi_slopes(8).to_vec(), eight);
        let twelve = alibi_slopes(12);
        assert_eq!(twelve.slice(s![..8]).to_vec(), eight);
        for (h, exponent) in [0.5, 1.5, 2.5, 3.5].into_iter().enumerate() {
            // Exponents are exact, so each of two powers below 1 is off by a unit of 2^-53 at most.
            assert!((twelve[8 + h] - 2.0_f64.powf(-exponent)).abs() <= f64::EPSILON);
        }
        assert_eq!(alibi_slopes(3).to_vec(), [1.0 / 16.0, 1.0 / 256.0, 1.0 / 4.0]);
        let error = super::alibi_slopes(1_000_000_000_000_000).unwrap_err();
        assert_eq!(error.code(), "invalid_config");
    }

    #[test]
    fn sizes_may_be_zero_and_offsets_far() {
        for dim in [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)] {
            let steps = alibi_steps(&Array4::<f64>::zeros(dim), 5).unwrap();
            assert_eq!((steps.output.dim(), steps.bias.dim()), (dim, (dim.1, dim.2, dim.3)));
        }
        let far = alibi(&Array4::<f64>::zeros((1, 1, 2, 2)), i64::MAX).unwrap();
        assert!(far.iter().all(|x| x.is_finite()));
    }
}
