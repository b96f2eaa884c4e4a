//! The options that sdpa, mha and a cache's attend share, from Python to the core.

use ndarray::{ArrayView1, ArrayViewD, Ix1};
use numpy::{PyReadonlyArrayDyn, PyUntypedArray};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat};
use rosetta_attention::AttentionError::InvalidConfig;
use rosetta_attention::{Mask, Offset, Sdpa, Window};

use crate::arrays::{Named, optional_array, view};
use crate::errors::refuse;

/// Position of query 0, as it came.
enum Start<'py> {
    One(i64),
    PerRow(PyReadonlyArrayDyn<'py, i64>),
}

/// A `Mask` of the Python package.
pub struct MaskArguments<'py> {
    function: &'static str,
    keep: Option<PyReadonlyArrayDyn<'py, bool>>,
    causal: bool,
    window: Option<Window>,
    kv_lengths: Option<PyReadonlyArrayDyn<'py, i64>>,
    q_offset: Option<Start<'py>>,
}

/// The views that the core's `Mask` refers to.
pub struct MaskViews<'a> {
    keep: Option<ArrayViewD<'a, bool>>,
    causal: bool,
    window: Option<Window>,
    kv_lengths: Option<ArrayView1<'a, i64>>,
    one: Option<i64>,
    per_row: Option<ArrayView1<'a, i64>>,
}

impl<'py> MaskArguments<'py> {
    pub fn extract(function: &'static str, mask: &Bound<'py, PyAny>) -> PyResult<Self> {
        Ok(Self {
            function,
            keep: optional_array(function, "mask", &mask.getattr("keep")?)?,
            causal: flag(function, "causal", &mask.getattr("causal")?)?,
            window: window(function, &mask.getattr("window")?)?,
            kv_lengths: optional_array(function, "kv_lengths", &mask.getattr("kv_lengths")?)?,
            q_offset: start(function, &mask.getattr("q_offset")?)?,
        })
    }

    pub fn views(&self, py: Python<'_>) -> PyResult<MaskViews<'_>> {
        let row = |argument, x| view::<i64, Ix1>(py, self.function, argument, x, "shape (B,)");
        let (one, per_row) = match &self.q_offset {
            None => (None, None),
            Some(Start::One(offset)) => (Some(*offset), None),
            Some(Start::PerRow(offsets)) => (None, Some(row("q_offset", offsets)?)),
        };
        Ok(MaskViews {
            keep: self.keep.as_ref().map(|keep| keep.as_array()),
            causal: self.causal,
            window: self.window,
            kv_lengths: self.kv_lengths.as_ref().map(|x| row("kv_lengths", x)).transpose()?,
            one,
            per_row,
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
            q_offset: self.per_row.as_deref().map(Offset::PerRow).or(self.one.map(Offset::One)),
        }
    }
}

/// All options of one call.
pub struct Arguments<'py, T: Named> {
    mask: MaskArguments<'py>,
    bias: Option<PyReadonlyArrayDyn<'py, T>>,
    scale: Option<f64>,
    softcap: Option<f64>,
    sinks: Option<PyReadonlyArrayDyn<'py, T>>,
}

/// The views that the core's `Sdpa` refers to.
pub struct Views<'a, T> {
    mask: MaskViews<'a>,
    bias: Option<ArrayViewD<'a, T>>,
    scale: Option<f64>,
    softcap: Option<f64>,
    sinks: Option<ArrayView1<'a, T>>,
}

/// Any Python object.
pub type Object<'py> = Bound<'py, PyAny>;

/// mask, bias, scale, softcap, sinks.
pub type Options<'py> = (Object<'py>, Object<'py>, Object<'py>, Object<'py>, Object<'py>);

impl<'py, T: Named> Arguments<'py, T> {
    pub fn extract(
        function: &'static str,
        (mask, bias, scale, softcap, sinks): &Options<'py>,
    ) -> PyResult<Self> {
        Ok(Self {
            mask: MaskArguments::extract(function, mask)?,
            bias: optional_array(function, "bias", bias)?,
            scale: number(function, "scale", scale)?,
            softcap: number(function, "softcap", softcap)?,
            sinks: optional_array(function, "sinks", sinks)?,
        })
    }

    pub fn views(&self, py: Python<'_>) -> PyResult<Views<'_, T>> {
        let function = self.mask.function;
        let sinks = self.sinks.as_ref();
        Ok(Views {
            mask: self.mask.views(py)?,
            bias: self.bias.as_ref().map(|bias| bias.as_array()),
            scale: self.scale,
            softcap: self.softcap,
            sinks: sinks.map(|x| view(py, function, "sinks", x, "shape (Hq,)")).transpose()?,
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
        }
    }
}

/// An integer >= `least`.
pub fn size(
    function: &'static str,
    argument: &'static str,
    x: &Bound<'_, PyAny>,
    least: usize,
) -> PyResult<usize> {
    let size = integer(x).and_then(|n| usize::try_from(n).ok()).filter(|&n| n >= least);
    size.ok_or_else(|| {
        refuse(x.py(), InvalidConfig, function, argument, &format!("an integer >= {least}"), x)
    })
}

/// Anything with `__index__` that is neither a bool nor an array.
pub fn integer(x: &Bound<'_, PyAny>) -> Option<i64> {
    let excluded = x.is_instance_of::<PyBool>() || x.is_instance_of::<PyUntypedArray>();
    if excluded { None } else { x.extract().ok() }
}

fn number(
    function: &'static str,
    argument: &'static str,
    x: &Bound<'_, PyAny>,
) -> PyResult<Option<f64>> {
    if x.is_none() {
        return Ok(None);
    }
    let real = x.is_instance_of::<PyFloat>()
        || x.is_instance(&PyModule::import(x.py(), "numbers")?.getattr("Real")?)?;
    let value = if real && !x.is_instance_of::<PyBool>() { x.extract().ok() } else { None };
    value
        .map(Some)
        .ok_or_else(|| refuse(x.py(), InvalidConfig, function, argument, "a finite number", x))
}

fn flag(function: &'static str, argument: &'static str, x: &Bound<'_, PyAny>) -> PyResult<bool> {
    x.extract().map_err(|_| refuse(x.py(), InvalidConfig, function, argument, "True or False", x))
}

fn window(function: &'static str, x: &Bound<'_, PyAny>) -> PyResult<Option<Window>> {
    if x.is_none() {
        return Ok(None);
    }
    let bad = |expected| refuse(x.py(), InvalidConfig, function, "window", expected, x);
    let sides: Vec<Bound<'_, PyAny>> = x.extract().map_err(|_| bad("a pair (left, right)"))?;
    let [left, right] = &sides[..] else {
        return Err(bad("a pair (left, right)"));
    };
    let side = |x: &Bound<'_, PyAny>| {
        let size = integer(x).and_then(|n| usize::try_from(n).ok());
        if x.is_none() || size.is_some() {
            Ok(size)
        } else {
            Err(bad("None or an integer >= 0 on each side"))
        }
    };
    Ok(Some((side(left)?, side(right)?)))
}

fn start<'py>(function: &'static str, x: &Bound<'py, PyAny>) -> PyResult<Option<Start<'py>>> {
    if x.is_none() {
        return Ok(None);
    }
    if let Some(offset) = integer(x) {
        return Ok(Some(Start::One(offset)));
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
    Ok(optional_array(function, "q_offset", x)?.map(Start::PerRow))
}
