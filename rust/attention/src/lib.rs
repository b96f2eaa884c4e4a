//! Attention, multi-head attention and the KV cache, over [`ndarray`] views of any strides.
//!
//! The readable rung (`naive`) is in [`sdpa`](mod@sdpa), [`softmax`](mod@softmax), [`masks`], [`mha`] and
//! [`kv_cache`]: the formula, step by step. [`simd`] is the same `sdpa` with vector instructions.
//!
//! Letters in shapes: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv, Tq and Tk query
//! and key lengths, D head size, Dv head size of the values, C model width.
//!
//! ```
//! use ndarray::{Array4, array};
//! use rosetta_attention::{Sdpa, sdpa};
//!
//! // One query of 1 against keys that are the scores themselves: weights 1/3 and 2/3.
//! let q = Array4::<f64>::ones((1, 1, 1, 1));
//! let k = array![[[[0.0], [2.0_f64.ln()]]]];
//! let v = array![[[[3.0], [6.0]]]];
//! let output = sdpa(&q, &k, &v, &Sdpa::default())?;
//! assert!((output[[0, 0, 0, 0]] - 5.0).abs() < 1e-12);
//! # Ok::<(), rosetta_attention::AttentionError>(())
//! ```

mod checks;
pub mod errors;
pub mod float;
pub mod kv_cache;
pub mod masks;
pub mod mha;
pub mod sdpa;
pub mod simd;
pub mod softmax;

pub use errors::{AttentionError, Fault, Result};
pub use float::Float;
pub use kv_cache::KvCache;
pub use masks::{Mask, Offset, Window, visible};
pub use mha::{MhaSteps, MultiHeadAttention};
pub use sdpa::{Sdpa, Steps, sdpa, sdpa_steps};
pub use simd::{Tier, sdpa_simd};
pub use softmax::{softmax, softmax_lse};
