//! The rung of many threads: the bits of the simd rung, whatever the number of threads and the way a call is cut.

use crate::common::{same, signed, tiers};
use ndarray::{Array1, Array4, ArrayD, array, s};
use rosetta_attention::{Float, Mask, Offset, Sdpa, sdpa_simd, sdpa_threads};

/// Every tier on so many threads gives what it gives on its own.
fn same_bits<T: Float>(q: &Array4<T>, k: &Array4<T>, v: &Array4<T>, options: &Sdpa<'_, T>) {
    for tier in tiers() {
        let (want, want_lse) = sdpa_simd(q, k, v, options, Some(tier)).unwrap();
        for threads in [1, 2, 3, 5, usize::MAX] {
            let (output, lse) = sdpa_threads(q, k, v, options, Some(tier), threads).unwrap();
            assert_eq!((output.dim(), lse.dim()), (want.dim(), want_lse.dim()));
            assert!(same(&output, &want), "{tier}, {threads} threads");
            assert!(same(&lse, &want_lse), "{tier}, {threads} threads");
        }
    }
}

/// Calls with more than the 2^20 products from which on work is shared: of many queries, of a few, of one each, and of
/// one in a single head, which has more than one segment of keys.
fn shapes<T: Float>() -> Vec<[Array4<T>; 3]> {
    let shapes = [(1, 2, 1, 140, 150), (1, 4, 1, 50, 100), (3, 8, 2, 1, 900), (1, 4, 1, 1, 5000)];
    let arrays = |(batch, hq, hkv, tq, tk)| {
        let (q, k) = (signed((batch, hq, tq, 21), 1), signed((batch, hkv, tk, 21), 2));
        [q, k, signed((batch, hkv, tk, 37), 3)]
    };
    shapes.map(arrays).into()
}

#[test]
fn plain() {
    for [q, k, v] in shapes::<f32>() {
        same_bits(&q, &k, &v, &Sdpa::default());
    }
    for [q, k, v] in shapes::<f64>() {
        same_bits(&q, &k, &v, &Sdpa::default());
    }
}

/// What is of a row of the batch, of a head, of a query and of a key goes with each piece, and is right for it.
#[test]
fn every_option() {
    for [q, k, mut v] in shapes::<f32>() {
        let ((batch, hq, tq, _), tk) = (q.dim(), k.dim().2);
        v.slice_mut(s![.., .., 7, ..]).fill(f32::NAN);
        let mut keep = signed::<f64>((batch, hq, tq, tk), 4).mapv(|x| x < 1.5);
        keep.slice_mut(s![.., .., .., 7]).fill(false); // where nothing may be read
        keep.slice_mut(s![.., .., 0, ..]).fill(false); // a row that sees nothing
        let (keep, bias) = (keep.into_dyn(), signed((hq, 1, tk, 1), 5));
        let bias = bias.into_shape_with_order((hq, 1, tk)).unwrap().into_dyn();
        let sinks = Array1::from_shape_fn(hq, |h| h as f32);
        let lengths = Array1::from_shape_fn(batch, |b| (tk - 5 * b) as i64);
        let offsets = Array1::from_shape_fn(batch, |b| 20 + 7 * b as i64);
        let mask = Mask {
            keep: Some(&keep),
            causal: true,
            window: Some((Some(90), None)),
            kv_lengths: Some(&lengths),
            q_offset: Some(Offset::PerRow(&offsets)),
        };
        let (bias, sinks) = (Some(&*bias), Some(&*sinks));
        let options = Sdpa { mask, bias, sinks, softcap: Some(3.0), ..Sdpa::default() };
        same_bits(&q, &k, &v, &options);
        let farthest = Some(Offset::One(i64::MAX - 1));
        same_bits(&q, &k, &v, &Sdpa { mask: Mask { q_offset: farthest, ..mask }, ..options });
    }
}

#[test]
fn any_strides() {
    let swap = |x: Array4<f32>| x.permuted_axes([0, 2, 1, 3]); // (B, T, H, D) as (B, H, T, D)
    let (q, k) = (swap(signed((2, 140, 2, 20), 6)), swap(signed((2, 140, 1, 20), 7)));
    same_bits(&q, &k, &k, &Sdpa::default());
}

#[test]
fn sizes_of_nothing() {
    let x = |b, h, t, d| Array4::<f32>::ones((b, h, t, d));
    let many = 1 << 8;
    same_bits(&x(1, 4, many, 8), &x(1, 2, many, 8), &x(1, 2, many, 0), &Sdpa::default());
    same_bits(&x(1, 0, many, 8), &x(1, 0, many, 8), &x(1, 0, many, 8), &Sdpa::default());
    same_bits(&x(0, 4, many, 8), &x(0, 2, many, 8), &x(0, 2, many, 8), &Sdpa::default());
}

#[test]
fn faults() {
    let x = Array4::<f32>::zeros((1, 1, 1, 1));
    let keep = ArrayD::from_elem(vec![2, 2], true);
    let error = sdpa_threads(&x, &x, &x, &Sdpa::default(), None, 0).unwrap_err();
    assert_eq!(error.to_string(), "sdpa: threads: expected an integer >= 1, got 0");
    let mask = Mask { keep: Some(&keep), ..Mask::default() };
    let error = sdpa_threads(&x, &x, &x, &Sdpa { mask, ..Sdpa::default() }, None, 2).unwrap_err();
    assert_eq!(error.code(), "shape_mismatch");
    let lengths = array![2];
    let mask = Mask { kv_lengths: Some(&lengths), ..Mask::default() };
    let error = sdpa_threads(&x, &x, &x, &Sdpa { mask, ..Sdpa::default() }, None, 2).unwrap_err();
    assert_eq!(error.code(), "invalid_config");
}
