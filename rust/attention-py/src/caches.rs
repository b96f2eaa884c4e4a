//! A cache of any kind as a class whose methods several threads may call at once.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use half::{bf16, f16};
use ndarray::{Array1, Array4, ArrayRef4, Axis, CowArray, Ix1, Ix2, Ix3, Ix4};
use pyo3::prelude::*;
use rosetta_attention::AttentionError::{DtypeMismatch, InvalidConfig};
use rosetta_attention::{self as core, Append, Padding, Stored};

use crate::arguments::{Arguments, Options, integer, whole};
use crate::arrays::{
    Floating, Object, array, give, give_narrow, optional_array, optional_view, view, wide_4,
};
use crate::errors::{refuse, released};
use crate::eviction::{self, PolicyArguments, PolicyObjects};
use crate::quantised::{CodeObjects, code_objects};
use crate::sdpa::{StepObjects, step_objects, tier_of};

/// `rosetta_attention_rs._rust.Cache`. Readers share the lock, writers have it alone; it is taken only where the
/// GIL has been released, so that the two cannot wait for each other.
#[pyclass(frozen, name = "Cache", module = "rosetta_attention_rs._rust")]
pub struct Cache {
    pub typed: Typed,
    pub is_latent: bool,
}

/// A cache whose keys and values come as `S`.
pub type Guarded<S> = RwLock<Box<dyn core::Cache<S>>>;

pub enum Typed {
    F16(Guarded<f16>),
    Bf16(Guarded<bf16>),
    F32(Guarded<f32>),
    F64(Guarded<f64>),
}

/// A float type that caches have.
pub trait Cached: Floating {
    fn guard(cache: Box<dyn core::Cache<Self>>) -> Typed;

    /// The cache, if it is of this type.
    fn find(typed: &Typed) -> Option<&Guarded<Self>>;
}

macro_rules! cached {
    ($float:ty, $variant:ident) => {
        impl Cached for $float {
            fn guard(cache: Box<dyn core::Cache<Self>>) -> Typed {
                Typed::$variant(RwLock::new(cache))
            }

            fn find(typed: &Typed) -> Option<&Guarded<Self>> {
                if let Typed::$variant(lock) = typed { Some(lock) } else { None }
            }
        }
    };
}

cached!(f16, F16);
cached!(bf16, Bf16);
cached!(f32, F32);
cached!(f64, F64);

