//! Linear attention in its three rungs, and the gated rules.

use crate::common::{column, rows, same, signed};
use ndarray::{Array3, Array4, array, s};
use proptest::prelude::*;
use rosetta_attention::{
    Float, GatedLinear, LinearState, Result, Rule, gated_linear, linear_attention, linear_chunked,
    linear_recurrent,
};

const NAN: f64 = f64::NAN;

/// What every rung gives.
type Answer<T> = Result<(Array4<T>, LinearState<T>)>;

/// Every rung, the parallel one first.
fn rungs<T: Float>(
    q: &Array4<T>,
    k: &Array4<T>,
    v: &Array4<T>,
    causal: bool,
    state: Option<&LinearState<T>>,
) -> Vec<Answer<T>> {
    let chunked = [1, 2, 3, 64].map(|chunk| linear_chunked(q, k, v, causal, state, chunk));
    let others =
        [linear_attention(q, k, v, causal, state), linear_recurrent(q, k, v, causal, state)];
    others.into_iter().chain(chunked).collect()
}

/// Whether all elements are within `roundings` of numbers of that size, on each of the two sides.
fn near<'a>(
    a: impl IntoIterator<Item = &'a f64>,
    b: impl IntoIterator<Item = &'a f64>,
    sizes: impl IntoIterator<Item = &'a f64>,
    roundings: f64,
) -> bool {
    let (a, b): (Vec<_>, Vec<_>) = (a.into_iter().collect(), b.into_iter().collect());
    let sizes: Vec<_> = sizes.into_iter().collect();
    let close = |((a, b), size)| f64::abs(a - b) <= roundings * f64::EPSILON * size;
    let pairs = a.iter().copied().zip(b.iter().copied());
    (a.len(), b.len()) == (sizes.len(), sizes.len()) && pairs.zip(sizes).all(close)
}

#[test]
fn features_of_one_give_means() {
    let zeros = Array4::zeros((1, 1, 3, 1)); // elu(0) + 1 = 1
    let v = column(&[3.0, 6.0, 0.0]);
    for (causal, want) in [(true, [3.0, 4.5, 3.0]), (false, [3.0; 3])] {
        for answer in rungs(&zeros, &zeros, &v, causal, None) {
            let (output, memory) = answer.unwrap();
            assert_eq!(output, column::<f64>(&want));
            assert_eq!((memory.state[[0, 0, 0, 0]], memory.norm[[0, 0, 0]]), (9.0, 3.0));
        }
    }
}

#[test]
fn the_feature_map_is_elu_plus_one() {
    // Keys 1 and ln(1/2) have the features 2 and 1/2, whatever the one of the query.
    let (q, k) = (column::<f64>(&[7.0]), column(&[1.0, 0.5_f64.ln()]));
    for answer in rungs(&q, &k, &column(&[1.0, 6.0]), false, None) {
        let (output, memory) = answer.unwrap();
        // In units of 2^-53: the feature of 1/2 is off by 1.5, which is 0.6 · 1.5 of the numerator and 0.2 · 1.5 of the
        // denominator; two sums and a quotient add 3: below 4.5 relatively.
        assert!((output[[0, 0, 0, 0]] - 2.0).abs() <= 4.5 * f64::EPSILON);
        assert_eq!(memory.norm[[0, 0, 0]], 2.5);
    }
}

#[test]
fn a_state_is_seen_by_every_query() {
    let zeros = Array4::zeros((1, 1, 2, 1));
    let state =
        LinearState { state: Array4::from_elem((1, 1, 1, 1), 9.0), norm: Array3::ones((1, 1, 1)) };
    for answer in rungs(&zeros, &zeros, &column(&[1.0, 2.0]), true, Some(&state)) {
        assert_eq!(answer.unwrap().0, column::<f32>(&[5.0, 4.0]));
    }
}

#[test]
fn what_is_not_seen_is_not_read() {
    let (q, k) = (column::<f64>(&[0.0; 4]), column(&[0.0, 0.0, NAN, 0.0]));
    for answer in rungs(&q, &k, &column(&[1.0, 2.0, NAN, 3.0]), true, None) {
        let (output, memory) = answer.unwrap();
        assert_eq!(output.slice(s![0, 0, ..2, 0]).to_vec(), [1.0, 1.5]);
        assert!(output.slice(s![0, 0, 2.., 0]).iter().all(|x| x.is_nan()));
        assert!(memory.state[[0, 0, 0, 0]].is_nan());
    }
}

#[test]
fn a_denominator_of_zero() {
    let (q, k) = (column::<f32>(&[-1e4]), column(&[0.0])); // the feature of q underflows
    for answer in rungs(&q, &k, &column(&[5.0]), false, None) {
        assert_eq!(answer.unwrap().0, column::<f32>(&[0.0]));
    }
}

