//! What the file of a cache holds: its description, and columns of numbers as bytes, little-endian.

use std::fmt::Display;

use half::{bf16, f16};
use ndarray::{Array4, ArrayRef4};
use safetensors::Dtype;

use crate::cache::Sizes;
use crate::quantise::Quantisation;

/// A number that files have.
pub trait Element: Copy + Default {
    /// Its name there.
    const DTYPE: Dtype;

    /// Adds its bytes to others.
    fn put(self, bytes: &mut Vec<u8>);

    /// The number that the right count of bytes are.
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! element {
    ($type:ty, $dtype:ident) => {
        impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;

            fn put(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }

            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("as many as it has"))
            }
        }
    };
}

element!(u8, U8);
element!(i64, I64);
element!(f16, F16);
element!(bf16, BF16);
element!(f32, F32);
element!(f64, F64);

/// What the file of a cache holds under one name, for each slot as a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Of the tensor.
    pub name: &'static str,
    /// Of its elements.
    pub dtype: Dtype,
    /// H; `None` = the tensor is (B, L, n).
    pub heads: Option<usize>,
    /// What stands in the place of L.
    pub entries: Entries,
    /// n; `None` = the tensor is (B, H, L).
    pub width: Option<usize>,
}

/// What a row has one entry for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entries {
    /// Every slot.
    Slots,
    /// So many slots together, if there are as many.
    Groups(usize),
    /// Each of the last slots, which are too few for a group of so many.
    Tail(usize),
}

impl Entries {
    /// How many the tensor has in a row, for rows of these lengths, memory for `longest` slots in each.
    pub fn count(self, lengths: &[i64], longest: usize) -> usize {
        let most = |entries: &dyn Fn(usize) -> usize| {
            lengths.iter().map(|&length| entries(length as usize)).max().unwrap_or(0)
        };
        match self {
            Self::Slots => longest,
            Self::Groups(n) => most(&|length| length / n),
            Self::Tail(n) => most(&|length| length % n),
        }
    }
}

impl Column {
    /// The shape of the tensor, for rows of these lengths, memory for `longest` slots in each.
    pub fn shape(&self, batch: usize, lengths: &[i64], longest: usize) -> Vec<usize> {
        let entries = self.entries.count(lengths, longest);
        [batch].into_iter().chain(self.heads).chain([entries]).chain(self.width).collect()
    }

    /// Keys and values as they were given.
    pub(crate) fn of_kv<S: Element>(sizes: Sizes) -> Vec<Self> {
        let (heads, entries) = (Some(sizes.num_kv_heads), Entries::Slots);
        let column =
            |name, width| Self { name, dtype: S::DTYPE, heads, entries, width: Some(width) };
        vec![column("k", sizes.head_dim), column("v", sizes.value_dim)]
    }
}

/// What the file of a cache says of it, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description(pub Vec<(&'static str, String)>);

impl Description {
    /// Of a cache whose numbers came as `S`.
    pub(crate) fn new<S: Element>(kind: &'static str, batch: usize) -> Self {
        let dtype = S::DTYPE.to_string().to_lowercase();
        Self(vec![("kind", kind.into()), ("dtype", dtype), ("batch", batch.to_string())])
    }

    /// Of a cache of keys and values.
    pub(crate) fn of_kv<S: Element>(kind: &'static str, sizes: Sizes) -> Self {
        Self::new::<S>(kind, sizes.batch)
            .with("num_kv_heads", sizes.num_kv_heads)
            .with("head_dim", sizes.head_dim)
            .with("value_dim", sizes.value_dim)
    }

    /// Of a cache of codes.
    pub(crate) fn of_quantised<S: Element>(sizes: Sizes, quantisation: &Quantisation) -> Self {
        let &Quantisation { format, group, zero_point } = quantisation;
        let plain = Self::of_kv::<S>("quantised", sizes)
            .with("quantised_format", format)
            .with("zero_point", zero_point);
        match group.filter(|&group| group != sizes.head_dim || group != sizes.value_dim) {
            None => plain,
            Some(group) => plain.with("group", group),
        }
    }

    /// And of something that is absent otherwise.
    pub(crate) fn with_if(self, there: bool, name: &'static str, value: impl Display) -> Self {
        if there { self.with(name, value) } else { self }
    }

    /// And of something else.
    pub(crate) fn with(mut self, name: &'static str, value: impl Display) -> Self {
        self.0.push((name, value.to_string()));
        self
    }
}

/// The bytes of each column.
pub type Contents = Vec<Vec<u8>>;

/// All numbers, row by row.
pub(crate) fn to_bytes<E: Element>(numbers: impl IntoIterator<Item = E>) -> Vec<u8> {
    let mut bytes = vec![];
    numbers.into_iter().for_each(|number| number.put(&mut bytes));
    bytes
}

/// The way back.
pub(crate) fn from_bytes<E: Element>(bytes: &[u8]) -> Vec<E> {
    bytes.chunks_exact(size_of::<E>()).map(E::from_bytes).collect()
}

/// An array of one column.
pub(crate) fn array_from_bytes<E: Element>(
    bytes: &[u8],
    shape: (usize, usize, usize, usize),
) -> Array4<E> {
    Array4::from_shape_vec(shape, from_bytes(bytes)).expect("a checked column")
}

/// The bytes of one column.
pub(crate) fn array_to_bytes<E: Element>(x: &ArrayRef4<E>) -> Vec<u8> {
    to_bytes(x.iter().copied())
}
