//! rten: its operators Mul, MatMul, Add and Softmax, the queries of a group below each other.

use rten::ops::add;
use rten::{BufferPool, FloatOperators, Operators};
use rten_tensor::Tensor;
use rten_tensor::prelude::*;

use crate::case::{Array, Case};
use crate::serve::Engine;

pub struct Rten {
    q: Tensor<f32>, // (B, Hkv, G · Tq, D)
    k: Tensor<f32>,
    v: Tensor<f32>,
    table: Option<Tensor<f32>>, // (Tq, Tk)
    scale: Tensor<f32>,
    group: usize,
}

impl Engine for Rten {
    type Output = Tensor<f32>;

    const NAME: &'static str = "rten";
    const VERSION: &'static str = "0.27";

    fn prepare(case: &Case) -> Self {
        let tensor =
            |x: &Array, shape: [usize; 4]| Tensor::from_data(&shape[..], x.numbers.clone());
        let ([batch, _, tq, d], [_, hkv, tk, _]) = (case.q.shape, case.k.shape);
        let group = case.group();
        Self {
            q: tensor(&case.q, [batch, hkv, group * tq, d]),
            k: tensor(&case.k, case.k.shape),
            v: tensor(&case.v, case.v.shape),
            table: case.causal_table().map(|table| Tensor::from_data(&[tq, tk][..], table)),
            scale: Tensor::from_data(&[][..], vec![case.scale]),
            group,
        }
    }

    fn attend(&self) -> Tensor<f32> {
        let queries = self.q.mul(self.scale.view()).expect("a number");
        let mut keys = self.k.view();
        keys.permute(&[0, 1, 3, 2]);
        let mut scores = queries.matmul(keys).expect("shapes that fit"); // (B, Hkv, G · Tq, Tk)
        if let Some(table) = &self.table {
            let (batch, hkv, rows, tk) =
                (scores.size(0), scores.size(1), scores.size(2), scores.size(3));
            scores.reshape(&[batch, hkv, self.group, rows / self.group, tk]);
            scores = add(&BufferPool::new(), scores.view(), table.view()).expect("shapes that fit");
            scores.reshape(&[batch, hkv, rows, tk]);
        }
        let weights = scores.softmax(-1).expect("an axis");
        weights.matmul(self.v.view()).expect("shapes that fit")
    }

    fn numbers(output: Tensor<f32>) -> Vec<f32> {
        output.to_vec()
    }
}
