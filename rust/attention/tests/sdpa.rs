//! sdpa on cases that a person can check, in the readable rung and in every tier of the simd rung.
//!
//! Score form: D = 1, scale 1, a query of 1, so the keys are the scores. Uniform form: q = 0, so the
//! output is the mean of the visible values. Names of flags are those of docs/traps.md.

use crate::common::{column, expect, rows, rungs, same, signed, tiers};
use ndarray::{Array3, Array4, ArrayD, array, s};
use rosetta_attention::{
    Mask, Offset, Sdpa, Tier, blocked, sdpa, sdpa_simd, sdpa_steps, sdpa_threads,
};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

fn ln(x: f64) -> f64 {
    x.ln()
}

/// One query of 1 over these keys and values, scale 1.
fn score_form(
    scores: &[f64],
    values: &[f64],
    options: Sdpa<'_, f64>,
    output: f64,
    lse: Option<f64>,
) {
    let options = Sdpa { scale: Some(1.0), ..options };
    let lse = lse.map(|lse| [lse]);
    expect(
        &column(&[1.0]),
        &column(scores),
        &column(values),
        &options,
        &[output],
        lse.as_ref().map(|x| &x[..]),
    );
}

/// `queries` queries of 0 over these values.
fn uniform_form(queries: usize, values: &[f64], mask: Mask<'_>, output: &[f64]) {
    let (q, k) = (Array4::<f32>::zeros((1, 1, queries, 1)), Array4::zeros((1, 1, values.len(), 1)));
    expect(&q, &k, &column(values), &Sdpa { mask, ..Sdpa::default() }, output, None);
}

#[test]
fn weights_of_a_third_and_two_thirds() {
    score_form(&[0.0, ln(2.0)], &[3.0, 6.0], Sdpa::default(), 5.0, Some(ln(3.0)));
}

#[test]
fn a_row_without_a_visible_key_is_zero() {
    let keep = array![[true, true], [false, false]].into_dyn(); // FullyMaskedRow
    let mask = Mask { keep: Some(&keep), ..Mask::default() };
    let options = Sdpa { mask, scale: Some(1.0), ..Sdpa::default() };
    let (q, k) = (column::<f64>(&[1.0, 1.0]), column(&[0.0, ln(2.0)]));
    expect(&q, &k, &column(&[3.0, 6.0]), &options, &[5.0, 0.0], Some(&[ln(3.0), -INF]));
    let steps = sdpa_steps(&q, &k, &column(&[3.0, 6.0]), &options).unwrap();
    assert_eq!(steps.weights.slice(s![0, 0, 1, ..]).to_vec(), [0.0, 0.0]);
}

#[test]
fn causal_and_window() {
    let causal = Mask { causal: true, ..Mask::default() };
    let at = |offset| Mask { q_offset: Some(Offset::One(offset)), ..causal };
    uniform_form(2, &[1.0, 2.0, 4.0, 8.0], causal, &[1.0, 1.5]); // CausalAlignment
    uniform_form(2, &[1.0, 2.0, 4.0, 8.0], at(2), &[7.0 / 3.0, 3.75]);
    uniform_form(2, &[1.0, 2.0, 4.0, 8.0, 16.0], at(3), &[3.75, 6.2]); // ChunkedPrefill
    uniform_form(4, &[1.0, 3.0], at(-2), &[0.0, 0.0, 1.0, 2.0]); // FullyMaskedRow
    let window = Mask { window: Some((Some(1), Some(0))), ..Mask::default() };
    uniform_form(3, &[1.0, 2.0, 4.0], window, &[1.0, 1.5, 3.0]); // no causal, no mask
    let both = Mask { window: Some((Some(1), None)), ..causal };
    uniform_form(4, &[1.0, 2.0, 4.0, 8.0], both, &[1.0, 1.5, 3.0, 6.0]); // WindowOffByOne
}

#[test]
fn true_means_attend() {
    let keep = array![[true, false], [true, true]].into_dyn(); // MaskPolarity
    uniform_form(2, &[1.0, 3.0], Mask { keep: Some(&keep), ..Mask::default() }, &[1.0, 2.0]);
}

#[test]
fn softcap_before_the_mask_after_the_scale() {
    let keep = array![true, false].into_dyn(); // SoftcapOrder
    let mask = Mask { keep: Some(&keep), ..Mask::default() };
    let capped = Sdpa { mask, softcap: Some(2.0), ..Sdpa::default() };
    score_form(&[1.0, 3.0], &[5.0, 100.0], capped, 5.0, None);
    let options = Sdpa { softcap: Some(2.0), scale: Some(0.5), ..Sdpa::default() };
    let (k, v) = (column(&[8.0, 0.0]), column(&[3.0, 6.0]));
    let weight = (2.0 * 2.0_f64.tanh()).exp(); // the other is 1
    let want = (3.0 * weight + 6.0) / (weight + 1.0); // 3.380 898
    expect(&column::<f64>(&[1.0]), &k, &v, &options, &[want], None);
}

