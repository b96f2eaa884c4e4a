//! What the file of a cache holds: its description, and columns of numbers as bytes, little-endian.

use std::fmt::Display;

use half::{bf16, f16};
use ndarray::{Array4, ArrayRef4};
use safetensors::Dtype;

use crate::cache::Sizes;

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

/// What the file of a cache holds for each slot under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Of the tensor.
    pub name: &'static str,
    /// Of its elements.
    pub dtype: Dtype,
    /// H; `None` = the tensor is (B, L, n).
    pub heads: Option<usize>,
    /// n.
    pub width: usize,
}

impl Column {
    /// The shape of the tensor.
    pub fn shape(&self, batch: usize, longest: usize) -> Vec<usize> {
        [batch].into_iter().chain(self.heads).chain([longest, self.width]).collect()
    }
}

impl Column {
    /// Keys and values as they were given.
    pub(crate) fn of_kv<S: Element>(sizes: Sizes) -> Vec<Self> {
        let column =
            |name, width| Self { name, dtype: S::DTYPE, heads: Some(sizes.num_kv_heads), width };
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
