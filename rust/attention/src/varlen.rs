//! Attention over sequences of different lengths that are packed one after the other, without padding.
//!
//! ```text
//! sequence s owns rows cu_seqlens[s] up to cu_seqlens[s + 1], and is an sdpa of its own
//! ```
//!
//! Letters: S sequences, Nq and Nk rows of all queries and keys, Hq query heads, Hkv key/value heads, D
//! head size, Dv head size of the values, Tq and Tk lengths within one sequence.
//!
//! Source: the interface of Dao, "FlashAttention-2", 2023, for packed sequences.

use std::ops::Range;

use ndarray::{Array2, Array3, Array4, ArrayRef1, ArrayRef3, ArrayRef4, ArrayView4, Axis, s};

use crate::checks::check_varlen;
use crate::errors::Result;
use crate::float::Float;
use crate::masks::{Mask, Offset, Window};
use crate::sdpa::{Sdpa, sdpa_steps};

/// The options of one call; the default is plain attention within each sequence.
#[derive(Debug, Clone, Copy, Default)]
pub struct Varlen<'a> {
    /// No query sees a key that stands after it.
    pub causal: bool,
    /// Position of the first query of a sequence, one for all or one for each: (S).
    pub q_offset: Option<Offset<'a>>,
    /// How many keys on each side of itself a query sees.
    pub window: Option<Window>,
    /// `None` = 1/sqrt(D).
    pub scale: Option<f64>,
    /// As for sdpa.
    pub softcap: Option<f64>,
}

/// Attention of `q` (Nq, Hq, D) over `k` (Nk, Hkv, D) and `v` (Nk, Hkv, Dv), sequence by sequence:
/// output (Nq, Hq, Dv) and lse (Nq, Hq).
///
/// `cu_seqlens_q`, `cu_seqlens_k`: (S + 1), where each sequence starts and, last, where all end.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
///
/// ```
/// use ndarray::{Array3, array};
/// use rosetta_attention::{Varlen, varlen};
/// // Two sequences of 1 and 2 keys; queries of 0 give the mean of their own values.
/// let (q, k) = (Array3::<f64>::zeros((2, 1, 1)), Array3::zeros((3, 1, 1)));
/// let v = array![[[9.0]], [[2.0]], [[4.0]]];
/// let (output, _) = varlen(&q, &k, &v, &array![0, 1, 2], &array![0, 1, 3], &Varlen::default())?;
/// assert_eq!(output, array![[[9.0]], [[3.0]]]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn varlen<T: Float>(
    q: &ArrayRef3<T>,
    k: &ArrayRef3<T>,
    v: &ArrayRef3<T>,
    cu_seqlens_q: &ArrayRef1<i64>,
    cu_seqlens_k: &ArrayRef1<i64>,
    options: &Varlen<'_>,
) -> Result<(Array3<T>, Array2<T>)> {
    check_varlen("varlen", (q.dim(), k.dim(), v.dim()), (cu_seqlens_q, cu_seqlens_k), options)?;
    each_sequence((q, k, v), (cu_seqlens_q, cu_seqlens_k), options, |q, k, v, alone| {
        let steps = sdpa_steps(q, k, v, alone)?;
        Ok((steps.output, steps.lse))
    })
}

/// `varlen` by any rung of sdpa, for arguments that were checked.
pub(crate) fn each_sequence<T: Float>(
    (q, k, v): (&ArrayRef3<T>, &ArrayRef3<T>, &ArrayRef3<T>),
    (cu_seqlens_q, cu_seqlens_k): (&ArrayRef1<i64>, &ArrayRef1<i64>),
    options: &Varlen<'_>,
    attend: impl Fn(
        &ArrayRef4<T>,
        &ArrayRef4<T>,
        &ArrayRef4<T>,
        &Sdpa<'_, T>,
    ) -> Result<(Array4<T>, Array3<T>)>,
) -> Result<(Array3<T>, Array2<T>)> {
    let &Varlen { causal, q_offset, window, scale, softcap } = options;
    let (rows, heads, _) = q.dim();
    let mut output = Array3::zeros((rows, heads, v.dim().2)); // (Nq, Hq, Dv)
    let mut lse = Array2::zeros((rows, heads)); // (Nq, Hq)
    for sequence in 0..cu_seqlens_q.len() - 1 {
        // 1. slice: the rows of this sequence, heads before positions
        let (own, keys) = (bounds(cu_seqlens_q, sequence), bounds(cu_seqlens_k, sequence));
        let queries = as_batch(q, &own); // (1, Hq, Tq, D)
        let (k, v) = (as_batch(k, &keys), as_batch(v, &keys)); // (1, Hkv, Tk, D), (1, Hkv, Tk, Dv)

        // 2. attend: as if there were no other sequence
        let q_offset = q_offset.map(|offset| Offset::One(offset.of_row(sequence)));
        let mask = Mask { causal, window, q_offset, ..Mask::default() };
        let alone = Sdpa { mask, scale, softcap, ..Sdpa::default() };
        let (own_output, own_lse) = attend(&queries, &k, &v, &alone)?; // (1, Hq, Tq, Dv), (1, Hq, Tq)

        // 3. place: back where the queries came from
        let placed = own_output.index_axis(Axis(0), 0).permuted_axes([1, 0, 2]); // (Tq, Hq, Dv)
        output.slice_mut(s![own.clone(), .., ..]).assign(&placed);
        lse.slice_mut(s![own, ..]).assign(&own_lse.index_axis(Axis(0), 0).t());
    }
    Ok((output, lse))
}

