//! The closed set of errors. Every port raises the same code for the same bad call.
//!
//! A message names the function, the argument, what was expected and what came. A call that fails
//! has changed nothing.

use std::fmt::{self, Display};

/// What every fallible function of this crate returns.
pub type Result<T> = std::result::Result<T, AttentionError>;

/// Why a call was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttentionError {
    /// Sizes or ranks that do not fit together.
    #[error("{0}")]
    ShapeMismatch(Fault),
    /// A number type that does not fit: that of a cache file. In a call Rust's own types exclude it; the bindings
    /// raise it.
    #[error("{0}")]
    DtypeMismatch(Fault),
    /// A scalar option outside its range, or two options that exclude each other.
    #[error("{0}")]
    InvalidConfig(Fault),
    /// A cache without room for what it was given.
    #[error("{0}")]
    CapacityExceeded(Fault),
    /// A file that cannot be read or written, or is not what it should be.
    #[error("{0}")]
    InvalidFile(Fault),
    /// A legal request that this implementation, or this machine, does not offer.
    #[error("{0} is not offered here")]
    Unsupported(String),
    /// Anything unforeseen.
    #[error("{0}")]
    Internal(String),
}

impl AttentionError {
    /// The stable name that every language shares.
    ///
    /// ```
    /// use rosetta_attention::AttentionError;
    /// assert_eq!(AttentionError::Unsupported("tier.avx512".into()).code(), "unsupported");
    /// ```
    pub fn code(&self) -> &'static str {
        match self {
            Self::ShapeMismatch(_) => "shape_mismatch",
            Self::DtypeMismatch(_) => "dtype_mismatch",
            Self::InvalidConfig(_) => "invalid_config",
            Self::CapacityExceeded(_) => "capacity_exceeded",
            Self::InvalidFile(_) => "invalid_request",
            Self::Unsupported(_) => "unsupported",
            Self::Internal(_) => "internal",
        }
    }
}

/// The four parts of a message: `function: argument: expected …, got …`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The function that was called.
    pub function: &'static str,
    /// The argument at fault.
    pub argument: &'static str,
    /// What it should have been.
    pub expected: String,
    /// What it was.
    pub got: String,
}

impl Fault {
    /// A fault of `argument` in a call of `function`.
    pub fn new(
        function: &'static str,
        argument: &'static str,
        expected: impl Display,
        got: impl Display,
    ) -> Self {
        Self { function, argument, expected: expected.to_string(), got: got.to_string() }
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { function, argument, expected, got } = self;
        write!(f, "{function}: {argument}: expected {expected}, got {got}")
    }
}
