//! Linear attention: a feature map in the place of the softmax, so that the past fits into a matrix.
//!
//! ```text
//! output_i = f(q_i)ᵀ S / f(q_i)ᵀ z,   S = Σ_j f(k_j) v_jᵀ,   z = Σ_j f(k_j),   f(x) = elu(x) + 1
//! ```
//!
//! This rung is the parallel one: it has a table of all pairs, like softmax attention. The
//! [recurrent](mod@crate::linear_recurrent) one reads and writes the matrix token by token, the
//! [chunked](mod@crate::linear_chunked) one chunk by chunk.
//!
//! Letters: B batch, Hq query heads, Hkv key/value heads, G = Hq / Hkv, Tq and Tk query and key
//! lengths, D head size, Dv head size of the values.
//!
//! Source: Katharopoulos et al., "Transformers are RNNs", 2020, sections 3.2 and 3.3.

use ndarray::{Array1, Array3, Array4, ArrayRef1, ArrayRef2, ArrayRef4, ArrayView1, Axis, Zip, s};

use crate::checks::check_linear_attention;
use crate::errors::Result;
use crate::float::Float;
use crate::sdpa::dot;

/// What linear attention remembers of the keys that it has seen.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearState<T> {
    /// S, the sum of f(k) vᵀ: (B, Hkv, D, Dv)
    pub state: Array4<T>,
    /// z, the sum of f(k): (B, Hkv, D)
    pub norm: Array3<T>,
}

impl<T: Float> LinearState<T> {
    /// The memory of no key at all, for keys `k` (B, Hkv, Tk, D) and values `v` (B, Hkv, Tk, Dv).
    pub fn empty(k: &ArrayRef4<T>, v: &ArrayRef4<T>) -> Self {
        let (batch, heads, _, d) = k.dim();
        let state = Array4::zeros((batch, heads, d, v.dim().3));
        Self { state, norm: Array3::zeros((batch, heads, d)) }
    }
}

/// Linear attention of `q` (B, Hq, Tq, D) over `k` (B, Hkv, Tk, D) and `v` (B, Hkv, Tk, Dv): output
/// (B, Hq, Tq, Dv), and the memory with all keys in it.
///
/// `causal`: query i sees the keys up to i, which takes Tq = Tk. `state`: what was seen before these
/// keys; every query sees all of it. A query whose denominator is 0 has output 0.
///
/// # Errors
/// `ShapeMismatch`.
///
/// ```
/// use ndarray::{Array4, array};
/// use rosetta_attention::linear_attention;
/// // Queries and keys of 0 have the feature 1: the output is the mean of the values seen.
/// let (q, k) = (Array4::<f32>::zeros((1, 1, 3, 1)), Array4::zeros((1, 1, 3, 1)));
/// let v = array![[[[1.0], [2.0], [3.0]]]];
/// let (output, memory) = linear_attention(&q, &k, &v, true, None)?;
/// assert_eq!(output, array![[[[1.0], [1.5], [2.0]]]]);
/// assert_eq!((memory.state, memory.norm), (array![[[[6.0]]]], array![[[3.0]]]));
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn linear_attention<T: Float>(
    q: &ArrayRef4<T>,
    k: &ArrayRef4<T>,
    v: &ArrayRef4<T>,
    causal: bool,
    state: Option<&LinearState<T>>,
) -> Result<(Array4<T>, LinearState<T>)> {
    check_linear_attention("linear_attention", q.dim(), k.dim(), v.dim(), causal, state)?;
    let (batch, hq, tq, _) = q.dim();
    let (_, hkv, tk, dv) = v.dim();
    let group = hq / hkv.max(1); // G
    let mut memory = state.cloned().unwrap_or_else(|| LinearState::empty(k, v));

    // 1. feature map: of queries and keys, positive
    let (q, k) = (q.mapv(feature), k.mapv(feature)); // (B, Hq, Tq, D), (B, Hkv, Tk, D)

    // 2. similarities: f(q) · f(k) of every query and every key of its group
    let similar = Array4::from_shape_fn((batch, hq, tq, tk), |(b, h, i, j)| {
        dot(q.slice(s![b, h, i, ..]), k.slice(s![b, h / group, j, ..]))
    }); // (B, Hq, Tq, Tk)

    // 3. mask: the keys that a query sees come first, and the others are not read
    let seen = |i: usize| if causal { i + 1 } else { tk };

    // 4. weighted sum: of the values seen, after what is remembered
    let mut output = Array4::zeros((batch, hq, tq, dv)); // (B, Hq, Tq, Dv)
    let mut total = Array3::zeros((batch, hq, tq)); // (B, Hq, Tq)
    for ((b, h, i), total) in total.indexed_iter_mut() {
        let (q, kv) = (q.slice(s![b, h, i, ..]), h / group);
        let mut sum = read(q, &memory.state.slice(s![b, kv, .., ..])); // (Dv)
        *total = dot(q, memory.norm.slice(s![b, kv, ..]));
        for j in 0..seen(i) {
            let weight = similar[[b, h, i, j]];
            sum.scaled_add(weight, &v.slice(s![b, kv, j, ..])); // (Dv)
            *total += weight;
        }
        output.slice_mut(s![b, h, i, ..]).assign(&sum);
    }

    // 5. normalise: by the sum of the similarities
    Zip::from(output.rows_mut()).and(&total).for_each(|mut output, &total| {
        divide(&mut output, total); // (Dv)
    });

    // 6. state: what a later call has to know of these keys
    for (b, h, j) in ndarray::indices((batch, hkv, tk)) {
        let (key, value) = (k.slice(s![b, h, j, ..]), v.slice(s![b, h, j, ..]));
        write(&mut memory.state.slice_mut(s![b, h, .., ..]), key, &value); // (D, Dv)
        let mut norm = memory.norm.slice_mut(s![b, h, ..]);
        norm += &key; // (D)
    }
    Ok((output, memory))
}

/// elu(x) + 1, without the rounding of taking 1 away and adding it again.
pub(crate) fn feature<T: Float>(x: T) -> T {
    if x > T::zero() { x + T::one() } else { x.exp() }
}

/// What a memory (D, Dv) holds under a key (D): Sᵀ k (Dv), in the order of the channels.
pub(crate) fn read<T: Float>(key: ArrayView1<'_, T>, memory: &ArrayRef2<T>) -> Array1<T> {
    let mut value = Array1::zeros(memory.ncols());
    for (&key, row) in key.iter().zip(memory.rows()) {
        value.scaled_add(key, &row);
    }
    value
}

/// Adds k vᵀ to a memory (D, Dv).
pub(crate) fn write<T: Float>(
    memory: &mut ArrayRef2<T>,
    key: ArrayView1<'_, T>,
    value: &ArrayRef1<T>,
) {
    for (&key, mut row) in key.iter().zip(memory.axis_iter_mut(Axis(0))) {
        row.scaled_add(key, value);
    }
}

/// Divides by a denominator; 0 where that is 0.
pub(crate) fn divide<T: Float>(x: &mut ArrayRef1<T>, denominator: T) {
    x.mapv_inplace(|x| if denominator == T::zero() { T::zero() } else { x / denominator });
}