#[test]
fn softcap_makes_an_infinite_score_finite() {
    let capped = Sdpa { softcap: Some(2.0), ..Sdpa::default() };
    let lse = (2.0_f64.exp() + (-2.0_f64).exp()).ln();
    let output = (3.0 * 2.0_f64.exp() + 6.0 * (-2.0_f64).exp()) / lse.exp();
    score_form(&[INF, -INF], &[3.0, 6.0], capped, output, Some(lse));
}

#[test]
fn bias_is_added_and_minus_infinity_hides() {
    let bias = array![ln(3.0), 0.0].into_dyn();
    score_form(
        &[0.0, 0.0],
        &[4.0, 8.0],
        Sdpa { bias: Some(&bias), ..Sdpa::default() },
        5.0,
        Some(ln(4.0)),
    );
    let bias = array![0.0, -INF, 0.0].into_dyn(); // even a NaN score
    let hiding = Sdpa { bias: Some(&bias), ..Sdpa::default() };
    score_form(&[0.0, NAN, 0.0], &[4.0, NAN, 8.0], hiding, 6.0, Some(ln(2.0)));
    let bias = array![-1e30, -1e30].into_dyn(); // only a number
    let same = Sdpa { bias: Some(&bias), ..Sdpa::default() };
    score_form(&[0.0, 0.0], &[4.0, 8.0], same, 6.0, None);
}

#[test]
fn sinks_join_the_denominator() {
    let sinks = array![0.0];
    let sink = Sdpa { sinks: Some(&sinks), ..Sdpa::default() };
    score_form(&[0.0, ln(2.0)], &[4.0, 8.0], sink, 5.0, Some(ln(4.0)));
    score_form(&[], &[], sink, 0.0, Some(0.0));
    let sinks = array![7.5];
    let keep = array![false].into_dyn();
    let mask = Mask { keep: Some(&keep), ..Mask::default() };
    score_form(
        &[1.0],
        &[NAN],
        Sdpa { sinks: Some(&sinks), mask, ..Sdpa::default() },
        0.0,
        Some(7.5),
    );
    let sinks = array![-INF];
    let none = Sdpa { sinks: Some(&sinks), ..Sdpa::default() };
    score_form(&[0.0, ln(2.0)], &[3.0, 6.0], none, 5.0, Some(ln(3.0)));
    let sinks = array![1e5]; // all weights underflow
    score_form(&[0.0], &[4.0], Sdpa { sinks: Some(&sinks), ..Sdpa::default() }, 0.0, Some(1e5));
    for bad in [INF, NAN] {
        let sinks = array![bad];
        score_form(&[0.0], &[4.0], Sdpa { sinks: Some(&sinks), ..Sdpa::default() }, NAN, Some(NAN));
    }
}

#[test]
fn groups_repeat_heads_in_blocks() {
    let (q, k) = (Array4::<f32>::zeros((1, 6, 1, 1)), Array4::zeros((1, 2, 1, 1)));
    let v = array![[[[10.0]], [[20.0]]]]; // GqaTile
    expect(&q, &k, &v, &Sdpa::default(), &[10.0, 10.0, 10.0, 20.0, 20.0, 20.0], None);
}

#[test]
fn scale_and_value_size() {
    let (q, k) = (rows(&[[1.0; 4]]), rows::<f64, 4>(&[[0.0; 4], [ln(2.0) / 2.0; 4]])); // ValueDim
    let v = rows(&[[3.0, 0.0, 1.0], [6.0, 3.0, 1.0]]);
    expect(&q, &k, &v, &Sdpa::default(), &[5.0, 2.0, 1.0], None);
    let zero = Sdpa { scale: Some(0.0), ..Sdpa::default() };
    expect(&q, &k, &v, &zero, &[4.5, 1.5, 1.0], None);
}

#[test]
fn huge_scores() {
    let higher = -1e5 + ln(2.0); // Overflow
    let weight = 1.0 / (1.0 + (-1e5 - higher).exp());
    score_form(&[-1e5, higher], &[3.0, 6.0], Sdpa::default(), 3.0 + 3.0 * weight, None);
    let (q, k) = (
        Array4::<f32>::from_elem((1, 1, 1, 64), 3e18),
        Array4::from_shape_fn((1, 1, 2, 64), |at| if at.2 == 0 { 3e18 } else { 0.0 }),
    );
    expect(&q, &k, &column(&[3.0, 6.0]), &Sdpa::default(), &[3.0], None); // scaled before the sum
}

