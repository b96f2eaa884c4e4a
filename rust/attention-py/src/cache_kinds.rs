//! Empty caches of every kind, and the pool that paged ones share.

use pyo3::prelude::*;
use rosetta_attention::{
    self as core, CrossCache, KiviCache, KvCache, LatentCache, PageSizes, PagedCache, PerHeadCache,
    QuantisedCache, Rope, RopeAt, RotatingCache,
};

use rosetta_attention::AttentionError::InvalidConfig;

use crate::arguments::{flag, optional_size, size};
use crate::arrays::{Kind, Object, kind_of_dtype, with_float};
use crate::caches::{Cache, Cached};
use crate::errors::{refuse, released};
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

/// rope, rope_at
type Turn<'py> = (Object<'py>, Object<'py>);

/// How keys are to be turned, and when.
fn optional_turn(name: &'static str, (rope, at): &Turn<'_>) -> PyResult<Option<(Rope, RopeAt)>> {
    let bad = |expected| refuse(at.py(), InvalidConfig, name, "rope_at", expected, at);
    if rope.is_none() && !at.is_none() {
        return Err(bad("None without rope"));
    }
    let at_word = if at.is_none() { None } else { at.extract::<String>().ok() };
    let when = match at_word.as_deref() {
        None if at.is_none() => RopeAt::Append,
        Some("append") => RopeAt::Append,
        Some("attend") => RopeAt::Attend,
        _ => return Err(bad("append or attend")),
    };
    Ok(optional_rope_options(name, rope)?.map(|rope| (rope, when)))
}

/// A cache, and the rope that it is to have.
fn finish<S: Cached, C: core::Cache<S> + 'static>(
    py: Python<'_>,
    make: impl FnOnce() -> core::Result<C> + Send,
    turn: Option<(Rope, RopeAt)>,
    with_rope: impl FnOnce(C, Rope, RopeAt) -> core::Result<C> + Send,
) -> PyResult<Cache> {
    let cache: Box<dyn core::Cache<S>> = released(py, || match turn {
        None => Ok(Box::new(make()?) as _),
        Some((rope, at)) => Ok(Box::new(with_rope(make()?, rope, at)?) as _),
    })?;
    Ok(Cache { typed: S::guard(cache), is_latent: false })
}

/// (sizes, capacity, (rope, rope_at), track) -> cache
#[pyfunction]
pub fn kv_cache<'py>(
    sizes: Sizes<'py>,
    capacity: &Object<'py>,
    turn: Turn<'py>,
    track: &Object<'py>,
) -> PyResult<Cache> {
    let (py, name) = (track.py(), "kv_cache");
    let of = KeyValues::extract(name, &sizes)?;
    let capacity = optional_size(name, "capacity", capacity)?;
    let (turn, track) = (optional_turn(name, &turn)?, flag(name, "track", track)?);
    with_float!(of.kind, S => {
        let empty = || KvCache::new(of.batch, of.heads, of.d, of.dv, capacity);
        let make = || if track { empty()?.with_track() } else { empty() };
        finish::<S, _>(py, make, turn, KvCache::with_rope_at)
    })
}

/// (sizes, capacity, (rope, rope_at), track) -> cache
#[pyfunction]
pub fn per_head_cache<'py>(
    sizes: Sizes<'py>,
    capacity: &Object<'py>,
    turn: Turn<'py>,
    track: &Object<'py>,
) -> PyResult<Cache> {
    let (py, name) = (track.py(), "per_head_cache");
    let of = KeyValues::extract(name, &sizes)?;
    let capacity = optional_size(name, "capacity", capacity)?;
    let (turn, track) = (optional_turn(name, &turn)?, flag(name, "track", track)?);
    with_float!(of.kind, S => {
        let empty = || PerHeadCache::new(of.batch, of.heads, of.d, of.dv, capacity);
        let make = || if track { empty()?.with_track() } else { empty() };
        finish::<S, _>(py, make, turn, PerHeadCache::with_rope_at)
    })
}

