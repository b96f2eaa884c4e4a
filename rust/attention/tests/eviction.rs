//! Policies, tracks, keys by channel and heads with slots of their own, on numbers that a person can check. Uniform
//! form: q = 0, so the output is the mean of the values held, which are 1, 2, 4, 8.

use crate::common::{causal, column, expect_means, push};
use ndarray::{Array3, Array4, array};
use rosetta_attention::{
    Append, Budget, Cache, Format, KiviCache, KvCache, Mask, PerHeadCache, Policy, Quantisation,
    QuantisedCache, Rope, Sdpa,
};

const VALUES: [f64; 4] = [1.0, 2.0, 4.0, 8.0];

fn cache() -> KvCache<f64> {
    KvCache::new(1, 1, 1, 1, None).unwrap()
}

/// One row and head of these keys; the values are VALUES.
fn with_keys(keys: &[f64]) -> KvCache<f64> {
    let mut cache = cache();
    cache.append(&column(keys), &column(&VALUES), &Append::default()).unwrap();
    cache
}

fn tracking() -> KvCache<f64> {
    let mut cache = cache().with_track().unwrap();
    push(&mut cache, &VALUES);
    cache
}

fn window<'a>(budget: usize, sinks: usize) -> Policy<'a, f64> {
    Policy::Window { budget: Budget::One(budget), sinks }
}

fn heavy<'a>(budget: usize, sinks: usize, recent: usize) -> Policy<'a, f64> {
    Policy::HeavyHitters { budget: Budget::One(budget), sinks, recent }
}

fn positions(cache: &dyn Cache<f64>) -> Vec<i64> {
    cache.rows().positions().into_raw_vec_and_offset().0
}

fn code<T>(result: rosetta_attention::Result<T>) -> &'static str {
    result.map_or_else(|error| error.code(), |_| "ok")
}

/// The sums of a row of one head are these.
fn expect_sums(cache: &dyn Cache<f64>, want: &[f64]) {
    let got = cache.tracked().unwrap();
    // Of the weights 1, 1/2, 1/3 and 1/4 one is rounded, so at most three sums are, all of them below 4: by an
    // epsilon each, and `want` by another.
    let near = got.iter().zip(want).all(|(got, want)| (got - want).abs() <= 5.0 * f64::EPSILON);
    assert!(near && got.len() == want.len(), "{got} instead of {want:?}");
}

#[test]
fn a_window_keeps_the_first_and_the_latest() {
    let mut cache = cache();
    push(&mut cache, &VALUES);
    cache.evict_by(&window(4, 1)).unwrap(); // as many as there are
    expect_means(&cache, &causal(), &[15.0 / 4.0]);
    cache.evict_by(&window(3, 1)).unwrap();
    expect_means(&cache, &causal(), &[13.0 / 3.0]);
    cache.evict_by(&window(2, 1)).unwrap();
    expect_means(&cache, &causal(), &[4.5]);
    push(&mut cache, &[16.0]);
    assert_eq!(positions(&cache), [0, 3, 4]); // on the position that it would have had
    cache.evict_by(&window(1, 0)).unwrap();
    expect_means(&cache, &causal(), &[16.0]);
}

#[test]
fn a_budget_of_0_empties() {
    for policy in [window(0, 3), heavy(0, 1, 1)] {
        let mut cache = tracking();
        cache.evict_by(&policy).unwrap();
        expect_means(&cache, &causal(), &[0.0]);
        push(&mut cache, &[5.0]);
        expect_means(&cache, &causal(), &[5.0]);
        assert_eq!(positions(&cache), [4]);
    }
}

