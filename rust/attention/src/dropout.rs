//! Dropout whose mask every language draws alike.
//!
//! ```text
//! output_n = 0 when word n of the seed is below p · 2^32, else x_n / (1 - p)
//! ```
//!
//! Element n of a row-major array has word n of [`philox_words`](crate::philox_words), so a tile that knows where
//! it lies needs no other element's word.
//!
//! Source: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting",
//! 2014; scaling while training, so that nothing is left to do later ("inverted").

use ndarray::{Array, Array1, ArrayRef, Dimension, Zip};

use crate::checks::check_dropout;
use crate::errors::Result;
use crate::float::Float;
use crate::philox::words;

/// Which elements are dropped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// The share that is dropped, 0 <= p <= 1.
    pub p: f64,
    /// What the random words depend on, beside the element's index; at most 2^53 - 1.
    pub seed: u64,
}

/// The output of one call and what it kept.
#[derive(Debug, Clone)]
pub struct DropoutSteps<T, D: Dimension> {
    /// The shape of the input.
    pub output: Array<T, D>,
    /// The shape of the input; false = dropped.
    pub keep: Array<bool, D>,
}

/// `x` with some elements dropped and the others scaled up; same shape. `offset` is the index of
/// the first element.
///
/// # Errors
/// `InvalidConfig`.
///
/// ```
/// use rosetta_attention::{Dropout, dropout};
/// let x = ndarray::Array1::<f32>::ones(1000);
/// let output = dropout(&x, &Dropout { p: 0.75, seed: 7 }, 0)?;
/// assert!(output.iter().all(|&x| x == 0.0 || x == 4.0));
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn dropout<T: Float, D: Dimension>(
    x: &ArrayRef<T, D>,
    options: &Dropout,
    offset: u64,
) -> Result<Array<T, D>> {
    Ok(dropout_steps(x, options, offset)?.output)
}

/// [`dropout`](fn@dropout) with what it kept; same arguments and errors.
///
/// # Errors
/// `InvalidConfig`.
pub fn dropout_steps<T: Float, D: Dimension>(
    x: &ArrayRef<T, D>,
    options: &Dropout,
    offset: u64,
) -> Result<DropoutSteps<T, D>> {
    check_dropout("dropout", options)?;
    let keep = options.keep(offset, x.len()).into_shape_with_order(x.raw_dim()); // row-major
    let keep = keep.expect("same size");
    let output = Zip::from(x).and(&keep).map_collect(|&x, &keep| options.scale(x, keep));
    Ok(DropoutSteps { output, keep })
}

impl Dropout {
    /// Which of the elements `first`, `first + 1`, … stay: (count).
    pub(crate) fn keep(&self, first: u64, count: usize) -> Array1<bool> {
        // 1. random words: one an element, by its index
        let words = words(self.seed, first, count); // (count)

        // 2. keep: the words below p of their range are those of the dropped ones
        let dropped = (self.p * 2.0_f64.powi(32)).ceil() as u64; // at most 2^32
        words.map(|word| u64::from(word) >= dropped).collect() // (count)
    }

    /// What becomes of one element.
    pub(crate) fn scale<T: Float>(&self, x: T, keep: bool) -> T {
        // 3. scale: by selection, so that a dropped NaN is 0; the mean stays what it was
        if keep { x * T::from_f64(1.0 / (1.0 - self.p)) } else { T::zero() }
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, Array3, array, s};

    use super::*;

    #[test]
    fn all_or_nothing() {
        let x = array![[1.0, f64::NAN], [f64::INFINITY, -0.0]];
        assert_eq!(
            dropout(&x, &Dropout { p: 1.0, seed: 1 }, 0).unwrap(),
            Array2::<f64>::zeros((2, 2))
        );
        let same = dropout(&x, &Dropout { p: 0.0, seed: 1 }, 0).unwrap();
        assert!(same.iter().zip(&x).all(|(a, b)| a.to_bits() == b.to_bits()));
    }

    #[test]
    fn an_offset_continues_the_sequence() {
        let (x, options) = (Array3::<f32>::ones((5, 3, 7)), Dropout { p: 0.4, seed: 9 });
        let whole = dropout_steps(&x, &options, 0).unwrap();
        for first in 0..5 {
            let part = dropout_steps(&x.slice(s![first.., .., ..]), &options, 21 * first as u64);
            assert_eq!(part.unwrap().keep, whole.keep.slice(s![first.., .., ..]));
        }
        let words = words(9, 0, 105);
        let threshold = (0.4 * 2.0_f64.powi(32)).ceil() as u32;
        assert!(whole.keep.iter().zip(words).all(|(&keep, word)| keep == (word >= threshold)));
    }

    #[test]
    fn order_is_that_of_the_indices_not_of_the_memory() {
        let (x, options) = (Array2::<f64>::ones((4, 6)), Dropout { p: 0.5, seed: 3 });
        let turned = x.t().as_standard_layout().into_owned(); // (6, 4)
        let (a, b) =
            (dropout(&x, &options, 0).unwrap(), dropout(&turned.t(), &options, 0).unwrap());
        assert_eq!(a, b);
    }

    #[test]
    fn faults_and_empty_sizes() {
        let x = Array1::<f32>::zeros(0);
        assert_eq!(dropout(&x, &Dropout { p: 0.5, seed: 0 }, 0).unwrap().len(), 0);
        for p in [-0.1, 1.1, f64::NAN] {
            let error = dropout(&x, &Dropout { p, seed: 0 }, 0).unwrap_err();
            assert_eq!(error.code(), "invalid_config");
        }
        let error = dropout(&x, &Dropout { p: 0.5, seed: 1 << 53 }, 0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "dropout: seed: expected an integer from 0 to 2^53 - 1, got 9007199254740992"
        );
    }
}
