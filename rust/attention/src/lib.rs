//! The family of attention mechanisms, over [`ndarray`] views of any strides.
//!
//! Most modules are one op each in its readable rung (`naive`): the formula, step by step; faster rungs and caches have
//! modules of their own.
//!
//! - Attention: [`softmax`](mod@softmax), [`masks`], [`sdpa`](mod@sdpa) and its other rungs
//!   [`blocked`](mod@blocked), [`flash`](mod@flash), [`split_kv`](mod@split_kv) and [`simd`]; [`merge`](mod@merge),
//!   [`varlen`](mod@varlen), [`scoring`](mod@scoring); [`mha`], [`mla`], [`mla_absorbed`].
//! - Caches: the trait [`cache::Cache`], and its kinds [`kv_cache`], [`rotating_cache`], [`paged_cache`] with its
//!   [`page_pool`], [`quantised_cache`] and [`kivi_cache`] on [`quantise`](mod@quantise), [`per_head_cache`],
//!   [`latent_cache`], [`cross_cache`]; what they forget, [`eviction`], and turn, [`cache_rope`]; [`cache_file`];
//!   [`cache_write`](mod@cache_write). All but latent, grouped and per-head ones have `attend_simd` too.
//! - Positions: [`sinusoidal`](mod@sinusoidal), [`rope`](mod@rope), [`rope_scaling`], [`alibi`](mod@alibi),
//!   [`relative_bias`](mod@relative_bias).
//! - Other kinds: [`linear_attention`](mod@linear_attention), [`linear_recurrent`](mod@linear_recurrent),
//!   [`linear_chunked`](mod@linear_chunked), [`gated_linear`](mod@gated_linear), [`sparse_patterns`],
//!   [`sparse`](mod@sparse), [`structured`](mod@structured).
//! - Blocks: [`layer_norm`](mod@layer_norm), [`rms_norm`](mod@rms_norm), [`gelu`](mod@gelu),
//!   [`swiglu`](mod@swiglu), [`feed_forward`], [`dropout`](mod@dropout), [`philox`], [`block`], [`transformer`].
//! - Types: everything is generic over f32 and f64; [`cast`](mod@cast) has the half types, which are only stored.
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

pub mod alibi;
mod allocation;
pub mod block;
pub mod blocked;
pub mod cache;
pub mod cache_content;
pub mod cache_file;
pub mod cache_rope;
pub mod cache_write;
pub mod cast;
mod checks;
mod code_memory;
pub mod cross_cache;
pub mod dropout;
pub mod errors;
pub mod eviction;
pub mod feed_forward;
pub mod flash;
pub mod float;
mod fp8;
pub mod gated_linear;
pub mod gelu;
mod key_groups;
pub mod kivi_cache;
pub mod kv_cache;
mod kv_slots;
pub mod latent_cache;
pub mod layer_norm;
pub mod linear_attention;
pub mod linear_chunked;
pub mod linear_recurrent;
pub mod masks;
mod memory;
pub mod merge;
pub mod mha;
pub mod mla;
pub mod mla_absorbed;
pub mod packing;
pub mod page_pool;
pub mod paged_cache;
pub mod per_head_cache;
pub mod philox;
pub mod quantise;
pub mod quantised_cache;
pub mod relative_bias;
pub mod rms_norm;
pub mod rope;
pub mod rope_scaling;
pub mod rotating_cache;
pub mod rows;
pub mod scoring;
pub mod sdpa;
pub mod simd;
pub mod sinusoidal;
pub mod softmax;
pub mod sparse;
pub mod sparse_patterns;
pub mod split_kv;
pub mod structured;
pub mod swiglu;
mod track;
pub mod transformer;
pub mod varlen;

pub use alibi::{AlibiSteps, alibi, alibi_slopes, alibi_steps};
pub use block::{Block, BlockOptions, Norm, NormKind};
pub use blocked::blocked;
pub use cache::{Append, Cache, Held, Padding, PageCounts, Sizes, Stats};
pub use cache_file::{load, save};
pub use cache_rope::RopeAt;
pub use cache_write::cache_write;
pub use cast::{Stored, cast, narrow, widen};
pub use cross_cache::CrossCache;
pub use dropout::{Dropout, DropoutSteps, dropout, dropout_steps};
pub use errors::{AttentionError, Fault, Result};
pub use eviction::{Budget, Policy};
pub use feed_forward::{Activation, FeedForward};
pub use flash::{Tiles, flash};
pub use float::Float;
pub use gated_linear::{GatedLinear, Rule, gated_linear};
pub use gelu::{Approximate, gelu};
pub use kivi_cache::KiviCache;
pub use kv_cache::KvCache;
pub use latent_cache::LatentCache;
pub use layer_norm::{LayerNormSteps, layer_norm, layer_norm_steps};
pub use linear_attention::{LinearState, linear_attention};
pub use linear_chunked::linear_chunked;
pub use linear_recurrent::linear_recurrent;
pub use masks::{Mask, Offset, Window, visible};
pub use merge::{OutputLse, merge};
pub use mha::{MhaOptions, MhaSteps, MultiHeadAttention};
pub use mla::{MlaOptions, MlaSteps, MultiHeadLatentAttention};
pub use packing::{Packing, unpack};
pub use page_pool::{PagePool, PageSizes};
pub use paged_cache::PagedCache;
pub use per_head_cache::PerHeadCache;
pub use philox::philox_words;
pub use quantise::{Codes, Format, Quantisation, quantise, restore};
pub use quantised_cache::QuantisedCache;
pub use relative_bias::{RelativeBias, RelativeBiasSteps, relative_bias, relative_bias_steps};
pub use rms_norm::rms_norm;
pub use rope::{Rope, RopeSteps, RopeTables, rope, rope_steps};
pub use rope_scaling::RopeScaling;
pub use rotating_cache::RotatingCache;
pub use rows::Rows;
pub use scoring::{Scoring, ScoringSteps, scoring, scoring_steps};
pub use sdpa::{Sdpa, Steps, sdpa, sdpa_steps};
pub use simd::{Tier, sdpa_simd, sdpa_threads, varlen_simd};
pub use sinusoidal::{Sinusoidal, SinusoidalSteps, sinusoidal, sinusoidal_steps};
pub use softmax::{softmax, softmax_lse};
pub use sparse::{SparseSteps, sparse, sparse_steps};
pub use sparse_patterns::{Pattern, sparse_mask};
pub use split_kv::split_kv;
pub use structured::{StructuredSteps, structured, structured_steps};
pub use swiglu::swiglu;
pub use transformer::{Transformer, TransformerSteps};
pub use varlen::{Varlen, varlen};