#[test]
fn empty_sizes() {
    for (batch, tq, tk) in [(0, 2, 2), (1, 0, 3), (1, 3, 0), (1, 0, 0)] {
        let (q, k) = (Array4::<f64>::zeros((batch, 4, tq, 3)), Array4::zeros((batch, 2, tk, 3)));
        let v = Array4::ones((batch, 2, tk, 5));
        for answer in rungs(&q, &k, &v, tq == tk, None) {
            let (output, memory) = answer.unwrap();
            assert_eq!(output, Array4::<f64>::zeros((batch, 4, tq, 5)));
            let want = Array4::from_elem((batch, 2, 3, 5), tk as f64);
            assert_eq!((memory.state, memory.norm.dim()), (want, (batch, 2, 3)));
        }
    }
}

#[test]
fn faults() {
    let x = Array4::<f32>::zeros((1, 2, 3, 4));
    let code = |q: &Array4<f32>, k: &Array4<f32>, v: &Array4<f32>, causal, state| {
        let codes = rungs(q, k, v, causal, state).into_iter().map(|x| x.unwrap_err().code());
        let codes: Vec<_> = codes.collect();
        assert!(codes.iter().all(|code| code == &codes[0]));
        codes[0]
    };
    let other = |dim| Array4::<f32>::zeros(dim);
    assert_eq!(code(&x, &other((1, 2, 3, 5)), &x, false, None), "shape_mismatch");
    assert_eq!(code(&x, &x, &other((1, 2, 4, 4)), false, None), "shape_mismatch");
    assert_eq!(code(&other((1, 3, 3, 4)), &x, &x, false, None), "shape_mismatch");
    assert_eq!(code(&other((1, 2, 2, 4)), &x, &x, true, None), "shape_mismatch");
    let state = LinearState { state: other((1, 2, 4, 3)), norm: Array3::zeros((1, 2, 4)) };
    assert_eq!(code(&x, &x, &x, false, Some(&state)), "shape_mismatch");
    let error = linear_chunked(&x, &x, &x, false, None, 0).unwrap_err();
    assert_eq!(error.to_string(), "linear_chunked: chunk: expected an integer >= 1, got 0");
}

// Gated rules

fn gated(v: &[f64], rule: Rule, decay: Option<&[f64]>, beta: Option<&[f64]>) -> (Vec<f64>, f64) {
    let ones = Array4::ones((1, 1, v.len(), 1));
    let (decay, beta) = (decay.map(column), beta.map(column));
    let options = GatedLinear {
        rule,
        decay: decay.as_deref(),
        beta: beta.as_deref(),
        ..GatedLinear::default()
    };
    let (output, state) = gated_linear(&ones, &ones, &column(v), &options).unwrap();
    (output.iter().copied().collect(), state[[0, 0, 0, 0]])
}

#[test]
fn rules_by_hand() {
    let half = 0.5_f64.ln();
    let v = [8.0, 4.0, 2.0];
    assert_eq!(gated(&v, Rule::Linear, None, None), (vec![8.0, 12.0, 14.0], 14.0));
    let (output, _) = gated(&v, Rule::Gated, Some(&[0.0, half, half]), None);
    assert_eq!(output, [8.0, 8.0, 6.0]); // 8; 8/2 + 4; 8/2 + 2
    let (output, _) = gated(&v, Rule::Delta, None, Some(&[1.0, 0.5, 0.0]));
    assert_eq!(output, [8.0, 6.0, 6.0]); // 8; 8 + (4 - 8)/2; nothing is written
    let (output, _) = gated(&v, Rule::GatedDelta, Some(&[0.0, half, half]), Some(&[1.0, 0.5, 1.0]));
    assert_eq!(output, [8.0, 4.0, 2.0]); // 8; 4 + (4 - 4)/2: the memory fades first; 2 + (2 - 2)
}

#[test]
fn channels_fade_at_their_own_rates() {
    let k = rows::<f64, 2>(&[[1.0, 1.0], [0.0, 0.0]]);
    let q = rows(&[[0.0, 0.0], [1.0, 10.0]]);
    let decay = rows(&[[0.0, 0.0], [0.5_f64.ln(), 0.25_f64.ln()]]);
    let options = GatedLinear {
        rule: Rule::Gated,
        decay: Some(&decay),
        scale: Some(2.0),
        ..GatedLinear::default()
    };
    let (output, state) = gated_linear(&q, &k, &column(&[4.0, 9.0]), &options).unwrap();
    assert_eq!(output, column::<f64>(&[0.0, 2.0 * (2.0 + 10.0)]));
    assert_eq!(state, array![[[[2.0], [1.0]]]]);
}