/// The rows of a sequence.
fn bounds(cu_seqlens: &ArrayRef1<i64>, sequence: usize) -> Range<usize> {
    cu_seqlens[sequence] as usize..cu_seqlens[sequence + 1] as usize
}

/// Rows of (N, H, n) as a batch of one: (1, H, T, n).
fn as_batch<'a, T>(x: &'a ArrayRef3<T>, rows: &Range<usize>) -> ArrayView4<'a, T> {
    x.slice(s![rows.clone(), .., ..]).permuted_axes([1, 0, 2]).insert_axis(Axis(0))
}

#[cfg(test)]
mod tests {
    use ndarray::{Array1, array};

    use super::*;

    #[test]
    fn offsets_are_of_sequences() {
        let (q, k) = (Array3::<f64>::zeros((2, 1, 1)), Array3::zeros((4, 1, 1)));
        let v = array![[[1.0]], [[3.0]], [[10.0]], [[30.0]]];
        let (cu_q, cu_k, offsets) = (array![0, 1, 2], array![0, 2, 4], array![0, 1]);
        let q_offset = Some(Offset::PerRow(&offsets));
        let options = Varlen { causal: true, q_offset, ..Varlen::default() };
        let (output, lse) = varlen(&q, &k, &v, &cu_q, &cu_k, &options).unwrap();
        assert_eq!(output, array![[[1.0]], [[20.0]]]);
        assert_eq!(lse, array![[0.0], [2.0_f64.ln()]]);
    }

    #[test]
    fn empty_sequences() {
        let (q, k) = (Array3::<f32>::ones((2, 2, 3)), Array3::<f32>::ones((1, 1, 3)));
        let (output, lse) =
            varlen(&q, &k, &k, &array![0, 0, 1, 2], &array![0, 0, 1, 1], &Varlen::default())
                .unwrap();
        assert_eq!(output.sum(), 6.0); // the second query has no key
        assert_eq!(lse.row(1).to_vec(), [f32::NEG_INFINITY; 2]);
        let none = Array3::<f32>::zeros((0, 2, 3));
        let (output, _) =
            varlen(&none, &none, &none, &array![0], &array![0], &Varlen::default()).unwrap();
        assert_eq!(output.dim(), (0, 2, 3));
    }

    #[test]
    fn faults() {
        let (q, k) = (Array3::<f32>::ones((2, 2, 3)), Array3::<f32>::ones((4, 1, 3)));
        let code = |cu_q: &Array1<i64>, cu_k: &Array1<i64>, options: &Varlen<'_>| {
            varlen(&q, &k, &k, cu_q, cu_k, options).unwrap_err().code()
        };
        let (cu_q, cu_k, none) = (array![0, 1, 2], array![0, 1, 4], Varlen::default());
        for bad in [array![0, 2, 1], array![1, 1, 2], array![0, 1, 1], array![0, 1, 3]] {
            assert_eq!(code(&bad, &cu_k, &none), "invalid_config");
        }
        assert_eq!(code(&cu_q, &array![0, 4], &none), "shape_mismatch");
        assert_eq!(code(&array![], &array![], &none), "shape_mismatch");
        let offsets = array![0];
        let offset = Varlen { q_offset: Some(Offset::PerRow(&offsets)), ..none };
        assert_eq!(code(&cu_q, &cu_k, &offset), "shape_mismatch");
        assert_eq!(code(&cu_q, &cu_k, &Varlen { softcap: Some(0.0), ..none }), "invalid_config");
        let error = varlen(&q, &k, &k, &cu_q, &array![0, 1, 3], &none).unwrap_err();
        assert_eq!(
            error.to_string(),
            "varlen: cu_seqlens_k: expected values that start at 0, never fall and end at 4, got [0, 1, 3]"
        );
    }
}
