//! The KV cache on scripts that a person can check. Uniform form: q = 0, so the output is the mean of
//! the visible values. Names of flags are those of docs/traps.md.

use crate::common::{causal, expect_means, push, same, signed};
use ndarray::{Array1, Array4, array, s};
use rosetta_attention::{Append, Cache, Held, KvCache, Mask, Offset, Sdpa, sdpa};

const NAN: f64 = f64::NAN;

fn cache(capacity: Option<usize>) -> KvCache<f64> {
    KvCache::new(1, 1, 1, 1, capacity).unwrap()
}

/// The first so many tokens of each row count.
fn counted(lengths: &Array1<i64>) -> Append<'_> {
    Append { lengths: Some(lengths), ..Append::default() }
}

#[test]
fn a_second_chunk_sees_the_first() {
    let mut cache = cache(None); // ChunkedPrefill
    push(&mut cache, &[1.0, 2.0, 4.0]);
    expect_means(&cache, &causal(), &[1.0, 1.5, 7.0 / 3.0]);
    push(&mut cache, &[8.0, 16.0]);
    expect_means(&cache, &causal(), &[3.75, 6.2]);
    let start = Mask { q_offset: Some(Offset::One(0)), ..causal::<f64>().mask };
    expect_means(&cache, &Sdpa { mask: start, ..causal() }, &[1.0, 1.5]);
}

#[test]
fn a_window_over_the_past() {
    let mut cache = cache(Some(4)); // WindowBoundary
    let mask = Mask { window: Some((Some(2), None)), ..causal::<f64>().mask };
    for (value, mean) in [(1.0, 1.0), (2.0, 1.5), (4.0, 7.0 / 3.0), (8.0, 14.0 / 3.0)] {
        push(&mut cache, &[value]);
        expect_means(&cache, &Sdpa { mask, ..Sdpa::default() }, &[mean]);
    }
}

#[test]
fn reset_and_truncate_forget() {
    let mut cache = cache(None); // Rollback, StaleReset
    push(&mut cache, &[1.0, 2.0, 4.0]);
    push(&mut cache, &[100.0, 200.0]);
    cache.truncate(&[4]).unwrap();
    push(&mut cache, &[8.0]);
    expect_means(&cache, &causal(), &[23.0]);
    cache.reset();
    assert!(cache.is_empty());
    expect_means(&cache, &causal(), &[0.0]);
    push(&mut cache, &[5.0]);
    expect_means(&cache, &causal(), &[5.0]);
}

#[test]
fn rows_have_lengths_of_their_own() {
    let mut cache = KvCache::<f64>::new(2, 1, 1, 1, None).unwrap();
    let v = array![[[[1.0], [3.0]]], [[[5.0], [NAN]]]]; // the second row counts one: NaN is junk
    let k = v.mapv(|x| if x.is_nan() { NAN } else { 0.0 });
    cache.append(&k, &v, &counted(&array![2, 1])).unwrap();
    let output = cache.attend(&Array4::zeros((2, 1, 1, 1)), &causal()).unwrap();
    assert_eq!(output.as_slice().unwrap(), [2.0, 5.0]);
    let Held { k, v, lengths, .. } = cache.read();
    assert_eq!(v.as_slice().unwrap(), [1.0, 3.0, 5.0, 0.0]);
    assert_eq!((k.sum(), lengths), (0.0, array![2, 1]));
    cache
        .append(&Array4::zeros((2, 1, 1, 1)), &array![[[[8.0]]], [[[7.0]]]], &Append::default())
        .unwrap();
    let output = cache.attend(&Array4::zeros((2, 1, 1, 1)), &causal()).unwrap();
    assert_eq!(output.as_slice().unwrap(), [4.0, 6.0]);
}

