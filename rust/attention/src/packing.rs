//! Projections of queries, keys and values that are stored in one piece.

use ndarray::{Array, ArrayRef, Axis, RemoveAxis};

use crate::checks::check_packed;
use crate::errors::{AttentionError, Fault, Result};

/// In which order the rows of the three lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Packing {
    /// All of q, then all of k, then all of v.
    #[default]
    Blocks,
    /// For each key/value head its G query heads, its key, its value.
    Heads,
}

impl std::str::FromStr for Packing {
    type Err = AttentionError;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "blocks" => Ok(Self::Blocks),
            "heads" => Ok(Self::Heads),
            _ => {
                let fault = Fault::new("mha", "packing", "blocks or heads", name);
                Err(AttentionError::InvalidConfig(fault))
            }
        }
    }
}

/// The rows of `packed` ((Hq + 2·Hkv)·D, …) apart: (Hq·D, …), (Hkv·D, …), (Hkv·D, …).
///
/// `argument` is its name in the message of an error.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`.
///
/// ```
/// use ndarray::array;
/// use rosetta_attention::{Packing, unpack};
/// let [q, k, v] = unpack("w_qkv", &array![1, 2, 5, 7, 3, 4, 6, 8], 4, 2, Packing::Heads)?;
/// assert_eq!((q, k, v), (array![1, 2, 3, 4], array![5, 6], array![7, 8]));
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn unpack<A: Clone, D: RemoveAxis>(
    argument: &'static str,
    packed: &ArrayRef<A, D>,
    num_heads: usize,
    num_kv_heads: usize,
    packing: Packing,
) -> Result<[Array<A, D>; 3]> {
    let rows = packed.len_of(Axis(0));
    check_packed("mha", argument, rows, (num_heads, num_kv_heads))?;
    let d = rows / (num_heads + 2 * num_kv_heads); // D
    let group = num_heads / num_kv_heads; // G
    let owner = |head: usize| match packing {
        Packing::Blocks if head < num_heads => 0,
        Packing::Blocks => 1 + usize::from(head >= num_heads + num_kv_heads),
        Packing::Heads => (head % (group + 2)).saturating_sub(group - 1),
    };
    Ok([0, 1, 2].map(|part| {
        let own: Vec<_> = (0..rows).filter(|row| owner(row / d) == part).collect();
        packed.select(Axis(0), &own)
    }))
}