#[test]
fn weights_are_added_up_by_every_attend() {
    let cache = tracking();
    expect_sums(&cache, &[0.0; 4]);
    expect_means(&cache, &causal(), &[1.0, 1.5, 7.0 / 3.0, 15.0 / 4.0]);
    expect_sums(&cache, &[25.0 / 12.0, 13.0 / 12.0, 7.0 / 12.0, 0.25]);
    let keep = array![false, false, true, true].into_dyn();
    let mask = Mask { keep: Some(&keep), ..Mask::default() };
    expect_means(&cache, &Sdpa { mask, ..Sdpa::default() }, &[6.0]);
    expect_sums(&cache, &[25.0 / 12.0, 13.0 / 12.0, 13.0 / 12.0, 0.75]);
    let q = Array4::zeros((1, 2, 1, 1)); // two query heads of one KV head
    cache.attend(&q, &causal()).unwrap();
    expect_sums(&cache, &[31.0 / 12.0, 19.0 / 12.0, 19.0 / 12.0, 1.25]);
    assert_eq!(code(cache.attend(&Array4::zeros((1, 1, 1, 2)), &causal())), "shape_mismatch");
    expect_sums(&cache, &[31.0 / 12.0, 19.0 / 12.0, 19.0 / 12.0, 1.25]);
}

#[test]
fn sums_move_with_their_slots() {
    let mut cache = tracking();
    expect_means(&cache, &causal(), &[1.0, 1.5, 7.0 / 3.0, 15.0 / 4.0]);
    cache.evict(&[1]).unwrap();
    expect_sums(&cache, &[25.0 / 12.0, 7.0 / 12.0, 0.25]);
    cache.shift(-1, 2).unwrap();
    let fork = cache.fork();
    cache.truncate(&[2]).unwrap();
    push(&mut cache, &[3.0]); // in the memory of the slot that is gone
    expect_sums(&cache, &[25.0 / 12.0, 7.0 / 12.0, 0.0]);
    expect_sums(&*fork, &[25.0 / 12.0, 7.0 / 12.0, 0.25]);
    cache.reset();
    push(&mut cache, &[3.0]);
    expect_sums(&cache, &[0.0]);
    assert_eq!(code(self::cache().tracked()), "invalid_config");
}

#[test]
fn heavy_hitters_are_those_with_the_largest_sums() {
    for (policy, want) in [
        (heavy(2, 0, 0), vec![0, 1]),
        (heavy(2, 0, 1), vec![0, 3]),
        (heavy(2, 0, 2), vec![2, 3]),
        (heavy(3, 1, 1), vec![0, 1, 3]),
    ] {
        let mut cache = tracking();
        expect_means(&cache, &causal(), &[1.0, 1.5, 7.0 / 3.0, 15.0 / 4.0]);
        cache.evict_by(&policy).unwrap();
        assert_eq!(positions(&cache), want);
    }
    let mut cache = tracking(); // nothing was looked at: all are equal, and the first stay
    cache.evict_by(&heavy(2, 0, 0)).unwrap();
    assert_eq!(positions(&cache), [0, 1]);
}

#[test]
fn queries_choose_what_they_look_at() {
    let keys = [0.0, 8.0_f64.ln(), 0.0, 2.0_f64.ln()]; // weights 1, 8, 1, 2 of 12
    let q = array![[[[1.0]]]];
    let snap = |budget, recent, pool| {
        let mut cache = with_keys(&keys).with_track().unwrap();
        let budget = Budget::One(budget);
        let policy = Policy::SnapKv { budget, sinks: 0, recent, q: &q, scale: Some(1.0), pool };
        cache.evict_by(&policy).unwrap();
        assert!(cache.tracked().unwrap().iter().all(|&sum| sum == 0.0)); // nothing is tracked
        positions(&cache)
    };
    assert_eq!(snap(2, 0, 1), [1, 3]);
    assert_eq!(snap(2, 0, 3), [0, 1]); // beside the largest
    assert_eq!(snap(2, 1, 1), [1, 3]);
    assert_eq!(snap(1, 1, 3), [3]);
    let older = array![[[[1.0], [0.0]]]]; // causal: the first of two queries does not see the last slot
    let policy = Policy::SnapKv {
        budget: Budget::One(1),
        sinks: 0,
        recent: 0,
        q: &older,
        scale: Some(100.0),
        pool: 1,
    };
    let mut cache = with_keys(&[0.0, 1.0, 0.0, 2.0]);
    cache.evict_by(&policy).unwrap();
    assert_eq!(positions(&cache), [1]);
}