/// Evaluates an expression with the lock and the element type under names.
macro_rules! with_cache {
    ($cache:expr, |$lock:ident, $float:ident| $body:expr) => {
        match &$cache.typed {
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

/// name, type, shape, bytes.
type ColumnObjects<'py> = (&'static str, String, Vec<usize>, Object<'py>);

/// output, lse.
type OutputLse<'py> = (Object<'py>, Object<'py>);

/// lengths, padding, tokens.
type AppendOptions<'py> = (Object<'py>, Object<'py>, Object<'py>);

#[pymethods]
impl Cache {
    /// (k, v, (lengths, padding, tokens)); of a latent cache (latent, rope_key, …)
    fn append<'py>(
        &self,
        k: &Object<'py>,
        v: &Object<'py>,
        options: AppendOptions<'py>,
    ) -> PyResult<()> {
        let py = k.py();
        with_cache!(self, |lock, S| {
            self.with_new::<S, _>([k, v], &options, |k, v, append| {
                released(py, || write(lock).append(k, v, append))
            })
        })
    }

    /// (k, v, (lengths, padding, tokens), q, (mask, bias, scale, softcap, None, None))
    /// -> output, weights, lse, scores, capped, biased
    fn append_attend<'py>(
        &self,
        k: &Object<'py>,
        v: &Object<'py>,
        options: AppendOptions<'py>,
        q: &Object<'py>,
        attend_options: Options<'py>,
    ) -> PyResult<StepObjects<'py>> {
        with_cache!(self, |lock, S| {
            let steps = self.with_new::<S, _>([k, v], &options, |k, v, append| {
                attend::<S, _>(q, &attend_options, |q, options| {
                    write(lock).append_attend_steps((k, v), append, q, options)
                })
            })?;
            Ok(step_objects::<S>(q.py(), steps))
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

    /// (q, (mask, bias, scale, softcap, None, None), tier) -> output, lse
    fn attend_simd<'py>(
        &self,
        q: &Object<'py>,
        options: Options<'py>,
        tier: Option<&str>,
    ) -> PyResult<OutputLse<'py>> {
        let py = q.py();
        let tier = tier_of(py, tier)?;
        with_cache!(self, |lock, S| {
            let (output, lse) =
                attend::<S, _>(q, &options, |q, options| read(lock).attend_simd(q, options, tier))?;
            Ok((give_narrow::<S, _>(py, output), give(py, lse)))
        })
    }

    /// (k, v, (lengths, padding, tokens), q, (mask, bias, scale, softcap, None, None), tier) -> output, lse
    fn append_attend_simd<'py>(
        &self,
        k: &Object<'py>,
        v: &Object<'py>,
        options: AppendOptions<'py>,
        q: &Object<'py>,
        attend_options: Options<'py>,
        tier: Option<&str>,
    ) -> PyResult<OutputLse<'py>> {
        let py = q.py();
        let tier = tier_of(py, tier)?;
        with_cache!(self, |lock, S| {
            let (output, lse) = self.with_new::<S, _>([k, v], &options, |k, v, append| {
                attend::<S, _>(q, &attend_options, |q, options| {
                    write(lock).append_attend_simd((k, v), append, q, options, tier)
                })
            })?;
            Ok((give_narrow::<S, _>(py, output), give(py, lse)))
        })
    }

    /// Whether `attend_simd` does such a cache.
    fn check_simd(&self, py: Python<'_>, tier: Option<&str>) -> PyResult<()> {
        let tier = tier_of(py, tier)?;
        with_cache!(self, |lock, S| released(py, || read::<S>(lock).check_simd(tier)))
    }

    fn truncate(&self, lengths: &Object<'_>) -> PyResult<()> {
        let numbers = integers("truncate", "lengths", lengths)?;
        with_cache!(self, |lock, S| released(lengths.py(), || write::<S>(lock).truncate(&numbers)))
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        with_cache!(self, |lock, S| released(py, || {
            write::<S>(lock).reset();
            Ok(())
        }))
    }

    /// Copies: keys and values, zero beyond a row, lengths, and positions.
    fn read<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Object<'py>, Object<'py>, Object<'py>, Object<'py>)> {
        with_cache!(self, |lock, S| {
            let held = released(py, || Ok(read::<S>(lock).read()))?;
            let part = |x: Array4<S>| {
                if self.is_latent { give(py, x.index_axis_move(Axis(1), 0)) } else { give(py, x) }
            };
            Ok((part(held.k), part(held.v), give(py, held.lengths), give(py, held.positions)))
        })
    }

    fn reorder(&self, index: &Object<'_>) -> PyResult<()> {
        let numbers = integers("reorder", "index", index)?;
        with_cache!(self, |lock, S| released(index.py(), || write::<S>(lock).reorder(&numbers)))
    }

    fn fork(&self, py: Python<'_>) -> PyResult<Self> {
        let typed = with_cache!(self, |lock, S| {
            Ok::<_, PyErr>(S::guard(released(py, || Ok(read::<S>(lock).fork()))?))
        })?;
        Ok(Self { typed, is_latent: self.is_latent })
    }

    /// -> slots a row, bytes, (used, shared, free) pages or None
    #[allow(clippy::type_complexity, reason = "a tuple of Python")]
    fn stats<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Object<'py>, usize, Option<(usize, usize, usize)>)> {
        with_cache!(self, |lock, S| {
            let stats = released(py, || Ok(read::<S>(lock).stats()))?;
            let pages = stats.pages.map(|pages| (pages.used, pages.shared, pages.free));
            Ok((give(py, stats.positions), stats.bytes, pages))
        })
    }

    fn evict(&self, positions: &Object<'_>) -> PyResult<()> {
        let numbers = integers("evict", "positions", positions)?;
        with_cache!(self, |lock, S| released(positions.py(), || write::<S>(lock).evict(&numbers)))
    }

    /// (policy, budget, sinks, recent, q, scale, pool)
    fn evict_by(&self, py: Python<'_>, policy: PolicyObjects<'_>) -> PyResult<()> {
        with_cache!(self, |lock, S| {
            let arguments = PolicyArguments::extract(&policy)?;
            let q = optional_array::<S>(eviction::NAME, "q", &policy.4)?;
            let q = q.as_ref().map(|q| wide_4(py, eviction::NAME, "q", q)).transpose()?;
            let policy = arguments.policy(q.as_deref());
            released(py, || write(lock).evict_by(&policy))
        })
    }

    /// (B, Hkv, L): the weights that each slot was given.
    fn tracked<'py>(&self, py: Python<'py>) -> PyResult<Object<'py>> {
        let sums = with_cache!(self, |lock, S| released(py, || read::<S>(lock).tracked()))?;
        Ok(give(py, sums))
    }

    /// What a file has of the slots: name, type, shape, bytes.
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Vec<ColumnObjects<'py>>> {
        with_cache!(self, |lock, S| {
            let (columns, contents, rows, batch) = released(py, || {
                let cache = read::<S>(lock);
                Ok((cache.columns(), cache.contents(), cache.rows().clone(), cache.sizes().batch))
            })?;
            let lengths = rows.lengths().to_vec();
            let all = columns.into_iter().zip(contents).map(|(column, bytes)| {
                let shape = column.shape(batch, &lengths, rows.longest());
                (column.name, column.dtype.to_string(), shape, give(py, Array1::from(bytes)))
            });
            Ok(all.collect())
        })
    }

    fn shift(&self, by: &Object<'_>, from: &Object<'_>) -> PyResult<()> {
        let py = by.py();
        let (by, from) = (whole("shift", "by", by)?, whole("shift", "from", from)?);
        with_cache!(self, |lock, S| released(py, || write::<S>(lock).shift(by, from)))
    }

    /// -> codes, scale and zero of the keys, and of the values
    fn codes<'py>(&self, py: Python<'py>) -> PyResult<[CodeObjects<'py>; 2]> {
        with_cache!(self, |lock, S| {
            let codes = released(py, || read::<S>(lock).read_codes())?;
            Ok(codes.map(|codes| code_objects(py, codes)))
        })
    }

    /// Slots held by each row.
    fn lengths<'py>(&self, py: Python<'py>) -> PyResult<Object<'py>> {
        with_cache!(self, |lock, S| {
            Ok(give(py, released(py, || Ok(read::<S>(lock).rows().lengths()))?))
        })
    }

    /// The position of the next token of each row.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Object<'py>> {
        with_cache!(self, |lock, S| {
            Ok(give(py, released(py, || Ok(read::<S>(lock).rows().next()))?))
        })
    }

    /// path
    fn save(&self, py: Python<'_>, path: std::path::PathBuf) -> PyResult<()> {
        with_cache!(self, |lock, S| released(py, || core::save::<S>(&**read(lock), &path)))
    }

    /// path
    fn load(&self, py: Python<'_>, path: std::path::PathBuf) -> PyResult<()> {
        with_cache!(self, |lock, S| released(py, || core::load::<S>(&mut **write(lock), &path)))
    }
}

