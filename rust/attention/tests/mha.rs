//! What a layer of multi-head attention does beside its four projections.

use crate::common::{same, signed};
use ndarray::{Array1, Array2, Array3, Array4, Axis, CowArray, array, concatenate, s};
use rosetta_attention::{
    Dropout, Mask, MhaOptions, MultiHeadAttention, Packing, Rope, Sdpa, rms_norm, rope, sdpa_steps,
};

type Layer<'a> = MultiHeadAttention<'a, f64>;

fn matrix(rows: usize, columns: usize, seed: u64) -> Array2<f64> {
    signed((1, 1, rows, columns), seed).into_shape_with_order((rows, columns)).unwrap()
}

fn input(batch: usize, len: usize, width: usize) -> Array3<f64> {
    signed((1, batch, len, width), 50).into_shape_with_order((batch, len, width)).unwrap()
}

/// Hq 4, Hkv 2, D 6, Dv 6, C 5.
fn layer<'a>() -> Layer<'a> {
    Layer {
        num_kv_heads: Some(2),
        ..Layer::new(matrix(24, 5, 1), matrix(12, 5, 2), matrix(12, 5, 3), matrix(7, 24, 4), 4)
    }
}

#[test]
fn packed_rows_are_those_of_the_three() {
    let (parts, x) = (layer(), input(2, 3, 5));
    let want = parts.forward(&x, None, &MhaOptions::default()).unwrap();
    let head = |w: &CowArray<'_, f64, _>, h: usize| w.slice(s![6 * h..6 * h + 6, ..]).to_owned();
    let (q, k, v) = (|h| head(&parts.w_q, h), |h| head(&parts.w_k, h), |h| head(&parts.w_v, h));
    for (packing, order) in [
        (Packing::Blocks, [q(0), q(1), q(2), q(3), k(0), k(1), v(0), v(1)]),
        (Packing::Heads, [q(0), q(1), k(0), v(0), q(2), q(3), k(1), v(1)]),
    ] {
        let rows: Vec<_> = order.iter().map(|rows| rows.view()).collect();
        let w_qkv = concatenate(Axis(0), &rows).unwrap();
        let b_qkv = Array1::zeros(w_qkv.nrows());
        for b_qkv in [None, Some(&b_qkv)] {
            let b_qkv = b_qkv.map(|b| &**b);
            let packed = Layer::packed(&w_qkv, b_qkv, parts.w_o.clone(), 4, 2, packing).unwrap();
            assert!(same(&packed.forward(&x, None, &MhaOptions::default()).unwrap(), &want));
        }
    }
    let code = |rows, heads, kv_heads| {
        let w = matrix(rows, 5, 1);
        let packed = Layer::packed(&w, None, matrix(7, 24, 4), heads, kv_heads, Packing::Blocks);
        packed.unwrap_err().code()
    };
    assert_eq!(code(9, 2, 1), "shape_mismatch");
    assert_eq!(code(12, 3, 2), "invalid_config");
    assert_eq!(code(12, 0, 1), "invalid_config");
    assert_eq!("rows".parse::<Packing>().unwrap_err().code(), "invalid_config");
}

#[test]
fn queries_and_keys_are_normed_and_then_turned() {
    let x = input(2, 3, 5);
    let (q_norm, k_norm) = (array![1.0, 2.0, 0.5, -1.0, 3.0, 1.0], Array1::from_elem(6, 0.5));
    let positions = array![[0, 1, 2], [7, 3, 3]];
    let rotary = Rope { rotary_dim: Some(4), base: 100.0, ..Rope::default() };
    let full = Layer {
        q_norm: Some(q_norm.view().into()),
        k_norm: Some(k_norm.view().into()),
        qk_norm_eps: 0.25,
        rope: Some(rotary.clone()),
        w_o: Array2::eye(24).into(),
        ..layer()
    };
    let options = MhaOptions { positions: Some(&positions), ..MhaOptions::default() };
    let steps = full.steps(&x, None, &options).unwrap();

    let heads = |w: &CowArray<'_, f64, _>, count: usize| {
        let rows: Array2<f64> = x.to_shape((6, 5)).unwrap().dot(&w.t());
        let rows = rows.into_shape_with_order((2, 3, count, 6)).unwrap();
        rows.permuted_axes([0, 2, 1, 3])
    };
    let place = |x: Array4<f64>, norm: &Array1<f64>| {
        let normed = rms_norm(&x, Some(norm), 0.25).unwrap();
        rope(&normed, &rotary, Some(&positions), None).unwrap()
    };
    let (q, k) = (place(heads(&full.w_q, 4), &q_norm), place(heads(&full.w_k, 2), &k_norm));
    let want = sdpa_steps(&q, &k, &heads(&full.w_v, 2), &Sdpa::default()).unwrap();
    assert!(same(&steps.weights, &want.weights) && same(&steps.lse, &want.lse));
    let mean = want.weights.mean_axis(Axis(1)).unwrap();
    // In two orders: 3 sums of weights up to 1 and a quotient by 4, which is exact.
    let room = 2.0 * 3.0 * f64::EPSILON / 2.0;
    assert!(steps.mean_weights.iter().zip(&mean).all(|(a, b)| (a - b).abs() <= room));
    assert_eq!(full.num_parameters(), 24 * 5 + 2 * 12 * 5 + 24 * 24 + 2 * 6);
}

