//! The arrays of a layer of the Python package, held while the core looks at them.

use ndarray::{CowArray, Dimension, Ix1, Ix2};
use numpy::PyReadonlyArrayDyn;
use pyo3::prelude::*;

use crate::arrays::{Floating, Object, array, optional_array, wide_view};

/// What is expected of a weight.
pub const MATRIX: &str = "rank 2 (out, in)";
/// What is expected of a bias, or of the weight of a norm.
pub const VECTOR: &str = "rank 1 (out,)";

/// Attributes of one object, by their names. Weights are (out, in).
pub struct Weights<'py, S: Floating> {
    function: &'static str,
    arrays: Vec<(&'static str, PyReadonlyArrayDyn<'py, S>)>,
}

impl<'py, S: Floating> Weights<'py, S> {
    /// The `required` attributes of a layer, and those of the `optional` ones that are not None.
    pub fn extract(
        function: &'static str,
        layer: &Object<'py>,
        required: &[&'static str],
        optional: &[&'static str],
    ) -> PyResult<Self> {
        let mut arrays = vec![];
        for &name in required {
            arrays.push((name, array(function, name, &layer.getattr(name)?)?));
        }
        for &name in optional {
            let found = optional_array(function, name, &layer.getattr(name)?)?;
            arrays.extend(found.map(|x| (name, x)));
        }
        Ok(Self { function, arrays })
    }

    /// A required weight.
    pub fn matrix(
        &self,
        py: Python<'_>,
        name: &'static str,
    ) -> PyResult<CowArray<'_, S::Compute, Ix2>> {
        Ok(self.optional_matrix(py, name)?.expect("extracted as required"))
    }

    /// A weight, or `None`.
    pub fn optional_matrix(
        &self,
        py: Python<'_>,
        name: &'static str,
    ) -> PyResult<Option<CowArray<'_, S::Compute, Ix2>>> {
        self.find(py, name, MATRIX)
    }

    /// A bias or the weight of a norm, or `None`.
    pub fn optional_vector(
        &self,
        py: Python<'_>,
        name: &'static str,
    ) -> PyResult<Option<CowArray<'_, S::Compute, Ix1>>> {
        self.find(py, name, VECTOR)
    }

    fn find<D: Dimension>(
        &self,
        py: Python<'_>,
        name: &'static str,
        expected: &str,
    ) -> PyResult<Option<CowArray<'_, S::Compute, D>>> {
        let found = self.arrays.iter().find(|(other, _)| *other == name);
        found.map(|(_, x)| wide_view(py, self.function, name, x, expected)).transpose()
    }
}