#[test]
fn nothing_is_changed_by_a_call_that_fails() {
    let mut cache = KvCache::<f32>::new(2, 1, 3, 2, Some(4)).unwrap();
    let (k, v) = (signed((2, 1, 3, 3), 1), signed((2, 1, 3, 2), 2));
    cache.append(&k, &v, &counted(&array![3, 1])).unwrap();
    let before = cache.clone();
    let x = |h, t, d| Array4::<f32>::ones((2, h, t, d));
    let lengths = |n: [i64; 2]| array![n[0], n[1]];
    for (k, v, lengths, code) in [
        (x(1, 2, 3), x(1, 2, 2), None, "capacity_exceeded"),
        (x(1, 2, 3), x(1, 2, 2), Some(lengths([0, 3])), "invalid_config"),
        (x(1, 2, 3), x(1, 2, 2), Some(lengths([-1, 0])), "invalid_config"),
        (x(1, 2, 3), x(1, 2, 2), Some(array![1]), "shape_mismatch"),
        (x(1, 1, 3), x(1, 2, 2), None, "shape_mismatch"),
        (x(2, 1, 3), x(2, 1, 2), None, "shape_mismatch"),
        (x(1, 1, 4), x(1, 1, 2), None, "shape_mismatch"),
        (x(1, 1, 3), x(1, 1, 3), None, "shape_mismatch"),
    ] {
        assert_eq!(
            cache
                .append(&k, &v, &Append { lengths: lengths.as_deref(), ..Append::default() })
                .unwrap_err()
                .code(),
            code
        );
    }
    assert_eq!(cache.truncate(&[1]).unwrap_err().code(), "shape_mismatch");
    for bad in [[4, 1], [-1, 0]] {
        assert_eq!(cache.truncate(&bad).unwrap_err().code(), "invalid_config");
    }
    let own = array![1, 1];
    let mask = Mask { kv_lengths: Some(&own), ..Mask::default() };
    let error = cache.attend(&x(1, 1, 3), &Sdpa { mask, ..Sdpa::default() }).unwrap_err();
    assert_eq!(error.code(), "invalid_config");
    assert_eq!(cache.attend(&x(1, 1, 4), &Sdpa::default()).unwrap_err().code(), "shape_mismatch");
    assert_eq!(cache.lengths(), before.lengths());
    assert!(same(cache.keys(), before.keys()) && same(cache.values(), before.values()));
    cache.append(&x(1, 1, 3), &x(1, 1, 2), &Append::default()).unwrap(); // room for exactly one more
}

#[test]
fn config_faults() {
    assert_eq!(KvCache::<f32>::new(1, 0, 1, 1, None).unwrap_err().code(), "invalid_config");
    assert_eq!(KvCache::<f32>::new(1 << 62, 1, 1, 1, None).unwrap_err().code(), "invalid_config");
    let most = Some(usize::MAX);
    assert_eq!(KvCache::<f32>::new(2, 2, 2, 2, most).unwrap_err().code(), "invalid_config");
    assert_eq!(KvCache::<f32>::new(1, 1, 0, 1, None).unwrap_err().code(), "invalid_config");
}

#[test]
fn empty_appends_and_batches() {
    let mut cache = KvCache::<f32>::new(0, 1, 2, 2, None).unwrap();
    cache
        .append(&Array4::zeros((0, 1, 3, 2)), &Array4::zeros((0, 1, 3, 2)), &Append::default())
        .unwrap();
    assert_eq!((cache.len(), cache.read().k.dim()), (0, (0, 1, 0, 2)));
    let mut cache = KvCache::<f32>::new(1, 1, 2, 2, Some(0)).unwrap();
    cache
        .append(&Array4::zeros((1, 1, 0, 2)), &Array4::zeros((1, 1, 0, 2)), &Append::default())
        .unwrap();
    assert_eq!(cache.attend(&Array4::ones((1, 2, 3, 2)), &Sdpa::default()).unwrap().sum(), 0.0);
}

#[test]
fn one_by_one_equals_all_at_once() {
    let (q, k, v) =
        (signed::<f32>((2, 4, 9, 5), 1), signed((2, 2, 9, 5), 2), signed((2, 2, 9, 3), 3));
    let mask = Mask { causal: true, ..Mask::default() };
    let options = Sdpa { mask, ..Sdpa::default() };
    let whole = sdpa(&q, &k, &v, &options).unwrap();
    let mut cache = KvCache::new(2, 2, 5, 3, None).unwrap();
    for turn in 0..2 {
        for t in 0..9 {
            let at = s![.., .., t..=t, ..];
            cache.append(&k.slice(at), &v.slice(at), &Append::default()).unwrap();
            let output = cache.attend(&q.slice(at), &options).unwrap();
            assert!(same(&output, whole.slice(at)), "turn {turn}, position {t}");
        }
        cache.reset();
    }
}