impl Cache {
    /// The tokens of an append, and which of them count.
    fn with_new<S: Cached, R>(
        &self,
        [k, v]: [&Object<'_>; 2],
        (lengths, padding, tokens): &AppendOptions<'_>,
        call: impl FnOnce(&ArrayRef4<S>, &ArrayRef4<S>, &Append<'_>) -> PyResult<R>,
    ) -> PyResult<R> {
        let (py, name) = (k.py(), "append");
        let names = if self.is_latent { ["latent", "rope_key"] } else { ["k", "v"] };
        let (k, v) = (array::<S>(name, names[0], k)?, array::<S>(name, names[1], v)?);
        let lengths = optional_array(name, "lengths", lengths)?;
        let tokens = optional_array(name, "tokens", tokens)?;
        let part = |argument, x| -> PyResult<CowArray<'_, S, Ix4>> {
            if self.is_latent {
                let x = view::<S, Ix3>(py, name, argument, x, "rank 3 (B, T, n)")?;
                return Ok(x.insert_axis(Axis(1)).into()); // (B, 1, T, n)
            }
            Ok(view::<S, Ix4>(py, name, argument, x, "rank 4 (B, H, T, D)")?.into())
        };
        let (k, v) = (part(names[0], &k)?, part(names[1], &v)?);
        let lengths =
            optional_view::<i64, Ix1>(py, name, "lengths", lengths.as_ref(), "shape (B,)")?;
        let tokens =
            optional_view::<i64, Ix2>(py, name, "tokens", tokens.as_ref(), "shape (B, T)")?;
        let padding = match padding.str()?.to_cow()?.as_ref() {
            "right" => Padding::Right,
            "left" => Padding::Left,
            _ => {
                let expected = "right or left";
                return Err(refuse(py, InvalidConfig, name, "padding", expected, padding));
            }
        };
        call(&k, &v, &Append { lengths: lengths.as_deref(), padding, tokens: tokens.as_deref() })
    }

    /// The cache, which must be of the type `S`.
    pub fn of<S: Cached>(&self, py: Python<'_>, function: &'static str) -> PyResult<&Guarded<S>> {
        let expected = format!("one of {}", S::NAME);
        S::find(&self.typed).ok_or_else(|| {
            refuse(py, DtypeMismatch, function, "cache", &expected, "one of another type")
        })
    }
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

/// A list of integers.
fn integers(function: &'static str, argument: &'static str, x: &Object<'_>) -> PyResult<Vec<i64>> {
    let bad = || refuse(x.py(), InvalidConfig, function, argument, "integers", x);
    x.try_iter()?.map(|n| integer(&n?).ok_or_else(bad)).collect()
}

/// A call that panicked has changed nothing, as one that failed.
pub fn read<S: Stored>(lock: &Guarded<S>) -> RwLockReadGuard<'_, Box<dyn core::Cache<S>>> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// `read`, alone.
pub fn write<S: Stored>(lock: &Guarded<S>) -> RwLockWriteGuard<'_, Box<dyn core::Cache<S>>> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
