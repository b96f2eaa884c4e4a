//! The cache as a class whose methods several threads may call at once.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use half::{bf16, f16};
use ndarray::{ArrayRef4, Ix1, Ix4};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use rosetta_attention::AttentionError::InvalidConfig;
use rosetta_attention::{self as core, Stored};

use crate::arguments::{Arguments, Options, integer, size};
use crate::arrays::{
    Floating, Kind, Object, array, give, give_narrow, kind_of_dtype, optional_array, optional_view,
    view, wide_4,
};
use crate::errors::{refuse, released};
use crate::functions::{StepObjects, step_objects};

/// `rosetta_attention_rs._rust.KVCache`. Readers share the lock, writers have it alone; it is taken
/// only where the GIL has been released, so that the two cannot wait for each other.
#[pyclass(frozen, name = "KVCache", module = "rosetta_attention_rs._rust")]
pub struct KvCache(Typed);

enum Typed {
    F16(RwLock<core::KvCache<f16>>),
    Bf16(RwLock<core::KvCache<bf16>>),
    F32(RwLock<core::KvCache<f32>>),
    F64(RwLock<core::KvCache<f64>>),
}

/// Evaluates an expression with the lock and the element type under names.
macro_rules! with_cache {
    ($cache:expr, |$lock:ident, $float:ident| $body:expr) => {
        match &$cache.0 {
            Typed::F16($lock) => {
                type $float = f16;
                $body
            }
            Typed::Bf16($lock) => {
                type $float = bf16;
                $body
            }
            Typed::F32($lock) => {
                type $float = f32;
                $body
            }
            Typed::F64($lock) => {
                type $float = f64;
                $body
            }
        }
    };
}

#[pymethods]
impl KvCache {
    /// `dtype` is a NumPy dtype; the other sizes are integers, `capacity` may be None.
    #[new]
    fn new(
        batch: &Object<'_>,
        num_kv_heads: &Object<'_>,
        head_dim: &Object<'_>,
        value_dim: &Object<'_>,
        capacity: &Object<'_>,
        dtype: &Object<'_>,
    ) -> PyResult<Self> {
        let (py, name) = (batch.py(), "kv_cache");
        let batch = size(name, "batch", batch, 0)?;
        let num_kv_heads = size(name, "num_kv_heads", num_kv_heads, 1)?;
        let head_dim = size(name, "head_dim", head_dim, 1)?;
        let value_dim = size(name, "value_dim", value_dim, 0)?;
        let capacity =
            if capacity.is_none() { None } else { Some(size(name, "capacity", capacity, 0)?) };
        let sizes = (batch, num_kv_heads, head_dim, value_dim, capacity);
        Ok(Self(match kind_of_dtype(name, dtype)? {
            Kind::F16 => Typed::F16(empty(py, sizes)?),
            Kind::Bf16 => Typed::Bf16(empty(py, sizes)?),
            Kind::F32 => Typed::F32(empty(py, sizes)?),
            Kind::F64 => Typed::F64(empty(py, sizes)?),
        }))
    }

    fn append(&self, k: &Object<'_>, v: &Object<'_>, lengths: &Object<'_>) -> PyResult<()> {
        let (py, name) = (k.py(), "append");
        with_cache!(self, |lock, S| {
            let (k, v) = (array::<S>(name, "k", k)?, array::<S>(name, "v", v)?);
            let lengths = optional_array(name, "lengths", lengths)?;
            let expected = "rank 4 (B, H, T, D)";
            let k = view::<S, Ix4>(py, name, "k", &k, expected)?;
            let v = view::<S, Ix4>(py, name, "v", &v, expected)?;
            let lengths = lengths.as_ref();
            let lengths = optional_view::<i64, Ix1>(py, name, "lengths", lengths, "shape (B,)")?;
            released(py, || write(lock).append(&k, &v, lengths.as_deref()))
        })
    }

    /// (q, (mask, bias, scale, softcap, None, None)) -> output
    fn attend<'py>(&self, q: &Object<'py>, options: Options<'py>) -> PyResult<Object<'py>> {
        with_cache!(self, |lock, S| {
            let output = attend::<S, _>(q, &options, |q, options| read(lock).attend(q, options))?;
            Ok(give_narrow::<S, _>(q.py(), output))
        })
    }