/// (sizes, window, keep, (rope, rope_at)) -> cache
#[pyfunction]
pub fn rotating_cache<'py>(
    sizes: Sizes<'py>,
    window: &Object<'py>,
    keep: &Object<'py>,
    turn: Turn<'py>,
) -> PyResult<Cache> {
    let (py, name) = (keep.py(), "rotating_cache");
    let of = KeyValues::extract(name, &sizes)?;
    let (window, keep) = (size(name, "window", window, 1)?, size(name, "keep", keep, 0)?);
    let turn = optional_turn(name, &turn)?;
    with_float!(of.kind, S => {
        let make = || RotatingCache::new(of.batch, of.heads, of.d, of.dv, window, keep);
        finish::<S, _>(py, make, turn, RotatingCache::with_rope_at)
    })
}

/// (sizes, (format, group, zero_point), capacity, (rope, rope_at), track) -> cache
#[pyfunction]
pub fn quantised_cache<'py>(
    sizes: Sizes<'py>,
    format: (Object<'py>, Object<'py>, Object<'py>),
    capacity: &Object<'py>,
    turn: Turn<'py>,
    track: &Object<'py>,
) -> PyResult<Cache> {
    let (py, name) = (track.py(), "quantised_cache");
    let of = KeyValues::extract(name, &sizes)?;
    let quantisation = quantisation(name, &format)?;
    let capacity = optional_size(name, "capacity", capacity)?;
    let (turn, track) = (optional_turn(name, &turn)?, flag(name, "track", track)?);
    with_float!(of.kind, S => {
        let empty = || QuantisedCache::new(of.batch, of.heads, of.d, of.dv, quantisation, capacity);
        let make = || if track { empty()?.with_track() } else { empty() };
        finish::<S, _>(py, make, turn, QuantisedCache::with_rope_at)
    })
}

/// (sizes, (format, group, zero_point), key_groups, capacity, (rope, rope_at), track) -> cache
#[pyfunction]
pub fn kivi_cache<'py>(
    sizes: Sizes<'py>,
    format: (Object<'py>, Object<'py>, Object<'py>),
    key_groups: &Object<'py>,
    capacity: &Object<'py>,
    turn: Turn<'py>,
    track: &Object<'py>,
) -> PyResult<Cache> {
    let (py, name) = (track.py(), "kivi_cache");
    let of = KeyValues::extract(name, &sizes)?;
    let (quantisation, n) =
        (quantisation(name, &format)?, size(name, "key_groups", key_groups, 1)?);
    let capacity = optional_size(name, "capacity", capacity)?;
    let (turn, track) = (optional_turn(name, &turn)?, flag(name, "track", track)?);
    with_float!(of.kind, S => {
        let empty = || KiviCache::new(of.batch, of.heads, of.d, of.dv, quantisation, n, capacity);
        let make = || if track { empty()?.with_track() } else { empty() };
        finish::<S, _>(py, make, turn, KiviCache::with_rope_at)
    })
}

/// sizes -> cache
#[pyfunction]
pub fn cross_cache(py: Python<'_>, sizes: Sizes<'_>) -> PyResult<Cache> {
    let of = KeyValues::extract("cross_cache", &sizes)?;
    with_float!(of.kind, S => {
        let make = || CrossCache::new(of.batch, of.heads, of.d, of.dv);
        finish::<S, _>(py, make, None, |cache, _, _| Ok(cache))
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
        finish::<S, _>(py, make, None, |cache, _, _| Ok(cache))
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

    /// (batch, (rope, rope_at)) -> cache
    fn cache<'py>(&self, batch: &Object<'py>, turn: Turn<'py>) -> PyResult<Cache> {
        let (py, name) = (batch.py(), "paged_cache");
        let batch = size(name, "batch", batch, 0)?;
        let turn = optional_turn(name, &turn)?;
        match &self.0 {
            TypedPool::F16(pool) => paged(py, pool, batch, turn),
            TypedPool::Bf16(pool) => paged(py, pool, batch, turn),
            TypedPool::F32(pool) => paged(py, pool, batch, turn),
            TypedPool::F64(pool) => paged(py, pool, batch, turn),
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
    turn: Option<(Rope, RopeAt)>,
) -> PyResult<Cache> {
    finish::<S, _>(py, || PagedCache::new(pool, batch), turn, PagedCache::with_rope_at)
}
