//! The `simd` rung of `sdpa`: the same pipeline with vector instructions.
//!
//! What it changes, beside the [readable rung](mod@crate::sdpa):
//! - Queries are taken a tile at a time, one query a lane, G heads of a KV head together (`kernel`). A head of Q, K
//!   or V that is one block of memory is read in place, another is copied.
//! - Keys are taken in blocks of 256, with a softmax that is corrected on the way, as in [`flash`](mod@crate::flash):
//!   the memory is that of a tile, whatever Tk is.
//! - Some tiles take a block of keys together, so that it comes from memory once for all of them (`wave`).
//! - The largest score of a row is found while the scores are still in registers; the exponentials are taken of a few
//!   keys at a time, right before these are weighed, and are never computed where they are 0 (`online`).
//! - Where a head has few rows, as in decode, most lanes of a tile would idle: the lanes are channels, each key and
//!   value is loaded once for the whole group, and asked for some rows before that (`few`, `weigh`,
//!   `decode`). Keys and values are read row by row where they lie, whatever the distance between two rows is.
//! - Caches are attended to where their slots lie ([`Cache::attend_simd`](crate::Cache::attend_simd)): halves and
//!   integers become f32 in the registers where they are multiplied (`cached`, `source`, `across`).
//! - Causal masks, windows and lengths are intervals of keys: what no query of a tile, or of its first half, sees is not
//!   computed, and what all of them see is not masked. `keep` and `bias` are applied slot by slot.
//! - The exponential is a polynomial of degree 5 (f32) or 13 (f64) near a power of 2 (`exp`).
//! - What registers are stored to starts on a cache line (`buffer`), quotients are products where these are fused with
//!   sums (`online`), and a thread keeps its buffers from call to call (`wave`). With a shorter exponential than before,
//!   and half of a causal tile left out, that is 1.03 to 1.08 times as fast in prefill, 1.1 to 1.2 in causal calls of 256
//!   and 512, and 1.2 to 1.3 where there are 16, 17 keys or one: AVX-512 and f32, the commit before and this in turns in
//!   one program, best times; `conformance bench --full --ops sdpa --ports rust --save F`, then with `--check F`,
//!   compares two commits as well.
//! - Products are fused with sums (AVX-512, AVX2, NEON). The order of every sum depends on the head of a query alone:
//!   its sizes, G · Tq, and its mask. On one tier a query gets the same bits whatever else is in the call
//!   (`tests/simd.rs`), on any number of threads (`tests/threads.rs`).
//!
//! [`sdpa_threads`] shares the queries of a call among threads, and [`varlen_simd`] takes packed sequences.
//!
//! The instruction set is chosen when it runs, see [`Tier`]. All figures here and in the modules are of AVX-512 or
//! AVX2. NEON is tested under emulation (`make aarch64`), never on a processor that has it, and was never timed.

mod across;
mod attend;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod buffer;
mod cached;
mod decode;
mod exp;
mod few;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod instructions;
mod kernel;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod online;
mod portable;
#[cfg(test)]
mod registers;
mod source;
mod threads;
mod tier;
mod tile;
mod varlen;
mod vectors;
mod wave;
mod weigh;
mod widen;

use ndarray::{Array3, Array4, ArrayRef4};

pub(crate) use cached::{Cached, KeysValues, check_cached};
pub(crate) use source::{Kind, Lines, Place};
pub use threads::sdpa_threads;
pub use tier::Tier;
pub use varlen::varlen_simd;
pub(crate) use vectors::Vectors;
pub(crate) use widen::Levels;

use attend::Call;

use crate::errors::Result;
use crate::float::Float;
use crate::sdpa::Sdpa;

/// [`sdpa`](fn@crate::sdpa()) with its log-sum-exp: output (B, Hq, Tq, Dv) and lse (B, Hq, Tq).
///
/// `tier`: the instruction set; `None` takes the one that the environment variable
/// `ROSETTA_SIMD_TIER` names (avx512, avx2, neon, portable), else the widest that there is.
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
