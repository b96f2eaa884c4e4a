//! What a cache holds of keys that are quantised by channel, row by row, and what a file does.
//!
//! Letters: B batch, H heads, L slots of the longest row, D channels, n slots of a group, g groups of the row with the
//! most, t slots of the longest tail, S slots from some group on.

use ndarray::{Array1, Array2, Array3, Array4, ArrayRef3, Axis, Ix4, s};
use safetensors::Dtype;

use crate::cache_content::{Column, Contents, Entries, array_from_bytes, array_to_bytes};
use crate::errors::Result;
use crate::quantise::{Codes, Format, Quantisation, integer_code, integer_codes, packed};
use crate::rows::Rows;

/// n keys of a row.
#[derive(Debug, Clone)]
pub(crate) struct KeyGroup {
    pub codes: Array3<u8>,  // (H, n, bytes)
    pub scale: Array2<f32>, // (H, D)
    pub zero: Array2<f32>,  // (H, D), or (H, 0) without zero points
}

/// The keys of a row: groups, then those that are too few for one.
#[derive(Debug, Clone)]
pub(crate) struct KeyRow {
    pub groups: Vec<KeyGroup>,
    pub tail: Array3<f32>, // (H, under n, D)
}

/// What a row will hold from group `first` on.
pub(crate) struct Regrouped {
    pub first: usize,
    pub row: KeyRow,
}

impl KeyRow {
    /// No keys.
    pub(crate) fn empty(heads: usize, channels: usize) -> Self {
        Self { groups: vec![], tail: Array3::zeros((heads, 0, channels)) }
    }

    /// Other groups and another tail from some group on.
    pub(crate) fn become_so(&mut self, change: Regrouped) {
        self.groups.truncate(change.first);
        self.groups.extend(change.row.groups);
        self.tail = change.row.tail;
    }

    /// How many bytes they take.
    pub(crate) fn bytes(&self) -> usize {
        let of_group = |group: &KeyGroup| {
            group.codes.len() + size_of::<f32>() * (group.scale.len() + group.zero.len())
        };
        self.groups.iter().map(of_group).sum::<usize>() + size_of::<f32>() * self.tail.len()
    }
}

/// How the keys of all rows are held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyLayout {
    pub quantisation: Quantisation,
    pub heads: usize,
    pub channels: usize,
    pub n: usize,
}

impl KeyLayout {
    /// The group of n keys, (H, n, D): quantised as the channels of a token are, with tokens for channels.
    pub(crate) fn group(&self, keys: &ArrayRef3<f32>) -> Result<KeyGroup> {
        let (_, _, zeros) = self.widths();
        let (heads, n, channels) = keys.dim();
        let mut scale = Array2::zeros((heads, channels)); // (H, D)
        let mut zero = Array2::zeros((heads, zeros)); // (H, D)
        let mut codes = Array3::zeros((heads, n, channels)); // (H, n, D)
        for (h, d) in (0..heads).flat_map(|h| (0..channels).map(move |d| (h, d))) {
            let (tokens, mut rounded) = (keys.slice(s![h, .., d]).to_vec(), vec![]); // (n)
            let of_tokens = integer_codes(&tokens, &self.quantisation, &mut rounded)?;
            codes.slice_mut(s![h, .., d]).assign(&Array1::from(rounded));
            scale[[h, d]] = of_tokens.0;
            zero.get_mut([h, d]).into_iter().for_each(|zero| *zero = of_tokens.1);
        }
        let lanes = codes.lanes(Axis(2)).into_iter();
        let format = self.quantisation.format;
        let bytes: Vec<u8> = lanes.flat_map(|lane| packed(&lane.to_vec(), format)).collect();
        let shape = (heads, n, bytes.len() / (heads * n));
        let codes = Array3::from_shape_vec(shape, bytes).expect("one key after the other");
        Ok(KeyGroup { codes, scale, zero })
    }

    /// The keys (H, n, D) that a group stands for.
    pub(crate) fn restored_group(&self, group: &KeyGroup) -> Array3<f32> {
        Array3::from_shape_fn((self.heads, self.n, self.channels), |(h, t, d)| {
            let lane = group.codes.slice(s![h, t, ..]);
            let lane = lane.as_slice().expect("made so");
            let value = integer_code(lane, d, &self.quantisation) * group.scale[[h, d]];
            group.zero.get([h, d]).map_or(value, |zero| value + zero)
        })
    }

    /// Bytes of the codes of a key, and of how many channels there are scales and zeros.
    fn widths(&self) -> (usize, usize, usize) {
        let by_channel = Quantisation { group: Some(1), ..self.quantisation };
        by_channel.sizes(self.channels)
    }

    /// What a file has of them.
    pub(crate) fn columns(&self) -> Vec<Column> {
        let (bytes, scales, zeros) = self.widths();
        let signed = self.quantisation.format == Format::Int8 && !self.quantisation.zero_point;
        let dtype = if signed { Dtype::I8 } else { Dtype::U8 };
        let (heads, groups) = (Some(self.heads), Entries::Groups(self.n));
        let column = |name, dtype, entries, width| Column {
            name,
            dtype,
            heads,
            entries,
            width: Some(width),
        };
        let zero = column("k_zero", Dtype::F32, groups, zeros);
        [
            column("k_codes", dtype, Entries::Slots, bytes),
            column("k_scale", Dtype::F32, groups, scales),
        ]
        .into_iter()
        .chain((zeros > 0).then_some(zero))
        .chain([column("k_tail", Dtype::F32, Entries::Tail(self.n), self.channels)])
        .collect()
    }

