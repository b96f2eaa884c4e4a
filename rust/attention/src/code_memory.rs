//! What the slots of a quantised cache contain: codes, and the scales and zeros of their groups.
//!
//! Letters: B batch, H heads, L slots of the longest row, n channels, g groups of them.

use std::ops::Range;

use ndarray::{Ix3, Ix4};
use safetensors::Dtype;

use crate::allocation::Purpose;
use crate::cache_content::{Column, Contents, Entries, array_from_bytes, array_to_bytes};
use crate::errors::Result;
use crate::float::Float;
use crate::fp8::E4M3;
use crate::memory::Memory;
use crate::quantise::{Codes, Format, Quantisation, value};
use crate::rows::Rows;
use crate::simd::{Kind, Levels, Lines, Place};

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

    /// As what codes can be read where they lie, for attention in `T`: `Computed` if they must be restored first.
    pub(crate) fn kind<T: Float>(&self) -> Kind {
        match self.quantisation.format {
            _ if size_of::<T>() != size_of::<f32>() || cfg!(target_endian = "big") => {
                Kind::Computed
            }
            Format::F16 => Kind::F16,
            Format::Bf16 => Kind::Bf16,
            Format::Int8 => Kind::Int8,
            Format::Int4 => Kind::Int4,
            Format::Fp8E4m3 => Kind::Fp8,
        }
    }

    /// One head of row `b`: as `kind` says, or restored a few slots at a time.
    pub(crate) fn head<T: Float>(&self, b: usize, h: usize) -> Lines<'_, T> {
        let (codes, scale) = (self.codes.head(b, h), self.scale.head(b, h));
        let (bytes, scales, zeros) = self.quantisation.sizes(self.channels);
        let (zero, n) = (self.zero.head(b, h), self.channels);
        if self.kind::<T>() != Kind::Computed {
            let lines = Lines::block(codes, bytes);
            if zeros == 0 && scales < 2 {
                return Lines { scales: scale, ..lines };
            }
            let group = self.quantisation.group_of(n);
            return Lines { levels: Some(Levels { scales: scale, zeros: zero, group }), ..lines };
        }
        let restore = move |slots: Range<usize>, to: &mut Vec<T>| {
            to.clear();
            for slot in slots {
                let of = |n: usize| slot * n..(slot + 1) * n;
                let (codes, scale, zero) =
                    (&codes[of(bytes)], &scale[of(scales)], &zero[of(zeros)]);
                restore_slot(&self.quantisation, (codes, scale, zero), n, to);
            }
        };
        let width = n * size_of::<T>();
        Lines {
            place: Place::Made(Box::new(restore)),
            width,
            stride: width,
            scales: &[],
            levels: None,
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

/// Adds the `n` numbers of one slot to others: the bits that [`value`] gives, in loops that know their format.
fn restore_slot<T: Float>(
    quantisation: &Quantisation,
    (codes, scale, zero): (&[u8], &[f32], &[f32]),
    n: usize,
    to: &mut Vec<T>,
) {
    let number = |x: f32| T::from_f64(f64::from(x));
    let group = quantisation.group_of(n);
    match quantisation.format {
        Format::F16 | Format::Bf16 => {
            let one = |channel| number(value(codes, scale, zero, channel, n, quantisation));
            to.extend((0..n).map(one));
        }
        Format::Fp8E4m3 => to.extend(codes.iter().map(|&code| number(E4M3[usize::from(code)]))),
        Format::Int8 => {
            for (g, codes) in codes.chunks(group).enumerate() {
                let scale = scale[g];
                match zero.get(g) {
                    Some(zero) => {
                        to.extend(codes.iter().map(|&x| number(f32::from(x) * scale + zero)));
                    }
                    None => to.extend(codes.iter().map(|&x| number(f32::from(x as i8) * scale))),
                }
            }
        }
        Format::Int4 => {
            for (g, &scale) in scale.iter().enumerate() {
                let level = |code: usize| {
                    let pair = value(
                        &[code as u8],
                        &[scale],
                        &zero[zero.len().min(g)..],
                        0,
                        1,
                        quantisation,
                    );
                    number(pair)
                };
                let levels: [T; 16] = std::array::from_fn(level);
                let code = |channel: usize| codes[channel / 2] >> (channel % 2 * 4) & 15;
                let channels = g * group..n.min((g + 1) * group);
                to.extend(channels.map(|channel| levels[usize::from(code(channel))]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;

    use super::*;
    use crate::quantise::{quantise, restored};

    #[test]
    fn a_slot_has_the_bits_of_the_text() {
        for (format, n) in Format::ALL.into_iter().flat_map(|f| [1, 5, 16, 67].map(|n| (f, n))) {
            for (group, zero_point) in
                [None, Some(1), Some(3), Some(16)].into_iter().flat_map(|g| [(g, false), (g, true)])
            {
                if !format.is_integer() && (zero_point || group.is_some()) {
                    continue;
                }
                let x = Array2::from_shape_fn((3, n), |(t, c)| {
                    ((t * 131 + c * 37) % 23) as f32 * 0.37 - 3.9
                });
                let codes = quantise(&x, Quantisation { format, group, zero_point }).unwrap();
                let mut all: Vec<f32> = vec![];
                for slot in 0..3 {
                    let row = |x: &Array2<f32>| x.row(slot).to_vec();
                    let bytes = codes.codes.row(slot).to_vec();
                    let parts = (&bytes[..], &row(&codes.scale)[..], &row(&codes.zero)[..]);
                    restore_slot(&codes.quantisation, parts, n, &mut all);
                }
                let bits = |x: &f32| x.to_bits();
                let want: Vec<u32> = restored(&codes).iter().map(bits).collect();
                assert_eq!(all.iter().map(bits).collect::<Vec<_>>(), want, "{format}, {n}");
            }
        }
    }
}