#[test]
fn the_shortest_keys_stay() {
    let norm = Policy::KeyNorm { budget: Budget::One(2), sinks: 0, recent: 0 };
    let mut cache = with_keys(&[3.0, -1.0, 2.0, 0.5]);
    cache.evict_by(&norm).unwrap();
    assert_eq!(positions(&cache), [1, 3]);
    let mut cache = with_keys(&[f64::NAN, f64::INFINITY, -f64::NAN, 1.0]); // NaN is the lowest score
    cache.evict_by(&norm).unwrap();
    assert_eq!(positions(&cache), [1, 3]);
}

#[test]
fn heads_choose_together_or_each_by_itself() {
    let k: Array4<f64> = array![[[[1.0], [2.0], [3.0]], [[3.0], [2.0], [1.0]]]];
    let norm = |budget| Policy::KeyNorm { budget, sinks: 0, recent: 0 };
    let mut together = KvCache::new(1, 2, 1, 1, None).unwrap();
    together.append(&k, &k, &Append::default()).unwrap();
    together.evict_by(&norm(Budget::One(1))).unwrap(); // sums 10, 8, 10
    assert_eq!(together.rows().positions(), array![[1]]);
    assert_eq!(code(together.evict_by(&norm(Budget::PerHead(&[1, 1])))), "invalid_config");

    let mut apart = PerHeadCache::new(1, 2, 1, 1, None).unwrap();
    apart.append(&k, &k, &Append::default()).unwrap();
    assert_eq!(code(apart.evict_by(&norm(Budget::PerHead(&[1, 1, 1])))), "shape_mismatch");
    apart.evict_by(&norm(Budget::PerHead(&[1, 2]))).unwrap();
    assert_eq!(apart.rows().positions(), array![[0, -1], [1, 2]]);
    assert_eq!(apart.read().k, array![[[[1.0], [0.0]], [[2.0], [1.0]]]]);
    let output = apart.attend(&Array4::zeros((1, 4, 1, 1)), &causal()).unwrap(); // two query heads each
    assert_eq!(output, array![[[[1.0]], [[1.0]], [[1.5]], [[1.5]]]]);
    apart
        .append(&Array4::ones((1, 2, 1, 1)), &Array4::ones((1, 2, 1, 1)), &Append::default())
        .unwrap();
    assert_eq!(apart.rows().positions(), array![[0, 3, -1], [1, 2, 3]]);
    assert_eq!((apart.stats().positions, apart.stats().bytes), (array![2, 3], 5 * 16));
    apart.evict_by(&norm(Budget::PerHead(&[0, 3]))).unwrap(); // one head is empty, the other keeps all
    let output = apart.attend(&Array4::zeros((1, 2, 1, 1)), &causal()).unwrap();
    assert_eq!(output, array![[[[0.0]], [[4.0 / 3.0]]]]);
    apart.evict(&[2]).unwrap();
    assert_eq!(apart.rows().positions(), array![[-1, -1], [1, 3]]);
    assert_eq!(code(apart.truncate(&[0])), "invalid_config");
}

#[test]
fn masks_reach_the_rows_of_heads() {
    let v: Array4<f64> =
        array![[[[1.0], [2.0]], [[4.0], [8.0]]], [[[16.0], [32.0]], [[64.0], [128.0]]]];
    let mut cache = PerHeadCache::new(2, 2, 1, 1, None).unwrap();
    cache.append(&Array4::zeros((2, 2, 2, 1)), &v, &Append::default()).unwrap();
    let keep = array![[[[true, false]], [[false, true]]]].into_dyn(); // (1, Hq, 1, L)
    let mask = Mask { keep: Some(&keep), ..Mask::default() };
    let q = Array4::zeros((2, 2, 1, 1));
    let output = cache.attend(&q, &Sdpa { mask, ..Sdpa::default() }).unwrap();
    assert_eq!(output.into_raw_vec_and_offset().0, [1.0, 8.0, 16.0, 128.0]);
    let bias = array![[0.0, f64::NEG_INFINITY]].into_dyn();
    let output = cache.attend(&q, &Sdpa { bias: Some(&bias), ..Sdpa::default() }).unwrap();
    assert_eq!(output.into_raw_vec_and_offset().0, [1.0, 4.0, 16.0, 64.0]);
    cache.reorder(&[1, 1]).unwrap();
    let output = cache.attend(&q, &Sdpa::default()).unwrap();
    assert_eq!(output.into_raw_vec_and_offset().0, [24.0, 96.0, 24.0, 96.0]);
    let sinks = array![0.0, 0.0];
    let refused = cache.attend(&q, &Sdpa { sinks: Some(&sinks), ..Sdpa::default() });
    assert_eq!(code(refused), "unsupported");
}