#[test]
fn a_pruned_head_contributes_nothing() {
    let x = input(1, 3, 5);
    let mut parts = layer();
    let kept = array![true, true, false, false];
    let options = MhaOptions { head_mask: Some(&kept), ..MhaOptions::default() };
    let want = parts.forward(&x, None, &options).unwrap();
    let mut w_v = parts.w_v.clone().into_owned();
    w_v.slice_mut(s![6.., ..]).fill(f64::NAN); // those of the second KV head
    parts.w_v = w_v.into();
    assert!(same(&parts.forward(&x, None, &options).unwrap(), &want));
    let none = Array1::from_elem(4, false);
    let options = MhaOptions { head_mask: Some(&none), ..options };
    assert_eq!(parts.forward(&x, None, &options).unwrap(), Array3::<f64>::zeros((1, 3, 7)));
    assert_eq!(parts.steps(&x, None, &options).unwrap().weights.dim(), (1, 4, 3, 3));
}

#[test]
fn weights_are_those_before_dropout() {
    let (parts, x) = (layer(), input(1, 3, 5));
    let attention = Sdpa { dropout: Some(Dropout { p: 1.0, seed: 1 }), ..Sdpa::default() };
    let steps = parts.steps(&x, None, &MhaOptions { attention, ..MhaOptions::default() }).unwrap();
    assert_eq!(steps.output, Array3::<f64>::zeros((1, 3, 7)));
    let plain = parts.steps(&x, None, &MhaOptions::default()).unwrap();
    assert!(same(&steps.weights, &plain.weights) && same(&steps.lse, &plain.lse));
}

#[test]
fn faults() {
    let (x, context) = (input(2, 3, 5), input(2, 4, 5));
    let code = |layer: &Layer<'_>, context: Option<&Array3<f64>>, options: &MhaOptions<'_, f64>| {
        layer.forward(&x, context.map(|c| &**c), options).unwrap_err().code()
    };
    let (plain, none) = (layer(), MhaOptions::default());
    let turned = Layer { rope: Some(Rope::default()), ..plain.clone() };
    assert_eq!(code(&turned, Some(&context), &none), "invalid_config");
    let odd = Rope { rotary_dim: Some(8), ..Rope::default() };
    assert_eq!(code(&Layer { rope: Some(odd), ..plain.clone() }, None, &none), "invalid_config");
    let positions = array![[0, 1], [0, 1]];
    let misplaced = MhaOptions { positions: Some(&positions), ..none };
    assert_eq!(code(&turned, None, &misplaced), "shape_mismatch");
    let in_place = array![[0, 1, 2], [0, 1, 2]];
    let unturned = MhaOptions { positions: Some(&in_place), ..none };
    assert_eq!(code(&plain, None, &unturned), "invalid_config");
    let norm = || Some(CowArray::from(Array1::ones(5)));
    assert_eq!(code(&Layer { k_norm: norm(), ..plain.clone() }, None, &none), "shape_mismatch");
    let below = Layer { qk_norm_eps: -1.0, ..plain.clone() };
    assert_eq!(code(&below, None, &none), "invalid_config");
    let kept = array![true];
    let head_mask = MhaOptions { head_mask: Some(&kept), ..none };
    assert_eq!(code(&plain, None, &head_mask), "shape_mismatch");
    let attention = Sdpa { dropout: Some(Dropout { p: 2.0, seed: 0 }), ..Sdpa::default() };
    assert_eq!(code(&plain, None, &MhaOptions { attention, ..none }), "invalid_config");
    let lengths = array![4, 4];
    let mask = Mask { kv_lengths: Some(&lengths), ..Mask::default() };
    let attention = Sdpa { mask, ..Sdpa::default() };
    assert_eq!(code(&plain, None, &MhaOptions { attention, ..none }), "invalid_config");
}
