//! The `simd` rung of `varlen`: each packed sequence by the vectorised kernels, where it lies.
//!
//! What it changes, beside the [readable rung](mod@crate::varlen): the kernels, and nothing of size Tq x Tk. Neither a
//! sequence nor the batch is padded or put together anew.
//!
//! Letters: S sequences, Nq and Nk rows of all queries and keys, Hq query heads, Hkv key/value heads, D head size, Dv
//! head size of the values.

use ndarray::{Array2, Array3, ArrayRef1, ArrayRef3, ArrayRef4};

use super::sdpa_simd;
use super::tier::Tier;
use crate::checks::check_varlen;
use crate::errors::Result;
use crate::float::Float;
use crate::sdpa::Sdpa;
use crate::varlen::{Varlen, each_sequence};

/// [`varlen`](fn@crate::varlen()) by the kernels of [`sdpa_simd`](super::sdpa_simd): output (Nq, Hq, Dv) and lse (Nq, Hq).
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`; `Unsupported` for a tier that this machine lacks.
///
/// ```
/// use ndarray::{Array3, array};
/// use rosetta_attention::{Varlen, varlen_simd};
/// let (q, k) = (Array3::<f64>::zeros((2, 1, 1)), Array3::zeros((3, 1, 1)));
/// let v = array![[[9.0]], [[2.0]], [[4.0]]];
/// let (cu_q, cu_k) = (array![0, 1, 2], array![0, 1, 3]);
/// let (output, _) = varlen_simd(&q, &k, &v, &cu_q, &cu_k, &Varlen::default(), None)?;
/// assert_eq!(output, array![[[9.0]], [[3.0]]]);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn varlen_simd<T: Float>(
    q: &ArrayRef3<T>,
    k: &ArrayRef3<T>,
    v: &ArrayRef3<T>,
    cu_seqlens_q: &ArrayRef1<i64>,
    cu_seqlens_k: &ArrayRef1<i64>,
    options: &Varlen<'_>,
    tier: Option<Tier>,
) -> Result<(Array3<T>, Array2<T>)> {
    check_varlen("varlen", (q.dim(), k.dim(), v.dim()), (cu_seqlens_q, cu_seqlens_k), options)?;
    let tier = Some(Tier::choose(tier)?);
    let attend = |q: &ArrayRef4<T>, k: &ArrayRef4<T>, v: &ArrayRef4<T>, alone: &Sdpa<'_, T>| {
        sdpa_simd(q, k, v, alone, tier)
    };
    each_sequence((q, k, v), (cu_seqlens_q, cu_seqlens_k), options, attend)
}
