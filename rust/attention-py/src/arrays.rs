//! NumPy arrays in and out: element type and rank are checked, and halves are widened and narrowed.
//!
//! This is the one place where a float type that is only stored meets the one that it is computed in: an
//! argument of type `S` comes as a view of `S::Compute`, a result of `S::Compute` goes out as `S`.

use ndarray::{Array, ArrayView, CowArray, Dimension, Ix4, IxDyn};
use numpy::{
    Element, IntoPyArray, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use rosetta_attention::AttentionError::{DtypeMismatch, ShapeMismatch};
use rosetta_attention::{Float, Stored, narrow, widen};

use crate::errors::refuse;

/// Any Python object.
pub type Object<'py> = Bound<'py, PyAny>;

/// The float types that arrays may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    F16,
    Bf16,
    F32,
    F64,
}

/// Evaluates an expression with the element type of a kind under a name.
macro_rules! with_float {
    ($kind:expr, $float:ident => $body:expr) => {
        match $kind {
            $crate::arrays::Kind::F16 => {
                type $float = ::half::f16;
                $body
            }
            $crate::arrays::Kind::Bf16 => {
                type $float = ::half::bf16;
                $body
            }
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

impl Named for half::f16 {
    const NAME: &'static str = "float16";
}

impl Named for half::bf16 {
    const NAME: &'static str = "bfloat16";
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

impl Named for u8 {
    const NAME: &'static str = "uint8";
}

impl Named for i64 {
    const NAME: &'static str = "int64";
}

/// A float type of arrays, whose compute type is one, too.
pub trait Floating: Named + Stored<Compute: Named + Float> {}

impl<S: Named + Stored<Compute: Named + Float>> Floating for S {}

/// Which float type an array has.
pub fn float_kind(
    function: &'static str,
    argument: &'static str,
    x: &Object<'_>,
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
pub fn kind_of_dtype(function: &'static str, dtype: &Object<'_>) -> PyResult<Kind> {
    kind_of_name(dtype.py(), function, "dtype", dtype.str()?.extract()?)
}

fn kind_of_name(
    py: Python<'_>,
    function: &'static str,
    argument: &'static str,
    name: String,
) -> PyResult<Kind> {
    match name.as_str() {
        half::f16::NAME => Ok(Kind::F16),
        half::bf16::NAME => Ok(Kind::Bf16),
        f32::NAME => Ok(Kind::F32),
        f64::NAME => Ok(Kind::F64),
        _ => {
            let expected = "float16, bfloat16, float32 or float64";
            Err(refuse(py, DtypeMismatch, function, argument, expected, name))
        }
    }
}

/// An array of the element type `T`, borrowed.
///
/// It is copied only where its elements are not where Rust may read them: at an odd address, or at
/// distances that are no multiple of their size.
pub fn array<'py, T: Named>(
    function: &'static str,
    argument: &'static str,
    x: &Object<'py>,
) -> PyResult<PyReadonlyArrayDyn<'py, T>> {
    let x = match x.cast::<PyArrayDyn<T>>() {
        Ok(x) => x.clone(),
        // A NumPy scalar, which has an element type as well, as an array of rank 0. The name is asked for here only: it
        // takes longer than all other checks of an array.
        Err(_) => {
            let name = dtype_name(x)?;
            if name != T::NAME {
                return Err(refuse(x.py(), DtypeMismatch, function, argument, T::NAME, name));
            }
            PyModule::import(x.py(), "numpy")?.call_method1("asarray", (x,))?.cast_into()?
        }
    };
    let whole = |stride: &isize| stride % size_of::<T>() as isize == 0;
    let readable = x.is_aligned() && !x.is_empty() && x.strides().iter().all(whole);
    let x = if readable { x } else { x.call_method0("copy")?.cast_into()? };
    Ok(x.try_readonly()?)
}

/// `array`, or `None`.
pub fn optional_array<'py, T: Named>(
    function: &'static str,
    argument: &'static str,
    x: &Object<'py>,
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

/// `view` of an array that may be absent.
pub fn optional_view<'a, T: Named, D: Dimension>(
    py: Python<'_>,
    function: &'static str,
    argument: &'static str,
    x: Option<&'a PyReadonlyArrayDyn<'_, T>>,
    expected: &str,
) -> PyResult<Option<ArrayView<'a, T, D>>> {
    x.map(|x| view(py, function, argument, x, expected)).transpose()
}

/// The numbers of an array of any rank, in their compute type.
pub fn wide<'a, S: Floating>(x: &'a PyReadonlyArrayDyn<'_, S>) -> CowArray<'a, S::Compute, IxDyn> {
    widen(x.as_array())
}

/// The numbers of an array of a fixed rank, in their compute type.
pub fn wide_view<'a, S: Floating, D: Dimension>(
    py: Python<'_>,
    function: &'static str,
    argument: &'static str,
    x: &'a PyReadonlyArrayDyn<'_, S>,
    expected: &str,
) -> PyResult<CowArray<'a, S::Compute, D>> {
    Ok(widen(view(py, function, argument, x, expected)?))
}

/// `wide_view` of an array that may be absent.
pub fn optional_wide_view<'a, S: Floating, D: Dimension>(
    py: Python<'_>,
    function: &'static str,
    argument: &'static str,
    x: Option<&'a PyReadonlyArrayDyn<'_, S>>,
    expected: &str,
) -> PyResult<Option<CowArray<'a, S::Compute, D>>> {
    x.map(|x| wide_view(py, function, argument, x, expected)).transpose()
}

/// Queries, keys and values.
pub fn wide_4<'a, S: Floating>(
    py: Python<'_>,
    function: &'static str,
    argument: &'static str,
    x: &'a PyReadonlyArrayDyn<'_, S>,
) -> PyResult<CowArray<'a, S::Compute, Ix4>> {
    wide_view(py, function, argument, x, "rank 4 (B, H, T, D)")
}

/// A result, in the type of the inputs. What the rules keep in the compute type, an lse, goes by `give`.
pub fn give_narrow<'py, S: Floating, D: Dimension>(
    py: Python<'py>,
    x: Array<S::Compute, D>,
) -> Object<'py> {
    give(py, narrow::<S, D>(x))
}

/// A result as it is.
pub fn give<T: Element, D: Dimension>(py: Python<'_>, x: Array<T, D>) -> Object<'_> {
    x.into_pyarray(py).into_any()
}

/// Of anything but an array the name of its type.
fn dtype_name(x: &Object<'_>) -> PyResult<String> {
    match x.getattr("dtype") {
        Ok(dtype) => dtype.str()?.extract(),
        Err(_) => x.get_type().name()?.extract(),
    }
}
