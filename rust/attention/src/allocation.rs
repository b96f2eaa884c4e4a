//! Memory for sizes that a caller names: an error where it cannot be had, and Rust by itself would end the process.

use ndarray::{Array, Dimension, IntoDimension};

use crate::errors::{AttentionError, Fault, Result};

/// For whom memory is wanted, and the error of the one who asks for more than there is.
#[derive(Clone, Copy)]
pub(crate) struct Purpose {
    /// What a call is refused with.
    pub error: fn(Fault) -> AttentionError,
    /// The function that was called.
    pub function: &'static str,
    /// The argument that names the sizes.
    pub argument: &'static str,
}

impl Purpose {
    /// Of an option: `InvalidConfig`.
    pub(crate) fn option(function: &'static str, argument: &'static str) -> Self {
        Self { error: AttentionError::InvalidConfig, function, argument }
    }

    /// Of what a cache is given: `CapacityExceeded`.
    pub(crate) fn append() -> Self {
        Self { error: AttentionError::CapacityExceeded, function: "append", argument: "k" }
    }

    /// Of what a cache finds in a file: `CapacityExceeded`.
    pub(crate) fn load() -> Self {
        Self { error: AttentionError::CapacityExceeded, function: "load", argument: "file" }
    }

    /// `count` times `element`.
    pub(crate) fn list<E: Clone>(self, count: usize, element: E) -> Result<Vec<E>> {
        let mut elements = vec![];
        elements.try_reserve_exact(count).map_err(|_| self.refusal(&[count]))?;
        elements.resize(count, element);
        Ok(elements)
    }

    /// An array of `element` alone.
    pub(crate) fn array<E: Clone, Sh: IntoDimension>(
        self,
        shape: Sh,
        element: E,
    ) -> Result<Array<E, Sh::Dim>> {
        let shape = shape.into_dimension();
        let refusal = || self.refusal(shape.slice());
        let count = shape.slice().iter().try_fold(1_usize, |count, &n| count.checked_mul(n));
        let elements = count.map(|count| self.list(count, element).map_err(|_| refusal()));
        let elements = elements.ok_or_else(refusal)??;
        Array::from_shape_vec(shape.clone(), elements).map_err(|_| refusal())
    }

    fn refusal(self, shape: &[usize]) -> AttentionError {
        let expected = "sizes that there is memory for";
        (self.error)(Fault::new(self.function, self.argument, expected, format_args!("{shape:?}")))
    }
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    #[test]
    fn what_no_memory_holds_is_refused() {
        let purpose = Purpose::option("f", "n");
        assert_eq!(purpose.array((2, 1), 3), Ok(array![[3], [3]]));
        assert_eq!(purpose.list(0, 3), Ok(vec![]));
        let message = "f: n: expected sizes that there is memory for, got [1000000000000000]";
        assert_eq!(purpose.list(1_000_000_000_000_000, 0_u64).unwrap_err().to_string(), message);
        for shape in [(1 << 50, 1 << 8), (usize::MAX, 2), (usize::MAX, 0)] {
            assert_eq!(purpose.array(shape, 0_u64).unwrap_err().code(), "invalid_config");
        }
        assert_eq!(Purpose::append().list(usize::MAX, 0).unwrap_err().code(), "capacity_exceeded");
    }
}
