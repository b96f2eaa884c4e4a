//! NumPy arrays in: element type and rank are checked, nothing is copied.

use ndarray::{ArrayView, ArrayView4, Dimension};
use numpy::{Element, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;
use rosetta_attention::AttentionError::{DtypeMismatch, ShapeMismatch};

use crate::errors::refuse;

/// The float types of the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    F32,
    F64,
}

/// Evaluates an expression with the element type of a kind under a name.
macro_rules! with_float {
    ($kind:expr, $float:ident => $body:expr) => {
        match $kind {
            $crate::arrays::Kind::F32 => {
                type $float = f32;
                $body
            }
            $crate::arrays::Kind::F64 => {
                type $float = f64;
                $body
            }
        }
    };
}
pub(crate) use with_float;

/// An element type and its name in NumPy.
pub trait Named: Element {
    const NAME: &'static str;
}

impl Named for f32 {
    const NAME: &'static str = "float32";
}

impl Named for f64 {
    const NAME: &'static str = "float64";
}

impl Named for bool {
    const NAME: &'static str = "bool";
}

impl Named for i64 {
    const NAME: &'static str = "int64";
}

/// Which float type an array has.
pub fn float_kind(
    function: &'static str,
    argument: &'static str,
    x: &Bound<'_, PyAny>,
) -> PyResult<Kind> {
    if x.cast::<PyArrayDyn<f32>>().is_ok() {
        Ok(Kind::F32)
    } else if x.cast::<PyArrayDyn<f64>>().is_ok() {
        Ok(Kind::F64)
    } else {
        kind_of_name(x.py(), function, argument, dtype_name(x)?)
    }
}

/// Which float type a NumPy dtype is.
pub fn kind_of_dtype(function: &'static str, dtype: &Bound<'_, PyAny>) -> PyResult<Kind> {
    kind_of_name(dtype.py(), function, "dtype", dtype.str()?.extract()?)
}

fn kind_of_name(
    py: Python<'_>,
    function: &'static str,
    argument: &'static str,
    name: String,
) -> PyResult<Kind> {
    match name.as_str() {
        f32::NAME => Ok(Kind::F32),
        f64::NAME => Ok(Kind::F64),
        _ => Err(refuse(py, DtypeMismatch, function, argument, "float32 or float64", name)),
    }
}

/// An array of the element type `T`, borrowed.
///
/// It is copied only where its elements are not where Rust may read them: at an odd address, or at
/// distances that are no multiple of their size.
pub fn array<'py, T: Named>(
    function: &'static str,
    argument: &'static str,
    x: &Bound<'py, PyAny>,
) -> PyResult<PyReadonlyArrayDyn<'py, T>> {
    let x = match x.cast::<PyArrayDyn<T>>() {
        Ok(x) => x.clone(),
        Err(_) => from_scalar(function, argument, x)?,
    };
    let whole = |stride: &isize| stride % size_of::<T>() as isize == 0;
    let readable = x.is_aligned() && !x.is_empty() && x.strides().iter().all(whole);
    let x = if readable { x } else { x.call_method0("copy")?.cast_into()? };
    Ok(x.try_readonly()?)
}

/// A NumPy scalar, which has an element type as well, as an array of rank 0.
fn from_scalar<'py, T: Named>(
    function: &'static str,
    argument: &'static str,
    x: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArrayDyn<T>>> {
    let name = dtype_name(x)?;
    if name != T::NAME {
        return Err(refuse(x.py(), DtypeMismatch, function, argument, T::NAME, name));
    }
    Ok(PyModule::import(x.py(), "numpy")?.call_method1("asarray", (x,))?.cast_into()?)
}

/// `array`, or `None`.
pub fn optional_array<'py, T: Named>(
    function: &'static str,
    argument: &'static str,
    x: &Bound<'py, PyAny>,
) -> PyResult<Option<PyReadonlyArrayDyn<'py, T>>> {
    if x.is_none() { Ok(None) } else { array(function, argument, x).map(Some) }
}

/// The array as a view of a fixed rank.
pub fn view<'a, T: Named, D: Dimension>(
    py: Python<'_>,
    function: &'static str,
    argument: &'static str,
    x: &'a PyReadonlyArrayDyn<'_, T>,
    expected: &str,
) -> PyResult<ArrayView<'a, T, D>> {
    let rank = x.ndim();
    x.as_array().into_dimensionality().map_err(|_| {
        refuse(py, ShapeMismatch, function, argument, expected, format_args!("rank {rank}"))
    })
}

/// Queries, keys and values.
pub fn view_4<'a, T: Named>(
    py: Python<'_>,
    function: &'static str,
    argument: &'static str,
    x: &'a PyReadonlyArrayDyn<'_, T>,
) -> PyResult<ArrayView4<'a, T>> {
    view(py, function, argument, x, "rank 4 (B, H, T, D)")
}

/// Of anything but an array the name of its type.
fn dtype_name(x: &Bound<'_, PyAny>) -> PyResult<String> {
    match x.getattr("dtype") {
        Ok(dtype) => dtype.str()?.extract(),
        Err(_) => x.get_type().name()?.extract(),
    }
}
