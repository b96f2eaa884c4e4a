//! Empty caches of every kind, and the pool that paged ones share.

use pyo3::prelude::*;
use rosetta_attention::{
    self as core, CrossCache, KvCache, LatentCache, PageSizes, PagedCache, QuantisedCache, Rope,
    RotatingCache,
};

use crate::arguments::{optional_size, size};
use crate::arrays::{Kind, Object, kind_of_dtype, with_float};
use crate::caches::{Cache, Cached};
use crate::errors::released;
use crate::positions::optional_rope_options;
use crate::quantised::quantisation;

/// batch, num_kv_heads, head_dim, value_dim, dtype
type Sizes<'py> = (Object<'py>, Object<'py>, Object<'py>, Object<'py>, Object<'py>);

/// The same, read.
struct KeyValues {
    batch: usize,
    heads: usize,
    d: usize,
    dv: usize,
    kind: Kind,
}

impl KeyValues {
    fn extract(name: &'static str, (batch, heads, d, dv, dtype): &Sizes<'_>) -> PyResult<Self> {
        Ok(Self {
            batch: size(name, "batch", batch, 0)?,
            heads: size(name, "num_kv_heads", heads, 1)?,
            d: size(name, "head_dim", d, 1)?,
            dv: size(name, "value_dim", dv, 0)?,
            kind: kind_of_dtype(name, dtype)?,
        })
    }
}

/// A cache, and the rope that it is to have.
fn finish<S: Cached, C: core::Cache<S> + 'static>(
    py: Python<'_>,
    make: impl FnOnce() -> core::Result<C> + Send,
    rope: Option<Rope>,
    with_rope: impl FnOnce(C, Rope) -> core::Result<C> + Send,
) -> PyResult<Cache> {
    let cache: Box<dyn core::Cache<S>> = released(py, || match rope {
        None => Ok(Box::new(make()?) as _),
        Some(rope) => Ok(Box::new(with_rope(make()?, rope)?) as _),
    })?;
    Ok(Cache { typed: S::guard(cache), is_latent: false })
}

/// (sizes, capacity, rope) -> cache
#[pyfunction]
pub fn kv_cache(sizes: Sizes<'_>, capacity: &Object<'_>, rope: &Object<'_>) -> PyResult<Cache> {
    let (py, name) = (rope.py(), "kv_cache");
    let of = KeyValues::extract(name, &sizes)?;
    let capacity = optional_size(name, "capacity", capacity)?;
    let rope = optional_rope_options(name, rope)?;
    with_float!(of.kind, S => {
        let make = || KvCache::new(of.batch, of.heads, of.d, of.dv, capacity);
        finish::<S, _>(py, make, rope, KvCache::with_rope)
    })
}

/// (sizes, window, keep, rope) -> cache
#[pyfunction]
pub fn rotating_cache(
    sizes: Sizes<'_>,
    window: &Object<'_>,
    keep: &Object<'_>,
    rope: &Object<'_>,
) -> PyResult<Cache> {
    let (py, name) = (rope.py(), "rotating_cache");
    let of = KeyValues::extract(name, &sizes)?;
    let (window, keep) = (size(name, "window", window, 1)?, size(name, "keep", keep, 0)?);
    let rope = optional_rope_options(name, rope)?;
    with_float!(of.kind, S => {
        let make = || RotatingCache::new(of.batch, of.heads, of.d, of.dv, window, keep);
        finish::<S, _>(py, make, rope, RotatingCache::with_rope)
    })
}

/// (sizes, (format, group, zero_point), capacity, rope) -> cache
#[pyfunction]
pub fn quantised_cache<'py>(
    sizes: Sizes<'py>,
    format: (Object<'py>, Object<'py>, Object<'py>),
    capacity: &Object<'py>,
    rope: &Object<'py>,
) -> PyResult<Cache> {
    let (py, name) = (rope.py(), "quantised_cache");
    let of = KeyValues::extract(name, &sizes)?;
    let quantisation = quantisation(name, &format)?;
    let capacity = optional_size(name, "capacity", capacity)?;
    let rope = optional_rope_options(name, rope)?;
    with_float!(of.kind, S => {
        let make = || QuantisedCache::new(of.batch, of.heads, of.d, of.dv, quantisation, capacity);
        finish::<S, _>(py, make, rope, QuantisedCache::with_rope)
    })
}