#[test]
fn nan_and_infinity() {
    let none = Sdpa::default();
    score_form(&[INF, 0.0], &[3.0, 6.0], none, NAN, Some(NAN));
    score_form(&[NAN, 0.0], &[3.0, 6.0], none, NAN, Some(NAN));
    score_form(&[NAN, NAN], &[3.0, 6.0], none, NAN, Some(NAN));
    score_form(&[-INF, 0.0], &[NAN, 6.0], none, 6.0, Some(0.0)); // a score of -inf hides
    score_form(&[-INF, -INF], &[NAN, 6.0], none, 0.0, Some(-INF));
    score_form(&[0.0, 0.0], &[INF, 6.0], none, INF, Some(ln(2.0)));
    score_form(&[0.0, 0.0], &[INF, -INF], none, NAN, Some(ln(2.0)));
    score_form(&[0.0, -1e5], &[1.0, INF], none, NAN, Some(0.0)); // visible, weight 0: 0 · inf
    let (q, k) = (column::<f64>(&[1.0, 0.0]), column(&[1.0, NAN]));
    let keep = array![[true, false], [true, true]].into_dyn();
    let mask = Mask { keep: Some(&keep), ..Mask::default() };
    let options = Sdpa { mask, scale: Some(1.0), ..Sdpa::default() };
    expect(&q, &k, &column(&[3.0, 6.0]), &options, &[3.0, NAN], Some(&[1.0, NAN]));
    let weights = sdpa_steps(&q, &k, &column(&[3.0, 6.0]), &options).unwrap().weights;
    assert!(weights[[0, 0, 0, 1]] == 0.0 && weights[[0, 0, 1, 0]].is_nan());
}

#[test]
fn denormal_values_survive() {
    uniform_form(1, &[1e-40, 1e-40], Mask::default(), &[f64::from(1e-40_f32)]);
}

#[test]
fn the_last_channel_counts() {
    for d in [1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33] {
        let q = Array4::<f64>::ones((1, 1, 1, d));
        let k = Array4::from_shape_fn((1, 1, 2, d), |at| {
            if at.2 == 1 && at.3 == d - 1 { ln(2.0) } else { 0.0 }
        });
        let v = Array4::from_shape_fn((1, 1, 2, d), |at| {
            if at.3 == d - 1 { 3.0 * (at.2 + 1) as f64 } else { 0.0 }
        });
        let mut want = vec![0.0; d];
        want[d - 1] = 5.0;
        expect(&q, &k, &v, &Sdpa { scale: Some(1.0), ..Sdpa::default() }, &want, None);
    }
}

#[test]
fn sizes_of_zero() {
    for (batch, tq, tk, dv) in [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)] {
        let (q, k) = (Array4::<f32>::ones((batch, 4, tq, 5)), Array4::ones((batch, 2, tk, 5)));
        for (rung, output, lse) in
            rungs(&q, &k, &Array4::ones((batch, 2, tk, dv)), &Sdpa::default())
        {
            let value = if tk == 0 { 0.0 } else { 1.0 };
            assert_eq!(output.dim(), (batch, 4, tq, dv), "{rung}");
            // At most 16 roundings of numbers up to 1: weights and a sum, in a merge also ln, exp and quotients.
            let room = 8.0 * f32::EPSILON;
            assert!(output.iter().all(|&x| (x - value).abs() <= room), "{rung}");
            assert_eq!(lse.dim(), (batch, 4, tq), "{rung}");
            assert!(tk > 0 || lse == Array3::from_elem(lse.dim(), f32::NEG_INFINITY), "{rung}");
        }
    }
}

