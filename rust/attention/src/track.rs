//! The weights that each slot of a cache was given, added up beside it.
//!
//! Attends share a cache, and each of them adds to the sums; so these lie behind a lock, and an attend adds all
//! that it gives at once. What moves slots moves their sums.
//!
//! Letters: B batch, Hkv key/value heads, Hq query heads, G = Hq / Hkv, Tq queries, L slots of the longest row.
//!
//! Source: Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
//! 2023, section 4.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ndarray::{Array3, ArrayRef4, Axis};
use safetensors::Dtype;

use crate::allocation::Purpose;
use crate::cache::Sizes;
use crate::cache_content::{Column, Entries, array_from_bytes, array_to_bytes};
use crate::cast::wide;
use crate::checks::check_tracking;
use crate::errors::Result;
use crate::float::Float;
use crate::memory::Memory;
use crate::rows::Rows;

/// A sum for each slot and KV head, in a cache that tracks; otherwise nothing, which all of this leaves as it is.
#[derive(Debug, Default)]
pub(crate) struct Track(Option<Sums>);

#[derive(Debug)]
struct Sums {
    heads: usize,
    given: Mutex<Memory<f64>>, // (B, Hkv, room, 1)
}

impl Sums {
    fn lock(&self) -> MutexGuard<'_, Memory<f64>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn alone(&mut self) -> &mut Memory<f64> {
        self.given.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Track {
    /// For `room` slots a row.
    pub(crate) fn new(purpose: Purpose, sizes: Sizes, room: usize) -> Result<Self> {
        let heads = sizes.num_kv_heads;
        let given = Memory::new(purpose, (sizes.batch, heads, room, 1))?;
        Ok(Self(Some(Sums { heads, given: Mutex::new(given) })))
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// An attend gave the slots these weights (B, Hq, Tq, L).
    pub(crate) fn add<T: Float>(&self, weights: &ArrayRef4<T>) {
        if let Some(sums) = &self.0 {
            let given = per_kv_head(weights, sums.heads).insert_axis(Axis(3)); // (B, Hkv, L, 1)
            let mut sums = sums.lock();
            sums.view_mut(given.dim().2).zip_mut_with(&given, |sum, weight| *sum += weight);
        }
    }

    /// A copy (B, Hkv, L), zero beyond a row.
    pub(crate) fn read(&self, name: &'static str, rows: &Rows) -> Result<Array3<f64>> {
        check_tracking(name, self.is_on())?;
        let sums = self.0.as_ref().expect("checked");
        Ok(sums.lock().read(rows.longest(), &rows.lengths()).index_axis_move(Axis(3), 0))
    }

    /// Memory for `room` slots a row.
    pub(crate) fn grow(&mut self, room: usize) -> Result<()> {
        self.0.as_mut().map_or(Ok(()), |sums| sums.alone().grow(Purpose::append(), room))
    }

    /// Row `b` gets `count` slots from `start` on, which nobody has looked at.
    pub(crate) fn write(&mut self, b: usize, start: usize, count: usize) {
        if let Some(sums) = &mut self.0 {
            let none = Array3::zeros((sums.heads, count, 1));
            sums.alone().write(b, start, none.view());
        }
    }

    /// The slots named, ascending, move to the front of row `b`.
    pub(crate) fn retain(&mut self, b: usize, slots: &[usize]) {
        self.0.iter_mut().for_each(|sums| sums.alone().retain(b, slots));
    }

    /// New row i is a copy of old row `index[i]`.
    pub(crate) fn reorder(&mut self, index: &[usize]) {
        self.0.iter_mut().for_each(|sums| sums.alone().reorder(index));
    }

    /// What a file holds of it.
    pub(crate) fn columns(&self) -> Option<Column> {
        let heads = Some(self.0.as_ref()?.heads);
        let entries = Entries::Slots;
        Some(Column { name: "tracked", dtype: Dtype::F64, heads, entries, width: None })
    }

    /// The same, as bytes.
    pub(crate) fn contents(&self, rows: &Rows) -> Option<Vec<u8>> {
        let given = self.0.as_ref()?.lock().read(rows.longest(), &rows.lengths());
        Some(array_to_bytes(&given))
    }

    /// The way back, into memory for at least `room` slots a row.
    pub(crate) fn restored(
        &self,
        contents: Option<&Vec<u8>>,
        rows: &Rows,
        room: usize,
    ) -> Result<Self> {
        let Some((sums, bytes)) = self.0.as_ref().zip(contents) else {
            return Ok(Self(None));
        };
        let given = array_from_bytes(bytes, (rows.batch(), sums.heads, rows.longest(), 1));
        let given = Mutex::new(Memory::holding(Purpose::load(), given, room)?);
        Ok(Self(Some(Sums { heads: sums.heads, given })))
    }
}

impl Clone for Track {
    fn clone(&self) -> Self {
        let copy = |sums: &Sums| Sums { heads: sums.heads, given: Mutex::new(sums.lock().clone()) };
        Self(self.0.as_ref().map(copy))
    }
}

/// Weights (B, Hq, Tq, L) added up over the queries, and the query heads that read a KV head: (B, Hkv, L).
pub(crate) fn per_kv_head<T: Float>(weights: &ArrayRef4<T>, heads: usize) -> Array3<f64> {
    let (batch, hq, _, slots) = weights.dim();
    let group = hq / heads; // G
    let mut given = Array3::zeros((batch, heads, slots)); // (B, Hkv, L)
    for ((b, h, _, slot), weight) in weights.indexed_iter() {
        given[[b, h / group, slot]] += wide(*weight);
    }
    given
}
