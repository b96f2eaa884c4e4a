//! faer: its matrix products, head by head, and a softmax in plain loops, the queries of a group below each other.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

use crate::case::Case;
use crate::serve::Engine;

pub struct Faer {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    table: Option<Vec<f32>>, // (Tq, Tk)
    scale: f32,
    heads: usize,                        // B · Hkv
    sizes: (usize, usize, usize, usize), // G · Tq, Tk, D, Dv
}

impl Engine for Faer {
    type Output = Vec<f32>;

    const NAME: &'static str = "faer";
    const VERSION: &'static str = "0.24";

    fn prepare(case: &Case) -> Self {
        let ([batch, _, tq, d], [_, hkv, tk, _]) = (case.q.shape, case.k.shape);
        Self {
            q: case.q.numbers.clone(),
            k: case.k.numbers.clone(),
            v: case.v.numbers.clone(),
            table: case.causal_table(),
            scale: case.scale,
            heads: batch * hkv,
            sizes: (case.group() * tq, tk, d, case.v.shape[3]),
        }
    }

    fn attend(&self) -> Vec<f32> {
        let (rows, tk, d, dv) = self.sizes;
        let mut scores = vec![0.0; rows * tk];
        let mut output = vec![0.0; self.heads * rows * dv];
        for head in 0..self.heads {
            let part = |x: &'_ [f32], count| -> std::ops::Range<usize> {
                debug_assert!(x.len() == self.heads * count);
                head * count..(head + 1) * count
            };
            let q = MatRef::from_row_major_slice(&self.q[part(&self.q, rows * d)], rows, d);
            let k = MatRef::from_row_major_slice(&self.k[part(&self.k, tk * d)], tk, d);
            let v = MatRef::from_row_major_slice(&self.v[part(&self.v, tk * dv)], tk, dv);
            let table = MatMut::from_row_major_slice_mut(&mut scores, rows, tk);
            matmul(table, Accum::Replace, q, k.transpose(), self.scale, Par::Seq);
            for (r, row) in scores.chunks_exact_mut(tk).enumerate() {
                if let Some(causal) = &self.table {
                    let first = r * tk % causal.len();
                    row.iter_mut()
                        .zip(&causal[first..first + tk])
                        .for_each(|(x, added)| *x += added);
                }
                softmax(row);
            }
            let weights = MatRef::from_row_major_slice(&scores, rows, tk);
            let own = &mut output[head * rows * dv..(head + 1) * rows * dv];
            let own = MatMut::from_row_major_slice_mut(own, rows, dv);
            matmul(own, Accum::Replace, weights, v, 1.0, Par::Seq);
        }
        output
    }

    fn numbers(output: Vec<f32>) -> Vec<f32> {
        output
    }
}

/// Of one row, in place.
fn softmax(row: &mut [f32]) {
    let top = row.iter().fold(f32::NEG_INFINITY, |top, &x| if x > top { x } else { top });
    row.iter_mut().for_each(|x| *x = exp(*x - top));
    let mut sums = [0.0_f32; 8]; // eight at once
    let (whole, rest) = row.as_chunks::<8>();
    for chunk in whole {
        sums.iter_mut().zip(chunk).for_each(|(sum, x)| *sum += x);
    }
    let total = sums.iter().chain(rest).sum::<f32>();
    row.iter_mut().for_each(|x| *x /= total);
}

/// e^x for x <= 0 or NaN, within some units in the last place, by a loop body that compilers vectorise: 2^n times the
/// Taylor sum of what is left.
fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23
    let clamped = if x < -87.0 { -87.0 } else { x };
    let n = clamped * std::f32::consts::LOG2_E + ROUND - ROUND;
    let r = clamped - n * std::f32::consts::LN_2;
    let terms = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let sum = terms.into_iter().fold(0.0_f32, |sum, term| sum * r + term);
    let power = f32::from_bits(((n + ROUND).to_bits() << 23).wrapping_add(127 << 23));
    if x < -87.0 { 0.0 } else { sum * power }
}
