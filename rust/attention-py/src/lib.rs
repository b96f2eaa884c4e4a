//! The extension module `rosetta_attention_rs._rust`: `rosetta_attention` on NumPy arrays.
//!
//! Thin: Python objects in (`arguments`), one call of the core without the GIL and errors as Python
//! exceptions (`errors`), arrays out without a copy. The public API, its signatures and its
//! docstrings are in the Python package around it.

mod arguments;
mod arrays;
mod blocks;
mod cache_kinds;
mod cache_write;
mod caches;
mod elements;
mod errors;
mod eviction;
mod family;
mod linear;
mod masks;
mod mha;
mod mla;
mod norms;
mod positions;
mod quantised;
mod sdpa;
mod softmax;
mod sparse;
mod weights;

use pyo3::prelude::*;

/// The module that the Python package wraps.
#[pymodule]
fn _rust(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("__rustc__", env!("RUSTC_VERSION"))?;
    module.add_function(wrap_pyfunction!(softmax::softmax_lse, module)?)?;
    module.add_function(wrap_pyfunction!(masks::visible, module)?)?;
    module.add_function(wrap_pyfunction!(sdpa::sdpa, module)?)?;
    module.add_function(wrap_pyfunction!(sdpa::sdpa_steps, module)?)?;
    module.add_function(wrap_pyfunction!(sdpa::sdpa_simd, module)?)?;
    module.add_function(wrap_pyfunction!(sdpa::sdpa_threads, module)?)?;
    module.add_function(wrap_pyfunction!(sdpa::simd_tiers, module)?)?;
    module.add_function(wrap_pyfunction!(family::blocked, module)?)?;
    module.add_function(wrap_pyfunction!(family::flash, module)?)?;
    module.add_function(wrap_pyfunction!(family::split_kv, module)?)?;
    module.add_function(wrap_pyfunction!(family::merge, module)?)?;
    module.add_function(wrap_pyfunction!(family::varlen, module)?)?;
    module.add_function(wrap_pyfunction!(family::varlen_simd, module)?)?;
    module.add_function(wrap_pyfunction!(family::scoring, module)?)?;
    module.add_function(wrap_pyfunction!(mha::mha, module)?)?;
    module.add_function(wrap_pyfunction!(mha::unpack, module)?)?;
    module.add_function(wrap_pyfunction!(positions::sinusoidal, module)?)?;
    module.add_function(wrap_pyfunction!(positions::rope, module)?)?;
    module.add_function(wrap_pyfunction!(positions::alibi, module)?)?;
    module.add_function(wrap_pyfunction!(positions::alibi_slopes, module)?)?;
    module.add_function(wrap_pyfunction!(positions::relative_bias, module)?)?;
    module.add_function(wrap_pyfunction!(elements::cast, module)?)?;
    module.add_function(wrap_pyfunction!(elements::dropout, module)?)?;
    module.add_function(wrap_pyfunction!(norms::layer_norm, module)?)?;
    module.add_function(wrap_pyfunction!(norms::rms_norm, module)?)?;
    module.add_function(wrap_pyfunction!(norms::gelu, module)?)?;
    module.add_function(wrap_pyfunction!(norms::swiglu, module)?)?;
    module.add_function(wrap_pyfunction!(cache_write::cache_write, module)?)?;
    module.add_function(wrap_pyfunction!(linear::linear_attention, module)?)?;
    module.add_function(wrap_pyfunction!(linear::linear_recurrent, module)?)?;
    module.add_function(wrap_pyfunction!(linear::linear_chunked, module)?)?;
    module.add_function(wrap_pyfunction!(linear::gated_linear, module)?)?;
    module.add_function(wrap_pyfunction!(sparse::sparse_mask, module)?)?;
    module.add_function(wrap_pyfunction!(sparse::pattern_keys, module)?)?;
    module.add_function(wrap_pyfunction!(sparse::sparse, module)?)?;
    module.add_function(wrap_pyfunction!(sparse::structured, module)?)?;
    module.add_function(wrap_pyfunction!(sparse::philox_words, module)?)?;
    module.add_function(wrap_pyfunction!(mla::mla, module)?)?;
    module.add_function(wrap_pyfunction!(blocks::norm, module)?)?;
    module.add_function(wrap_pyfunction!(blocks::feed_forward, module)?)?;
    module.add_function(wrap_pyfunction!(blocks::block, module)?)?;
    module.add_function(wrap_pyfunction!(blocks::transformer, module)?)?;
    module.add_function(wrap_pyfunction!(mha::decode, module)?)?;
    module.add_function(wrap_pyfunction!(quantised::quantise, module)?)?;
    module.add_function(wrap_pyfunction!(quantised::restore, module)?)?;
    module.add_function(wrap_pyfunction!(cache_kinds::kv_cache, module)?)?;
    module.add_function(wrap_pyfunction!(cache_kinds::rotating_cache, module)?)?;
    module.add_function(wrap_pyfunction!(cache_kinds::quantised_cache, module)?)?;
    module.add_function(wrap_pyfunction!(cache_kinds::per_head_cache, module)?)?;
    module.add_function(wrap_pyfunction!(cache_kinds::kivi_cache, module)?)?;
    module.add_function(wrap_pyfunction!(cache_kinds::latent_cache, module)?)?;
    module.add_function(wrap_pyfunction!(cache_kinds::cross_cache, module)?)?;
    module.add_class::<cache_kinds::PagePool>()?;
    module.add_class::<caches::Cache>()
}
