//! What the slots of a quantised cache contain: codes, and the scales and zeros of their groups.
//!
//! Letters: B batch, H heads, L slots of the longest row, n channels, g groups of them.

use std::ops::Range;

use ndarray::{Ix3, Ix4};
use safetensors::Dtype;

use crate::allocation::Purpose;
use crate::cache_content::{Column, Contents, Entries, array_from_bytes, array_to_bytes};
use crate::errors::Result;
use crate::memory::Memory;
use crate::quantise::{Codes, Format, Quantisation};
use crate::rows::Rows;

/// Three memories side by side; those that the format does not need have no width.
#[derive(Debug, Clone)]
pub(crate) struct CodeMemory {
    quantisation: Quantisation,
    channels: usize,
    heads: usize,
    codes: Memory<u8>,  // (B, H, room, bytes)
    scale: Memory<f32>, // (B, H, room, g)
    zero: Memory<f32>,  // (B, H, room, g)
}

impl CodeMemory {
    /// For sizes (B, H, room, channels).
    pub(crate) fn new(
        purpose: Purpose,
        (batch, heads, room, channels): (usize, usize, usize, usize),
        quantisation: Quantisation,
    ) -> Result<Self> {
        let (bytes, scales, zeros) = quantisation.sizes(channels);
        Ok(Self {
            quantisation,
            channels,
            heads,
            codes: Memory::new(purpose, (batch, heads, room, bytes))?,
            scale: Memory::new(purpose, (batch, heads, room, scales))?,
            zero: Memory::new(purpose, (batch, heads, room, zeros))?,
        })
    }

    pub(crate) fn grow(&mut self, purpose: Purpose, room: usize) -> Result<()> {
        self.codes.grow(purpose, room)?;
        self.scale.grow(purpose, room)?;
        self.zero.grow(purpose, room)
    }

    /// Slots of row `b` from `start` on become `x` (H, count, ·).
    pub(crate) fn write(&mut self, b: usize, start: usize, x: &Codes<Ix3>) {
        self.codes.write(b, start, x.codes.view());
        self.scale.write(b, start, x.scale.view());
        self.zero.write(b, start, x.zero.view());
    }

    /// The slots named, ascending, move to the front of row `b`.
    pub(crate) fn retain(&mut self, b: usize, slots: &[usize]) {
        self.codes.retain(b, slots);
        self.scale.retain(b, slots);
        self.zero.retain(b, slots);
    }

    /// New row i is a copy of old row `index[i]`.
    pub(crate) fn reorder(&mut self, index: &[usize]) {
        self.codes.reorder(index);
        self.scale.reorder(index);
        self.zero.reorder(index);
    }

    /// Copies (B, H, L, ·), junk beyond a row's slots.
    pub(crate) fn codes(&self, longest: usize) -> Codes<Ix4> {
        Codes {
            quantisation: self.quantisation,
            channels: self.channels,
            codes: self.codes.view(longest).to_owned(),
            scale: self.scale.view(longest).to_owned(),
            zero: self.zero.view(longest).to_owned(),
        }
    }

    /// Copies of some slots of row `b`: (1, H, count, ·).
    pub(crate) fn slots(&self, b: usize, slots: Range<usize>) -> Codes<Ix4> {
        Codes {
            quantisation: self.quantisation,
            channels: self.channels,
            codes: self.codes.slots(b, slots.clone()).to_owned(),
            scale: self.scale.slots(b, slots.clone()).to_owned(),
            zero: self.zero.slots(b, slots).to_owned(),
        }
    }

    /// Copies (B, H, L, ·), zero beyond a row's slots.
    pub(crate) fn read(&self, rows: &Rows) -> Codes<Ix4> {
        let (longest, lengths) = (rows.longest(), rows.lengths());
        Codes {
            quantisation: self.quantisation,
            channels: self.channels,
            codes: self.codes.read(longest, &lengths),
            scale: self.scale.read(longest, &lengths),
            zero: self.zero.read(longest, &lengths),
        }
    }

    /// How many bytes a slot takes.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.codes.slot_bytes() + self.scale.slot_bytes() + self.zero.slot_bytes()
    }

    /// Those that the format has, under these names.
    pub(crate) fn columns(&self, [codes, scale, zero]: [&'static str; 3]) -> Vec<Column> {
        let (bytes, scales, zeros) = self.quantisation.sizes(self.channels);
        let (dtype, width) = match (self.quantisation.format, self.quantisation.zero_point) {
            (Format::F16, _) => (Dtype::F16, bytes / 2),
            (Format::Bf16, _) => (Dtype::BF16, bytes / 2),
            (Format::Int8, false) => (Dtype::I8, bytes),
            _ => (Dtype::U8, bytes),
        };
        let (heads, entries) = (Some(self.heads), Entries::Slots);
        let column =
            |name, dtype, width| Column { name, dtype, heads, entries, width: Some(width) };
        let mut columns = vec![column(codes, dtype, width)];
        if self.quantisation.format.is_integer() {
            columns.push(column(scale, Dtype::F32, scales));
        }
        if self.quantisation.zero_point {
            columns.push(column(zero, Dtype::F32, zeros));
        }
        columns
    }

    /// Of each column.
    pub(crate) fn contents(&self, rows: &Rows) -> Contents {
        let held = self.read(rows);
        let mut contents = vec![array_to_bytes(&held.codes)];
        if self.quantisation.format.is_integer() {
            contents.push(array_to_bytes(&held.scale));
        }
        if self.quantisation.zero_point {
            contents.push(array_to_bytes(&held.zero));
        }
        contents
    }

    /// The way back, into memory for at least `room` slots a row.
    pub(crate) fn restored(&self, contents: &[Vec<u8>], rows: &Rows, room: usize) -> Result<Self> {
        let (bytes, scales, zeros) = self.quantisation.sizes(self.channels);
        let shape = |n| (rows.batch(), self.heads, rows.longest(), n);
        let column = |index: usize| contents.get(index).map_or(&[][..], Vec::as_slice);
        let load = Purpose::load();
        Ok(Self {
            codes: Memory::holding(load, array_from_bytes(column(0), shape(bytes)), room)?,
            scale: Memory::holding(load, array_from_bytes(column(1), shape(scales)), room)?,
            zero: Memory::holding(load, array_from_bytes(column(2), shape(zeros)), room)?,
            ..*self
        })
    }
}