#[test]
fn any_strides_give_the_same_bits() {
    let (q, k, v) =
        (signed::<f32>((2, 5, 4, 10), 1), signed((2, 9, 2, 10), 2), signed((2, 9, 2, 6), 3));
    let swap = |x: &Array4<f32>| x.clone().permuted_axes([0, 2, 1, 3]); // (B, T, H, D) as (B, H, T, D)
    let (q, k, v) = (swap(&q), swap(&k), swap(&v));
    let (q, k, v) = (
        q.slice(s![.., .., .., ..;2]),
        k.slice(s![.., .., ..;-1, ..;2]),
        v.slice(s![.., .., ..;-1, ..]),
    );
    let copy = |x: &ndarray::ArrayView4<'_, f32>| x.as_standard_layout().into_owned();
    let none = Sdpa::default();
    let want = sdpa(&copy(&q), &copy(&k), &copy(&v), &none).unwrap();
    assert!(same(&sdpa(&q, &k, &v, &none).unwrap(), &want));
    let (want, _) = blocked(&copy(&q), &copy(&k), &copy(&v), &none).unwrap();
    assert!(same(&blocked(&q, &k, &v, &none).unwrap().0, &want));
    for tier in tiers() {
        let (want, _) = sdpa_simd(&copy(&q), &copy(&k), &copy(&v), &none, Some(tier)).unwrap();
        assert!(same(&sdpa_simd(&q, &k, &v, &none, Some(tier)).unwrap().0, &want), "{tier}");
    }
}

#[test]
fn steps_are_before_masking() {
    let (q, k, v) = (column::<f64>(&[1.0]), column(&[8.0, 2.0]), column(&[3.0, 6.0]));
    let (keep, bias) = (array![false, true].into_dyn(), array![0.5, 1.0].into_dyn());
    let mask = Mask { keep: Some(&keep), ..Mask::default() };
    let options =
        Sdpa { mask, bias: Some(&bias), scale: Some(0.5), softcap: Some(2.0), ..Sdpa::default() };
    let steps = sdpa_steps(&q, &k, &v, &options).unwrap();
    let capped = [2.0 * 2.0_f64.tanh(), 2.0 * 0.5_f64.tanh()];
    assert_eq!(steps.scores.as_slice().unwrap(), [4.0, 1.0]);
    assert_eq!(steps.capped.as_slice().unwrap(), capped);
    assert_eq!(steps.biased.as_slice().unwrap(), [capped[0] + 0.5, capped[1] + 1.0]);
    assert_eq!(steps.weights.as_slice().unwrap(), [0.0, 1.0]);
}

#[test]
fn faults() {
    let x = |b, h, t, d| Array4::<f32>::zeros((b, h, t, d));
    let (q, k, v) = (x(2, 4, 3, 5), x(2, 2, 6, 5), x(2, 2, 6, 7));
    let code = |q: &Array4<f32>, k: &Array4<f32>, v: &Array4<f32>, options: &Sdpa<'_, f32>| {
        let error = sdpa(q, k, v, options).unwrap_err();
        assert_eq!(sdpa_simd(q, k, v, options, None).unwrap_err(), error);
        assert_eq!(sdpa_threads(q, k, v, options, None, 2).unwrap_err(), error);
        assert_eq!(blocked(q, k, v, options).unwrap_err().code(), error.code());
        error.code()
    };
    let none = Sdpa::default();
    for (k, v) in [
        (x(1, 2, 6, 5), v.clone()),
        (x(2, 2, 6, 4), v.clone()),
        (x(2, 3, 6, 5), x(2, 3, 6, 7)),
        (x(2, 0, 6, 5), x(2, 0, 6, 7)),
        (k.clone(), x(1, 2, 6, 7)),
        (k.clone(), x(2, 1, 6, 7)),
        (k.clone(), x(2, 2, 5, 7)),
    ] {
        assert_eq!(code(&q, &k, &v, &none), "shape_mismatch");
    }
    assert_eq!(code(&x(2, 4, 3, 0), &x(2, 2, 6, 0), &v, &none), "shape_mismatch");
    let sinks = ndarray::Array1::zeros(2);
    assert_eq!(code(&q, &k, &v, &Sdpa { sinks: Some(&sinks), ..none }), "shape_mismatch");
    let bias = ArrayD::zeros(vec![2, 6]);
    assert_eq!(code(&q, &k, &v, &Sdpa { bias: Some(&bias), ..none }), "shape_mismatch");
    for bad in [INF, NAN] {
        assert_eq!(code(&q, &k, &v, &Sdpa { scale: Some(bad), ..none }), "invalid_config");
    }
    for bad in [0.0, -1.0, INF, NAN] {
        assert_eq!(code(&q, &k, &v, &Sdpa { softcap: Some(bad), ..none }), "invalid_config");
    }
    let message = sdpa(&q, &k.slice(s![.., .., .., ..4]), &v, &none).unwrap_err().to_string();
    assert_eq!(message, "sdpa: k: expected head size 5 as in q, got 4");
}

#[test]
fn tiers_have_names() {
    for tier in Tier::ALL {
        assert_eq!(tier.to_string().parse::<Tier>().unwrap(), tier);
    }
    assert_eq!("sse9".parse::<Tier>().unwrap_err().code(), "invalid_config");
}