#[test]
fn policies_that_cannot_be() {
    let mut cache = tracking();
    let before = cache.contents();
    let q = |heads, w, d| Array4::zeros((1, heads, w, d));
    let snap = |cache: &mut KvCache<f64>, q: &Array4<f64>, scale, pool| {
        let budget = Budget::One(2);
        code(cache.evict_by(&Policy::SnapKv { budget, sinks: 0, recent: 0, q, scale, pool }))
    };
    assert_eq!(code(cache.evict_by(&window(2, 3))), "invalid_config");
    assert_eq!(code(cache.evict_by(&heavy(2, usize::MAX, usize::MAX))), "invalid_config");
    assert_eq!(snap(&mut cache, &q(1, 0, 1), None, 1), "shape_mismatch");
    assert_eq!(snap(&mut cache, &q(1, 1, 2), None, 1), "shape_mismatch");
    for pool in [0, 2] {
        assert_eq!(snap(&mut cache, &q(1, 1, 1), None, pool), "invalid_config");
    }
    assert_eq!(snap(&mut cache, &q(1, 1, 1), Some(f64::NAN), 1), "invalid_config");
    assert_eq!(code(with_keys(&VALUES).evict_by(&heavy(4, 0, 0))), "invalid_config");
    assert_eq!(before, cache.contents());
    assert_eq!(snap(&mut cache, &q(2, 3, 1), None, 1), "ok"); // more query heads than KV heads
}

const INT8: Quantisation = Quantisation { format: Format::Int8, group: None, zero_point: false };

fn kivi(n: usize) -> KiviCache<f32> {
    KiviCache::new(1, 1, 2, 1, INT8, n, None).unwrap()
}

fn keys(keys: &[[f32; 2]]) -> (Array4<f32>, Array4<f32>) {
    let k = Array4::from_shape_fn((1, 1, keys.len(), 2), |(_, _, t, d)| keys[t][d]);
    (k, Array4::ones((1, 1, keys.len(), 1)))
}

fn put(cache: &mut KiviCache<f32>, rows: &[[f32; 2]]) -> &'static str {
    let (k, v) = keys(rows);
    code(cache.append(&k, &v, &Append::default()))
}

#[test]
fn keys_wait_for_each_other() {
    let mut cache = kivi(2);
    assert_eq!(put(&mut cache, &[[100.3, 0.1]]), "ok");
    assert_eq!(cache.read().k, array![[[[100.3, 0.1]]]]); // as it came
    assert_eq!(cache.stats().bytes, 8 + 5); // the tail; a code and a scale of the value
    assert_eq!(put(&mut cache, &[[254.0, -0.0635], [3.0, 5.0]]), "ok");
    let [codes, _] = cache.read_codes().unwrap();
    let want = [50, 127, 127, -81, 0, 0]; // 100.3 / 2; 0.1 / (0.1 / 127); 254 / 2; -0.0635 / (0.1 / 127)
    assert_eq!(codes.codes.mapv(|code| code as i8).into_raw_vec_and_offset().0, want);
    let scale = 0.1_f32 / 127.0;
    assert_eq!(codes.scale, array![[[[2.0, scale], [2.0, scale], [0.0, 0.0]]]]);
    let held = array![[[[100.0, 127.0 * scale], [254.0, -81.0 * scale], [3.0, 5.0]]]];
    assert_eq!(cache.read().k, held);
    assert_eq!(cache.stats().bytes, 4 + 8 + 8 + 3 * 5);

    cache.truncate(&[1]).unwrap(); // what is left of the group waits again, restored
    assert_eq!(cache.read().k, array![[[[100.0, 127.0 * scale]]]]);
    assert_eq!(put(&mut cache, &[[127.0, 0.0]]), "ok");
    let [codes, _] = cache.read_codes().unwrap();
    assert_eq!(codes.scale[[0, 0, 0, 0]], 1.0);
    assert_eq!(codes.codes[[0, 0, 0, 0]], 100);
}

