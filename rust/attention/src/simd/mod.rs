//! The `simd` rung of `sdpa`: the same pipeline with vector instructions.
//!
//! What it changes, beside the [readable rung](mod@crate::sdpa):
//! - Queries are taken a tile at a time, one query a lane, G heads of a KV head together (`kernel`). A head of Q, K or V
//!   that is one block of memory is read in place, another is copied.
//! - Keys are taken in blocks of 256, with a softmax that is corrected on the way, as in [`flash`](mod@crate::flash):
//!   the memory is that of a tile, whatever Tk is.
//! - Some tiles take a block of keys together, so that it comes from memory once for all of them (`wave`).
//! - The largest score of a row is found while the scores are still in registers; the exponentials are taken of a few
//!   keys at a time, right before these are weighed, and are never computed where they are 0 (`online`).
//! - Where a tile has few rows, as in decode, most lanes would idle: the lanes are keys, then channels, and each key and
//!   value is loaded once for the whole group, while the next ones are on their way (`few`). Against a tile, with
//!   AVX-512 and f32: 1.4 to 1.6 times as fast with G = 4, 1.8 where K and V are in the cache and G = 1
//!   (`cargo run --release --example simd_ratio`).
//! - Causal masks, windows and lengths are intervals of keys: what no query of a tile sees is not
//!   computed, and what all of them see is not masked. `keep` and `bias` are applied slot by slot.
//! - The exponential is a polynomial of degree 6 (f32) or 13 (f64), within 2 ulp (`exp`).
//! - Products are fused with sums (AVX-512, AVX2). The order of every sum is that of the keys and channels, and blocks
//!   start at multiples of 256: on one tier a query gets the same bits whatever else is in the call, and from either
//!   kernel (`tests/simd.rs`).
//!
//! [`sdpa_threads`] shares the queries of a call among threads, and [`varlen_simd`] takes packed sequences.
//!
//! The instruction set is chosen when it runs, see [`Tier`].

mod attend;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod exp;
mod few;
mod kernel;
mod lanes;
mod online;
mod portable;
mod threads;
mod tier;
mod tile;
mod varlen;
mod vectors;
mod wave;

use ndarray::{Array3, Array4, ArrayRef4};

pub use threads::sdpa_threads;
pub use tier::Tier;
pub use varlen::varlen_simd;
pub(crate) use vectors::Vectors;

use attend::Call;

use crate::errors::Result;
use crate::float::Float;
use crate::sdpa::Sdpa;

/// [`sdpa`](fn@crate::sdpa()) with its log-sum-exp: output (B, Hq, Tq, Dv) and lse (B, Hq, Tq).
///
/// `tier`: the instruction set; `None` takes the one that the environment variable
/// `ROSETTA_SIMD_TIER` names (avx512, avx2, portable), else the widest that there is.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`; `Unsupported` for a tier that this machine lacks, and for dropout.
///
/// ```
/// use ndarray::Array4;
/// use rosetta_attention::{Sdpa, Tier, sdpa_simd};
/// let (q, k) = (Array4::<f32>::zeros((1, 8, 5, 64)), Array4::zeros((1, 2, 7, 64)));
/// let v = Array4::ones((1, 2, 7, 3));
/// let (output, lse) = sdpa_simd(&q, &k, &v, &Sdpa::default(), Some(Tier::Portable))?;
/// assert_eq!(output, Array4::<f32>::ones((1, 8, 5, 3)));
/// assert_eq!(lse[[0, 0, 0]], 7.0_f32.ln());
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn sdpa_simd<T: Float>(
    q: &ArrayRef4<T>,
    k: &ArrayRef4<T>,
    v: &ArrayRef4<T>,
    options: &Sdpa<'_, T>,
    tier: Option<Tier>,
) -> Result<(Array4<T>, Array3<T>)> {
    Ok(T::attend(&Call::new((q, k, v), options, tier)?))
}
