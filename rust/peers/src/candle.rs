//! candle: `matmul` and `softmax_last_dim`, the queries of a group below each other.

use candle_core::{Device, Result, Tensor};
use candle_nn::ops::softmax_last_dim;

use crate::case::{Array, Case};
use crate::serve::Engine;

pub struct Candle {
    q: Tensor, // (B, Hkv, G · Tq, D)
    k: Tensor,
    v: Tensor,
    table: Option<Tensor>, // (Tq, Tk)
    scale: f64,
    sizes: (usize, usize), // G, Tq
}

impl Engine for Candle {
    type Output = Tensor;

    const NAME: &'static str = "candle";
    const VERSION: &'static str = "0.11";

    fn prepare(case: &Case) -> Self {
        let tensor = |x: &Array, shape: [usize; 4]| {
            Tensor::from_slice(&x.numbers, &shape[..], &Device::Cpu).expect("a tensor")
        };
        let ([batch, _, tq, d], [_, hkv, tk, _]) = (case.q.shape, case.k.shape);
        let group = case.group();
        let table = case
            .causal_table()
            .map(|table| Tensor::from_vec(table, (tq, tk), &Device::Cpu).expect("a tensor"));
        Self {
            q: tensor(&case.q, [batch, hkv, group * tq, d]),
            k: tensor(&case.k, case.k.shape),
            v: tensor(&case.v, case.v.shape),
            table,
            scale: f64::from(case.scale),
            sizes: (group, tq),
        }
    }

    fn attend(&self) -> Tensor {
        let attend = || -> Result<Tensor> {
            let (group, tq) = self.sizes;
            let mut scores = (&self.q * self.scale)?.matmul(&self.k.t()?)?; // (B, Hkv, G · Tq, Tk)
            if let Some(table) = &self.table {
                let (batch, hkv, rows, tk) = scores.dims4()?;
                scores = scores.reshape((batch, hkv, group, tq, tk))?.broadcast_add(table)?;
                scores = scores.reshape((batch, hkv, rows, tk))?;
            }
            softmax_last_dim(&scores)?.matmul(&self.v)
        };
        attend().expect("shapes that fit")
    }

    fn numbers(output: Tensor) -> Vec<f32> {
        output.flatten_all().and_then(|x| x.to_vec1()).expect("f32")
    }
}
