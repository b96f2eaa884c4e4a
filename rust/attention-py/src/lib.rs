//! The extension module `rosetta_attention_rs._rust`: `rosetta_attention` on NumPy arrays.
//!
//! Thin: Python objects in (`arguments`), one call of the core without the GIL and errors as Python
//! exceptions (`errors`), arrays out without a copy. The public API, its signatures and its
//! docstrings are in the Python package around it.

mod arguments;
mod arrays;
mod errors;
mod functions;
mod kv_cache;
mod mha;

use pyo3::prelude::*;

/// The module that the Python package wraps.
#[pymodule]
fn _rust(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("__rustc__", env!("RUSTC_VERSION"))?;
    module.add_function(wrap_pyfunction!(functions::softmax_lse, module)?)?;
    module.add_function(wrap_pyfunction!(functions::visible, module)?)?;
    module.add_function(wrap_pyfunction!(functions::sdpa, module)?)?;
    module.add_function(wrap_pyfunction!(functions::sdpa_steps, module)?)?;
    module.add_function(wrap_pyfunction!(functions::sdpa_simd, module)?)?;
    module.add_function(wrap_pyfunction!(functions::simd_tiers, module)?)?;
    module.add_function(wrap_pyfunction!(mha::mha, module)?)?;
    module.add_class::<kv_cache::KvCache>()
}
