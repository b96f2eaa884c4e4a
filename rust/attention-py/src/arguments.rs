//! The options that sdpa, mha and a cache's attend share, from Python to the core.

use ndarray::{ArrayView1, ArrayViewD, CowArray, Ix1, IxDyn};
use numpy::{PyReadonlyArrayDyn, PyUntypedArray};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat};
use rosetta_attention::AttentionError::InvalidConfig;
use rosetta_attention::{Dropout, Mask, Offset, Sdpa, Window};

use crate::arrays::{
    Floating, Object, optional_array, optional_view, optional_wide_view, view, wide,
};
use crate::errors::refuse;

/// What is expected of lengths and offsets.
const ROW: &str = "shape (B,)";

/// Position of query 0, as it came.
pub enum StartArgument<'py> {
    One(i64),
    PerRow(PyReadonlyArrayDyn<'py, i64>),
}

/// The view that the core's `Offset` refers to.
pub enum Start<'a> {
    One(i64),
    PerRow(ArrayView1<'a, i64>),
}

impl StartArgument<'_> {
    pub fn view(
        &self,
        py: Python<'_>,
        function: &'static str,
        expected: &str,
    ) -> PyResult<Start<'_>> {
        match self {
            Self::One(offset) => Ok(Start::One(*offset)),
            Self::PerRow(offsets) => {
                Ok(Start::PerRow(view(py, function, "q_offset", offsets, expected)?))
            }
        }
    }
}

impl Start<'_> {
    pub fn offset(&self) -> Offset<'_> {
        match self {
            Self::One(offset) => Offset::One(*offset),
            Self::PerRow(offsets) => Offset::PerRow(offsets),
        }
    }
}

/// A `Mask` of the Python package.
pub struct MaskArguments<'py> {
    function: &'static str,
    keep: Option<PyReadonlyArrayDyn<'py, bool>>,
    causal: bool,
    window: Option<Window>,
    kv_lengths: Option<PyReadonlyArrayDyn<'py, i64>>,
    q_offset: Option<StartArgument<'py>>,
}

/// The views that the core's `Mask` refers to.
pub struct MaskViews<'a> {
    keep: Option<ArrayViewD<'a, bool>>,
    causal: bool,
    window: Option<Window>,
    kv_lengths: Option<ArrayView1<'a, i64>>,
    q_offset: Option<Start<'a>>,
}

impl<'py> MaskArguments<'py> {
    pub fn extract(function: &'static str, mask: &Object<'py>) -> PyResult<Self> {
        let py = mask.py();
        Ok(Self {
            function,
            keep: optional_array(function, "mask", &mask.getattr(intern!(py, "keep"))?)?,
            causal: flag(function, "causal", &mask.getattr(intern!(py, "causal"))?)?,
            window: optional_window(function, &mask.getattr(intern!(py, "window"))?)?,
            kv_lengths: optional_array(
                function,
                "kv_lengths",
                &mask.getattr(intern!(py, "kv_lengths"))?,
            )?,
            q_offset: optional_start(function, &mask.getattr(intern!(py, "q_offset"))?)?,
        })
    }

    pub fn views(&self, py: Python<'_>) -> PyResult<MaskViews<'_>> {
        let (name, kv_lengths) = (self.function, self.kv_lengths.as_ref());
        let q_offset = self.q_offset.as_ref();
        Ok(MaskViews {
            keep: self.keep.as_ref().map(|keep| keep.as_array()),
            causal: self.causal,
            window: self.window,
            kv_lengths: optional_view(py, name, "kv_lengths", kv_lengths, ROW)?,
            q_offset: q_offset.map(|start| start.view(py, name, ROW)).transpose()?,
        })
    }
}

impl MaskViews<'_> {
    pub fn mask(&self) -> Mask<'_> {
        Mask {
            keep: self.keep.as_deref(),
            causal: self.causal,
            window: self.window,
            kv_lengths: self.kv_lengths.as_deref(),
            q_offset: self.q_offset.as_ref().map(Start::offset),
        }
    }
}

/// All options of one call.
pub struct Arguments<'py, S: Floating> {
    mask: MaskArguments<'py>,
    bias: Option<PyReadonlyArrayDyn<'py, S>>,
    scale: Option<f64>,
    softcap: Option<f64>,
    sinks: Option<PyReadonlyArrayDyn<'py, S>>,
    dropout: Option<Dropout>,
}

/// The views that the core's `Sdpa` refers to.
pub struct Views<'a, T> {
    mask: MaskViews<'a>,
    bias: Option<CowArray<'a, T, IxDyn>>,
    scale: Option<f64>,
    softcap: Option<f64>,
    sinks: Option<CowArray<'a, T, Ix1>>,
    dropout: Option<Dropout>,
}

/// mask, bias, scale, softcap, sinks, dropout.
pub type Options<'py> =
    (Object<'py>, Object<'py>, Object<'py>, Object<'py>, Object<'py>, Object<'py>);

impl<'py, S: Floating> Arguments<'py, S> {
    pub fn extract(
        function: &'static str,
        (mask, bias, scale, softcap, sinks, dropout): &Options<'py>,
    ) -> PyResult<Self> {
        Ok(Self {
            mask: MaskArguments::extract(function, mask)?,
            bias: optional_array(function, "bias", bias)?,
            scale: optional_number(function, "scale", scale)?,
            softcap: optional_number(function, "softcap", softcap)?,
            sinks: optional_array(function, "sinks", sinks)?,
            dropout: optional_dropout(function, dropout)?,
        })
    }