    /// Of each column.
    pub(crate) fn contents(&self, keys: &[KeyRow], rows: &Rows) -> Contents {
        let (_, scales, zeros) = self.widths();
        let lengths = rows.lengths().to_vec();
        let shape = |entries: Entries, width| {
            (keys.len(), self.heads, entries.count(&lengths, rows.longest()), width)
        };
        let mut scale = Array4::zeros(shape(Entries::Groups(self.n), scales)); // (B, H, g, D)
        let mut zero = Array4::zeros(shape(Entries::Groups(self.n), zeros)); // (B, H, g, D)
        let mut tail = Array4::zeros(shape(Entries::Tail(self.n), self.channels)); // (B, H, t, D)
        for (b, row) in keys.iter().enumerate() {
            for (index, group) in row.groups.iter().enumerate() {
                scale.slice_mut(s![b, .., index, ..]).assign(&group.scale);
                zero.slice_mut(s![b, .., index, ..]).assign(&group.zero);
            }
            tail.slice_mut(s![b, .., ..row.tail.dim().1, ..]).assign(&row.tail);
        }
        [array_to_bytes(&self.codes(keys, rows)), array_to_bytes::<f32>(&scale)]
            .into_iter()
            .chain((zeros > 0).then(|| array_to_bytes::<f32>(&zero)))
            .chain([array_to_bytes::<f32>(&tail)])
            .collect()
    }

    /// The way back.
    pub(crate) fn restored(&self, contents: &[Vec<u8>], rows: &Rows) -> Vec<KeyRow> {
        let (bytes, scales, zeros) = self.widths();
        let lengths = rows.lengths().to_vec();
        let shape = |entries: Entries, width| {
            (lengths.len(), self.heads, entries.count(&lengths, rows.longest()), width)
        };
        let groups = Entries::Groups(self.n);
        let codes = array_from_bytes::<u8>(&contents[0], shape(Entries::Slots, bytes));
        let scale = array_from_bytes::<f32>(&contents[1], shape(groups, scales));
        let zero = if zeros > 0 { &contents[2][..] } else { &[] };
        let zero = array_from_bytes::<f32>(zero, shape(groups, zeros));
        let tail = &contents[contents.len() - 1];
        let tail = array_from_bytes::<f32>(tail, shape(Entries::Tail(self.n), self.channels));
        let group = |b: usize, index: usize| KeyGroup {
            codes: codes.slice(s![b, .., index * self.n..(index + 1) * self.n, ..]).to_owned(),
            scale: scale.slice(s![b, .., index, ..]).to_owned(),
            zero: zero.slice(s![b, .., index, ..]).to_owned(),
        };
        let row = |(b, &length): (usize, &i64)| {
            let length = length as usize;
            KeyRow {
                groups: (0..length / self.n).map(|index| group(b, index)).collect(),
                tail: tail.slice(s![b, .., ..length % self.n, ..]).to_owned(),
            }
        };
        lengths.iter().enumerate().map(row).collect()
    }

    /// (B, H, L, bytes), 0 where a tail is and beyond a row.
    fn codes(&self, keys: &[KeyRow], rows: &Rows) -> Array4<u8> {
        let (bytes, ..) = self.widths();
        let mut codes = Array4::zeros((keys.len(), self.heads, rows.longest(), bytes));
        for (b, row) in keys.iter().enumerate() {
            for (index, group) in row.groups.iter().enumerate() {
                let slots = index * self.n..(index + 1) * self.n;
                codes.slice_mut(s![b, .., slots, ..]).assign(&group.codes);
            }
        }
        codes
    }

    /// The codes of every slot, with the scales of its group: (B, H, L, ·), 0 where a tail is and beyond a row.
    pub(crate) fn by_slot(&self, keys: &[KeyRow], rows: &Rows) -> Codes<Ix4> {
        let (_, scales, zeros) = self.widths();
        let shape = |width| (keys.len(), self.heads, rows.longest(), width);
        let (mut scale, mut zero) = (Array4::zeros(shape(scales)), Array4::zeros(shape(zeros)));
        for (b, row) in keys.iter().enumerate() {
            for (index, group) in row.groups.iter().enumerate() {
                let slots = index * self.n..(index + 1) * self.n;
                let scale_of = group.scale.view().insert_axis(Axis(1)); // (H, 1, D)
                let zero_of = group.zero.view().insert_axis(Axis(1)); // (H, 1, D)
                scale.slice_mut(s![b, .., slots.clone(), ..]).assign(&scale_of);
                zero.slice_mut(s![b, .., slots, ..]).assign(&zero_of);
            }
        }
        let quantisation = Quantisation { group: Some(1), ..self.quantisation };
        let codes = self.codes(keys, rows);
        Codes { quantisation, channels: self.channels, codes, scale, zero }
    }
}