#[test]
fn an_evict_fills_groups_anew() {
    let mut cache = kivi(2);
    put(&mut cache, &[[127.0, 1.0], [0.0, 1.0], [254.0, 1.0], [0.0, 1.0], [9.0, 1.0]]);
    cache.evict(&[1]).unwrap(); // 127 and 254 become one group, 0 and 9 the next
    let [codes, _] = cache.read_codes().unwrap();
    let of_first: Vec<u8> = codes.codes.iter().step_by(2).copied().collect();
    assert_eq!(of_first, [64, 127, 0, 127]); // 63.5 is half, to even
    assert_eq!(cache.rows().positions(), array![[0, 2, 3, 4]]);
    assert_eq!(cache.read().k[[0, 0, 0, 0]], 128.0);
}

#[test]
fn what_has_no_code_is_refused_where_it_comes() {
    let mut cache =
        KiviCache::<f32>::new(1, 1, 2, 1, Quantisation { zero_point: true, ..INT8 }, 2, None);
    let cache = cache.as_mut().unwrap();
    assert_eq!(put(cache, &[[f32::NAN, 0.0]]), "invalid_config"); // though it would wait
    assert_eq!(put(cache, &[[0.0, f32::INFINITY]]), "invalid_config");
    assert_eq!(put(cache, &[[f32::MAX, 0.0]]), "ok");
    let before = (cache.contents(), cache.stats());
    assert_eq!(put(cache, &[[f32::MIN, 0.0]]), "invalid_config"); // the group that it fills has no range
    assert_eq!(before, (cache.contents(), cache.stats()));
    assert_eq!(put(cache, &[[f32::MAX, 0.0], [f32::MIN, 1.0]]), "ok");
    let before = (cache.contents(), cache.rows().clone());
    assert_eq!(code(cache.evict(&[0])), "invalid_config"); // it would make the two a group
    assert_eq!(before, (cache.contents(), cache.rows().clone()));

    let mut cache = kivi(4).with_rope(Rope { base: 1.0, ..Rope::default() }).unwrap();
    put(&mut cache, &[[3e38, 3e38]]);
    let before = (cache.contents(), cache.rows().clone());
    assert_eq!(code(cache.shift(1, 0)), "invalid_config"); // cos 1 + sin 1 > 1.3, too long a key for f32
    assert_eq!(before, (cache.contents(), cache.rows().clone()));
}

#[test]
fn groups_of_keys_that_cannot_be() {
    let new = |quantisation, n| code(KiviCache::<f32>::new(1, 1, 2, 1, quantisation, n, None));
    assert_eq!(new(INT8, 0), "invalid_config");
    for format in [Format::F16, Format::Bf16, Format::Fp8E4m3] {
        assert_eq!(new(Quantisation { format, ..INT8 }, 2), "invalid_config");
    }
    let plain = QuantisedCache::<f32>::new(1, 1, 2, 1, INT8, None).unwrap();
    assert_ne!(plain.describe(), kivi(2).describe()); // nor do their files fit
}

#[test]
fn a_shift_turns_keys_of_groups() {
    let rope = || Rope { base: 1.0, ..Rope::default() }; // one position is one radian
    let mut cache = kivi(2).with_rope(rope()).unwrap();
    put(&mut cache, &[[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]);
    cache.evict(&[0]).unwrap();
    cache.shift(-1, 1).unwrap();
    let at = |j: f64| [j.cos() as f32, j.sin() as f32];
    let want = Array3::from_shape_fn((1, 2, 2), |(_, j, d)| at(j as f64)[d]);
    // A code is off by half of a scale, 1/254, and there are two roundings of it before the shift and one after; the
    // two channels of a pair, of at most 1 each, mix by a rotation, which lengthens by at most the root of 2.
    let room = (2.0 * 2.0_f32.sqrt() + 1.0) / 254.0 * 1.01;
    let got = cache.read().k;
    assert!(got.iter().zip(&want).all(|(got, want)| (got - want).abs() <= room), "{got}");
}
