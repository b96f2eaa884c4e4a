//! The one place where the GIL is released and errors of the core become Python exceptions.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::prelude::*;
use pyo3::types::PyModule;
use rosetta_attention::{AttentionError, Fault, Result};

/// Runs `work` without the GIL.
///
/// What it reads must be views: an array that Python code changes meanwhile gives a mixture of old
/// and new numbers, nothing worse.
pub fn released<R: Send>(py: Python<'_>, work: impl FnOnce() -> Result<R> + Send) -> PyResult<R> {
    // A panic is a bug here, and must not end the interpreter: it becomes the code `internal`.
    let result = py.detach(|| catch_unwind(AssertUnwindSafe(work)));
    let result =
        result.unwrap_or_else(|_| Err(AttentionError::Internal("the call panicked".into())));
    result.map_err(|error| exception(py, &error))
}

/// The Python exception of an error, which is a class of the package's `errors.py`.
pub fn exception(py: Python<'_>, error: &AttentionError) -> PyErr {
    let (class, argument) = match error {
        AttentionError::ShapeMismatch(fault) => ("ShapeMismatch", fault.to_string()),
        AttentionError::DtypeMismatch(fault) => ("DtypeMismatch", fault.to_string()),
        AttentionError::InvalidConfig(fault) => ("InvalidConfig", fault.to_string()),
        AttentionError::CapacityExceeded(fault) => ("CapacityExceeded", fault.to_string()),
        AttentionError::InvalidFile(fault) => ("InvalidFile", fault.to_string()),
        AttentionError::Unsupported(feature) => ("Unsupported", feature.clone()),
        AttentionError::Internal(message) => ("AttentionError", message.clone()),
    };
    let raised = PyModule::import(py, "rosetta_attention_rs.errors")
        .and_then(|errors| errors.getattr(class)?.call1((argument,)));
    raised.map_or_else(|failure| failure, PyErr::from_value)
}

/// An exception of the given kind, for what the types of the core exclude.
pub fn refuse(
    py: Python<'_>,
    kind: fn(Fault) -> AttentionError,
    function: &'static str,
    argument: &'static str,
    expected: &str,
    got: impl std::fmt::Display,
) -> PyErr {
    exception(py, &kind(Fault::new(function, argument, expected, got)))
}
