//! Which positions each row of a batch holds: the bookkeeping that all kinds of caches share.
//!
//! A row is a list of slots, and every slot has a position: that of its token in the whole sequence,
//! whatever was forgotten since. What a slot contains is in the [`memory`](crate::memory) of the cache.
//!
//! Letters: B batch, L slots of the longest row, T new tokens, Tq queries.

use std::ops::Range;

use ndarray::{Array1, Array2};

use crate::allocation::Purpose;
use crate::cache::Stats;
use crate::errors::Result;
use crate::masks::Offset;

/// The positions of all slots, ascending in each row, and what comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rows {
    positions: Vec<Vec<i64>>, // (B) times the slots of the row
    next: Vec<i64>,           // (B)
}

impl Rows {
    /// `batch` rows that hold nothing.
    pub(crate) fn new(purpose: Purpose, batch: usize) -> Result<Self> {
        Ok(Self { positions: purpose.list(batch, vec![])?, next: purpose.list(batch, 0)? })
    }

    /// Rows as a file has them; positions are ascending and below the next one.
    pub(crate) fn from_parts(positions: Vec<Vec<i64>>, next: Vec<i64>) -> Self {
        Self { positions, next }
    }

    /// B.
    pub fn batch(&self) -> usize {
        self.next.len()
    }

    /// L.
    pub fn longest(&self) -> usize {
        self.positions.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// How many slots each row holds: (B).
    pub fn lengths(&self) -> Array1<i64> {
        self.positions.iter().map(|row| row.len() as i64).collect()
    }

    /// The position of the next token of each row: (B).
    pub fn next(&self) -> Array1<i64> {
        Array1::from(self.next.clone())
    }

    /// The position of every slot: (B, L), -1 beyond a row.
    pub fn positions(&self) -> Array2<i64> {
        Array2::from_shape_fn((self.batch(), self.longest()), |(b, slot)| {
            self.positions[b].get(slot).copied().unwrap_or(-1)
        })
    }

    /// The positions that row `b` holds.
    pub(crate) fn row(&self, b: usize) -> &[i64] {
        &self.positions[b]
    }

    /// The position of the next token of row `b`.
    pub(crate) fn next_of(&self, b: usize) -> i64 {
        self.next[b]
    }

    /// Whether every row holds the positions from 0 on, without a gap.
    pub(crate) fn is_whole(&self) -> bool {
        let whole = |row: &Vec<i64>| row.iter().zip(0..).all(|(&position, slot)| position == slot);
        self.positions.iter().all(whole) && self.next == self.lengths().to_vec()
    }

    /// Position of query 0 of each row: what the caller says, or so that the last of `q_len` queries
    /// stands on the last position of its row: (B).
    pub(crate) fn align(&self, q_len: usize, q_offset: Option<Offset<'_>>) -> Array1<i64> {
        match q_offset {
            None => self.next.iter().map(|next| next - q_len as i64).collect(),
            Some(Offset::One(offset)) => Array1::from_elem(self.batch(), offset),
            Some(Offset::PerRow(offsets)) => offsets.to_owned(),
        }
    }

    /// Where `q_len` queries stand of which each row's first is at `start`: (B, Tq). Saturates.
    pub(crate) fn placed(start: &Array1<i64>, q_len: usize) -> Array2<i64> {
        Array2::from_shape_fn((start.len(), q_len), |(b, i)| start[b].saturating_add(i as i64))
    }

    /// Each row holds `counts[b]` more tokens, after its last position.
    pub(crate) fn advance(&mut self, counts: &[usize]) {
        for ((row, next), &count) in self.positions.iter_mut().zip(&mut self.next).zip(counts) {
            let end = *next + count as i64;
            row.extend(*next..end);
            *next = end;
        }
    }

    /// Row `b` keeps the positions that pass; the slots that they had.
    pub(crate) fn retain(&mut self, b: usize, keep: impl Fn(i64) -> bool) -> Vec<usize> {
        let kept = (0..).zip(&self.positions[b]).filter(|(_, position)| keep(**position));
        let slots = kept.map(|(slot, _)| slot).collect();
        self.positions[b].retain(|&position| keep(position));
        slots
    }

    /// Each row keeps its first `lengths[b]` slots, and goes on after the last of them.
    pub(crate) fn truncate(&mut self, lengths: &[i64]) {
        for ((row, next), &length) in self.positions.iter_mut().zip(&mut self.next).zip(lengths) {
            row.truncate(length as usize);
            *next = row.last().map_or(0, |last| last + 1);
        }
    }

    /// Row `b` goes on at `next`.
    pub(crate) fn set_next(&mut self, b: usize, next: i64) {
        self.next[b] = next;
    }

    /// The slots of row `b` with a position >= `from`.
    pub(crate) fn slots_from(&self, b: usize, from: i64) -> Range<usize> {
        self.positions[b].partition_point(|&position| position < from)..self.positions[b].len()
    }

    /// Positions >= `from` move by `by`, and so does what comes next.
    pub(crate) fn shift(&mut self, by: i64, from: i64) {
        for (b, next) in self.next.iter_mut().enumerate() {
            let moved = self.positions[b].iter_mut().filter(|position| **position >= from);
            moved.for_each(|position| *position += by);
            *next += if *next > from { by } else { 0 };
        }
    }

    /// How much is held, where a slot takes `slot_bytes`.
    pub(crate) fn stats(&self, slot_bytes: usize) -> Stats {
        let slots: usize = self.positions.iter().map(Vec::len).sum();
        Stats { positions: self.lengths(), bytes: slots * slot_bytes, pages: None }
    }

    /// No row holds anything.
    pub(crate) fn clear(&mut self) {
        self.positions.iter_mut().for_each(Vec::clear);
        self.next.fill(0);
    }

    /// New row i is old row `index[i]`.
    pub(crate) fn reorder(&mut self, index: &[usize]) {
        self.positions = index.iter().map(|&b| self.positions[b].clone()).collect();
        self.next = index.iter().map(|&b| self.next[b]).collect();
    }
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    #[test]
    fn positions_outlive_what_is_forgotten() {
        let mut rows = Rows::new(Purpose::append(), 2).unwrap();
        rows.advance(&[3, 1]);
        assert_eq!(rows.retain(0, |j| j != 1), [0, 2]);
        rows.advance(&[1, 0]);
        assert_eq!(rows.positions(), array![[0, 2, 3], [0, -1, -1]]);
        assert_eq!((rows.lengths(), rows.next()), (array![3, 1], array![4, 1]));
        assert_eq!(rows.align(2, None), array![2, -1]);
        rows.truncate(&[1, 0]);
        assert_eq!(rows.next(), array![1, 0]);
        rows.reorder(&[1, 1]);
        assert_eq!((rows.longest(), rows.is_whole()), (0, true));
    }
}