/// sizes -> cache
#[pyfunction]
pub fn cross_cache(py: Python<'_>, sizes: Sizes<'_>) -> PyResult<Cache> {
    let of = KeyValues::extract("cross_cache", &sizes)?;
    with_float!(of.kind, S => {
        let make = || CrossCache::new(of.batch, of.heads, of.d, of.dv);
        finish::<S, _>(py, make, None, |cache, _| Ok(cache))
    })
}

/// (batch, latent_dim, rope_dim, capacity, dtype) -> cache
#[pyfunction]
pub fn latent_cache(
    batch: &Object<'_>,
    latent_dim: &Object<'_>,
    rope_dim: &Object<'_>,
    capacity: &Object<'_>,
    dtype: &Object<'_>,
) -> PyResult<Cache> {
    let (py, name) = (batch.py(), "latent_cache");
    let batch = size(name, "batch", batch, 0)?;
    let latent_dim = size(name, "latent_dim", latent_dim, 1)?;
    let rope_dim = size(name, "rope_dim", rope_dim, 0)?;
    let capacity = optional_size(name, "capacity", capacity)?;
    let cache = with_float!(kind_of_dtype(name, dtype)?, S => {
        let make = || LatentCache::new(batch, latent_dim, rope_dim, capacity);
        finish::<S, _>(py, make, None, |cache, _| Ok(cache))
    })?;
    Ok(Cache { is_latent: true, ..cache })
}

/// `rosetta_attention_rs._rust.PagePool`.
#[pyclass(frozen, name = "PagePool", module = "rosetta_attention_rs._rust")]
pub struct PagePool(TypedPool);

enum TypedPool {
    F16(core::PagePool<half::f16>),
    Bf16(core::PagePool<half::bf16>),
    F32(core::PagePool<f32>),
    F64(core::PagePool<f64>),
}

#[pymethods]
impl PagePool {
    /// (num_pages, page_size, num_kv_heads, head_dim, value_dim, dtype)
    #[new]
    fn new(
        num_pages: &Object<'_>,
        page_size: &Object<'_>,
        num_kv_heads: &Object<'_>,
        head_dim: &Object<'_>,
        value_dim: &Object<'_>,
        dtype: &Object<'_>,
    ) -> PyResult<Self> {
        let (py, name) = (dtype.py(), "page_pool");
        let sizes = PageSizes {
            num_pages: size(name, "num_pages", num_pages, 0)?,
            page_size: size(name, "page_size", page_size, 1)?,
            num_kv_heads: size(name, "num_kv_heads", num_kv_heads, 1)?,
            head_dim: size(name, "head_dim", head_dim, 1)?,
            value_dim: size(name, "value_dim", value_dim, 0)?,
        };
        Ok(Self(match kind_of_dtype(name, dtype)? {
            Kind::F16 => TypedPool::F16(released(py, || core::PagePool::new(sizes))?),
            Kind::Bf16 => TypedPool::Bf16(released(py, || core::PagePool::new(sizes))?),
            Kind::F32 => TypedPool::F32(released(py, || core::PagePool::new(sizes))?),
            Kind::F64 => TypedPool::F64(released(py, || core::PagePool::new(sizes))?),
        }))
    }

    /// (batch, rope) -> cache
    fn cache(&self, batch: &Object<'_>, rope: &Object<'_>) -> PyResult<Cache> {
        let (py, name) = (batch.py(), "paged_cache");
        let batch = size(name, "batch", batch, 0)?;
        let rope = optional_rope_options(name, rope)?;
        match &self.0 {
            TypedPool::F16(pool) => paged(py, pool, batch, rope),
            TypedPool::Bf16(pool) => paged(py, pool, batch, rope),
            TypedPool::F32(pool) => paged(py, pool, batch, rope),
            TypedPool::F64(pool) => paged(py, pool, batch, rope),
        }
    }

    /// Pages used, shared and free.
    fn counts(&self) -> (usize, usize, usize) {
        let counts = match &self.0 {
            TypedPool::F16(pool) => pool.counts(),
            TypedPool::Bf16(pool) => pool.counts(),
            TypedPool::F32(pool) => pool.counts(),
            TypedPool::F64(pool) => pool.counts(),
        };
        (counts.used, counts.shared, counts.free)
    }
}

fn paged<S: Cached>(
    py: Python<'_>,
    pool: &core::PagePool<S>,
    batch: usize,
    rope: Option<Rope>,
) -> PyResult<Cache> {
    finish::<S, _>(py, || PagedCache::new(pool, batch), rope, PagedCache::with_rope)
}