    pub fn views(&self, py: Python<'_>) -> PyResult<Views<'_, S::Compute>> {
        let function = self.mask.function;
        let sinks = self.sinks.as_ref();
        Ok(Views {
            mask: self.mask.views(py)?,
            bias: self.bias.as_ref().map(wide),
            scale: self.scale,
            softcap: self.softcap,
            sinks: optional_wide_view(py, function, "sinks", sinks, "shape (Hq,)")?,
            dropout: self.dropout,
        })
    }
}

impl<T> Views<'_, T> {
    pub fn options(&self) -> Sdpa<'_, T> {
        Sdpa {
            mask: self.mask.mask(),
            bias: self.bias.as_deref(),
            scale: self.scale,
            softcap: self.softcap,
            sinks: self.sinks.as_deref(),
            dropout: self.dropout,
        }
    }
}

/// A `Dropout` of the Python package.
pub fn dropout(function: &'static str, x: &Object<'_>) -> PyResult<Dropout> {
    let (Ok(p), Ok(seed)) = (x.getattr("p"), x.getattr("seed")) else {
        return Err(refuse(x.py(), InvalidConfig, function, "dropout", "a Dropout or None", x));
    };
    let expected = "a number from 0 to 1";
    let p = real(&p).ok_or_else(|| refuse(x.py(), InvalidConfig, function, "p", expected, &p))?;
    Ok(Dropout { p, seed: size(function, "seed", &seed, 0)? as u64 })
}

fn optional_dropout(function: &'static str, x: &Object<'_>) -> PyResult<Option<Dropout>> {
    if x.is_none() { Ok(None) } else { dropout(function, x).map(Some) }
}

/// An integer >= `least`.
pub fn size(
    function: &'static str,
    argument: &'static str,
    x: &Object<'_>,
    least: usize,
) -> PyResult<usize> {
    let size = integer(x).and_then(|n| usize::try_from(n).ok()).filter(|&n| n >= least);
    size.ok_or_else(|| {
        refuse(x.py(), InvalidConfig, function, argument, &format!("an integer >= {least}"), x)
    })
}

/// An integer >= 0, or `None`.
pub fn optional_size(
    function: &'static str,
    argument: &'static str,
    x: &Object<'_>,
) -> PyResult<Option<usize>> {
    if x.is_none() { Ok(None) } else { size(function, argument, x, 0).map(Some) }
}

/// Any integer.
pub fn whole(function: &'static str, argument: &'static str, x: &Object<'_>) -> PyResult<i64> {
    integer(x).ok_or_else(|| refuse(x.py(), InvalidConfig, function, argument, "an integer", x))
}

/// Anything with `__index__` that is neither a bool nor an array.
pub fn integer(x: &Object<'_>) -> Option<i64> {
    let excluded = x.is_instance_of::<PyBool>() || x.is_instance_of::<PyUntypedArray>();
    if excluded { None } else { x.extract().ok() }
}

/// Any real number that is no bool.
pub fn real(x: &Object<'_>) -> Option<f64> {
    let number = || PyModule::import(x.py(), "numbers")?.getattr("Real");
    let real = x.is_instance_of::<PyFloat>()
        || number().and_then(|number| x.is_instance(&number)).unwrap_or(false);
    if real && !x.is_instance_of::<PyBool>() { x.extract().ok() } else { None }
}

/// A number; the core checks its range.
pub fn number(function: &'static str, argument: &'static str, x: &Object<'_>) -> PyResult<f64> {
    real(x).ok_or_else(|| refuse(x.py(), InvalidConfig, function, argument, "a finite number", x))
}

/// `number`, or `None`.
pub fn optional_number(
    function: &'static str,
    argument: &'static str,
    x: &Object<'_>,
) -> PyResult<Option<f64>> {
    if x.is_none() { Ok(None) } else { number(function, argument, x).map(Some) }
}

/// True or False.
pub fn flag(function: &'static str, argument: &'static str, x: &Object<'_>) -> PyResult<bool> {
    x.extract().map_err(|_| refuse(x.py(), InvalidConfig, function, argument, "True or False", x))
}

/// A pair of integers or `None`s, or `None`.
pub fn optional_window(function: &'static str, x: &Object<'_>) -> PyResult<Option<Window>> {
    if x.is_none() {
        return Ok(None);
    }
    let bad = |expected| refuse(x.py(), InvalidConfig, function, "window", expected, x);
    let sides: Vec<Object<'_>> = x.extract().map_err(|_| bad("a pair (left, right)"))?;
    let [left, right] = &sides[..] else {
        return Err(bad("a pair (left, right)"));
    };
    let side = |x: &Object<'_>| {
        let size = integer(x).and_then(|n| usize::try_from(n).ok());
        if x.is_none() || size.is_some() {
            Ok(size)
        } else {
            Err(bad("None or an integer >= 0 on each side"))
        }
    };
    Ok(Some((side(left)?, side(right)?)))
}

/// An integer or an array, or `None`.
pub fn optional_start<'py>(
    function: &'static str,
    x: &Object<'py>,
) -> PyResult<Option<StartArgument<'py>>> {
    if x.is_none() {
        return Ok(None);
    }
    if let Some(offset) = integer(x) {
        return Ok(Some(StartArgument::One(offset)));
    }
    if !x.hasattr("dtype")? {
        return Err(refuse(
            x.py(),
            InvalidConfig,
            function,
            "q_offset",
            "an integer or int64 (B,)",
            x,
        ));
    }
    Ok(optional_array(function, "q_offset", x)?.map(StartArgument::PerRow))
}