    /// (q, (mask, bias, scale, softcap, None, None)) -> output, weights, lse, scores, capped, biased
    fn attend_steps<'py>(
        &self,
        q: &Object<'py>,
        options: Options<'py>,
    ) -> PyResult<StepObjects<'py>> {
        with_cache!(self, |lock, S| {
            let steps =
                attend::<S, _>(q, &options, |q, options| read(lock).attend_steps(q, options))?;
            Ok(step_objects::<S>(q.py(), steps))
        })
    }

    fn truncate(&self, lengths: &Object<'_>) -> PyResult<()> {
        let py = lengths.py();
        let bad = || refuse(py, InvalidConfig, "truncate", "lengths", "integers", lengths);
        let lengths: Vec<i64> =
            lengths.try_iter()?.map(|n| integer(&n?).ok_or_else(bad)).collect::<PyResult<_>>()?;
        with_cache!(self, |lock, S| released(py, || write::<S>(lock).truncate(&lengths)))
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        with_cache!(self, |lock, S| released(py, || {
            write::<S>(lock).reset();
            Ok(())
        }))
    }

    /// Copies of keys and values, zero beyond a row's length, and the lengths.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<(Object<'py>, Object<'py>, Object<'py>)> {
        with_cache!(self, |lock, S| {
            let (k, v, lengths) = released(py, || Ok(read::<S>(lock).read()))?;
            Ok((give(py, k), give(py, v), give(py, lengths)))
        })
    }

    /// Copies: the memory itself moves when the cache grows.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Object<'py>> {
        with_cache!(self, |lock, S| {
            let keys = released(py, || Ok(read::<S>(lock).keys().to_owned()))?;
            Ok(give(py, keys))
        })
    }

    /// Copies, as `keys`.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Object<'py>> {
        with_cache!(self, |lock, S| {
            let values = released(py, || Ok(read::<S>(lock).values().to_owned()))?;
            Ok(give(py, values))
        })
    }

    fn lengths<'py>(&self, py: Python<'py>) -> PyResult<Object<'py>> {
        with_cache!(self, |lock, S| {
            let lengths = released(py, || Ok(read::<S>(lock).lengths().to_owned()))?;
            Ok(give(py, lengths))
        })
    }
}

fn empty<S: Stored>(
    py: Python<'_>,
    (batch, heads, d, dv, capacity): (usize, usize, usize, usize, Option<usize>),
) -> PyResult<RwLock<core::KvCache<S>>> {
    // Where memory cannot be had Rust ends the process; a caller of Python expects an exception. What wraps
    // around is no legal size, and refused by the cache itself.
    let held = [batch, heads, capacity.unwrap_or(0), d.max(dv)];
    for (sizes, bytes) in [(held, size_of::<S>()), ([batch, 1, 1, 1], size_of::<i64>())] {
        let numbers = sizes.into_iter().try_fold(1_usize, usize::checked_mul);
        let fits = |numbers| Vec::<u8>::new().try_reserve_exact(numbers * bytes).is_ok();
        if numbers.is_some_and(|numbers| numbers <= 1 << 53 && !fits(numbers)) {
            return Err(PyMemoryError::new_err(format!(
                "kv_cache: no memory for {sizes:?} numbers"
            )));
        }
    }
    released(py, || core::KvCache::new(batch, heads, d, dv, capacity)).map(RwLock::new)
}

/// One call on a cache that the caller has locked.
fn attend<'py, S: Floating, R: Send>(
    q: &Object<'py>,
    options: &Options<'py>,
    call: impl FnOnce(&ArrayRef4<S::Compute>, &core::Sdpa<'_, S::Compute>) -> core::Result<R> + Send,
) -> PyResult<R> {
    let (py, name) = (q.py(), "attend");
    let q = array::<S>(name, "q", q)?;
    let options = Arguments::<S>::extract(name, options)?;
    let q = wide_4(py, name, "q", &q)?;
    let views = options.views(py)?;
    released(py, || call(&q, &views.options()))
}

/// A call that panicked has changed nothing, as one that failed.
fn read<S>(lock: &RwLock<core::KvCache<S>>) -> RwLockReadGuard<'_, core::KvCache<S>> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<S>(lock: &RwLock<core::KvCache<S>>) -> RwLockWriteGuard<'_, core::KvCache<S>> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