#[test]
fn gated_faults() {
    let x = Array4::<f32>::zeros((2, 2, 3, 4));
    let one = Array4::<f32>::zeros((2, 2, 3, 1));
    let code =
        |options: GatedLinear<'_, f32>| gated_linear(&x, &x, &x, &options).unwrap_err().code();
    let none = GatedLinear::default();
    assert_eq!(code(GatedLinear { decay: Some(&x), ..none }), "invalid_config");
    assert_eq!(code(GatedLinear { beta: Some(&one), ..none }), "invalid_config");
    assert_eq!(code(GatedLinear { rule: Rule::Gated, ..none }), "invalid_config");
    assert_eq!(
        code(GatedLinear { rule: Rule::GatedDelta, decay: Some(&x), ..none }),
        "invalid_config"
    );
    assert_eq!(code(GatedLinear { rule: Rule::Delta, beta: Some(&x), ..none }), "shape_mismatch");
    assert_eq!(code(GatedLinear { state: Some(&x), ..none }), "shape_mismatch");
    assert_eq!(code(GatedLinear { scale: Some(f64::NAN), ..none }), "invalid_config");
    let shorter = Array4::zeros((2, 2, 2, 4));
    assert_eq!(gated_linear(&shorter, &x, &x, &none).unwrap_err().code(), "shape_mismatch");
    assert_eq!("Delta".parse::<Rule>().unwrap_err().code(), "invalid_config");
    assert_eq!("gated_delta".parse::<Rule>().unwrap(), Rule::GatedDelta);
}

// What holds for all inputs

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn all_rungs_agree(
        (batch, hkv, group) in (1..3_usize, 1..3_usize, 1..3_usize),
        (tq, tk, d, dv) in (1..9_usize, 0..9_usize, 1..6_usize, 1..6_usize),
        (causal, with_state) in any::<(bool, bool)>(),
        seed in 0..1_000_000_u64,
    ) {
        let tk = if causal { tq } else { tk };
        let q = signed::<f64>((batch, hkv * group, tq, d), seed);
        let (k, v) = (signed((batch, hkv, tk, d), seed + 1), signed((batch, hkv, tk, dv), seed + 2));
        let state = with_state.then(|| LinearState {
            state: signed((batch, hkv, d, dv), seed + 3),
            norm: signed::<f64>((batch, hkv, 1, d), seed + 4).mapv(f64::abs).remove_axis(ndarray::Axis(2)),
        });
        let mut answers = rungs(&q, &k, &v, causal, state.as_ref()).into_iter().map(Result::unwrap);
        let (output, memory) = answers.next().unwrap();
        // The same sums without cancellation are what their roundings are relative to: at most 8 keys and a state, then
        // 5 channels, 18 roundings of the numerator, as many of the denominator, on both sides; 18 of a state or norm.
        let absolute = state.as_ref().map(|x| LinearState { state: x.state.mapv(f64::abs), ..x.clone() });
        let (size, sizes) = linear_attention(&q, &k, &v.mapv(f64::abs), causal, absolute.as_ref()).unwrap();
        for (other, other_memory) in answers {
            prop_assert!(near(&output, &other, &size, 36.0));
            prop_assert!(near(&memory.state, &other_memory.state, &sizes.state, 18.0));
            prop_assert!(near(&memory.norm, &other_memory.norm, &sizes.norm, 18.0));
        }
    }

    #[test]
    fn two_calls_with_the_state_between_are_one(
        (len, cut, d, dv) in (0..9_usize, 0..9_usize, 1..4_usize, 1..4_usize),
        gates in any::<(bool, bool)>(),
        seed in 0..1_000_000_u64,
    ) {
        let cut = cut.min(len);
        let x = |n, salt| signed::<f64>((2, 2, len, n), seed + salt);
        let (q, k, v) = (x(d, 0), x(d, 1), x(dv, 2));
        let part = |x: &Array4<f64>, i: usize| {
            let part = if i == 0 { 0..cut } else { cut..len };
            x.slice(s![.., .., part, ..]).to_owned()
        };
        let (whole, memory) = linear_recurrent(&q, &k, &v, true, None).unwrap();
        let (first, between) = linear_recurrent(&part(&q, 0), &part(&k, 0), &part(&v, 0), true, None).unwrap();
        let (second, after) =
            linear_recurrent(&part(&q, 1), &part(&k, 1), &part(&v, 1), true, Some(&between)).unwrap();
        prop_assert!(same(&part(&whole, 0), &first) && same(&part(&whole, 1), &second));
        prop_assert_eq!(memory, after);

        let rule = match gates {
            (false, false) => Rule::Linear,
            (true, false) => Rule::Gated,
            (false, true) => Rule::Delta,
            (true, true) => Rule::GatedDelta,
        };
        let (decay, beta) = (x(d, 3).mapv(|x| -x.abs()), x(1, 4));
        let call = |i: Option<usize>, state| {
            let part = |x: &Array4<f64>| i.map_or(x.clone(), |i| part(x, i));
            let (decay, beta) = (part(&decay), part(&beta));
            gated_linear(&part(&q), &part(&k), &part(&v), &GatedLinear {
                rule,
                decay: rule.is_gated().then_some(&decay),
                beta: rule.is_delta().then_some(&beta),
                state,
                scale: None,
            }).unwrap()
        };
        let ((whole, end), (first, between)) = (call(None, None), call(Some(0), None));
        let (second, after) = call(Some(1), Some(&between));
        prop_assert!(same(&part(&whole, 0), &first) && same(&part(&whole, 1), &second));
        prop_assert_eq!(end, after);
    }
}
