//! What must hold for eviction, keys by channel, heads with slots of their own and ropes, on random numbers.

use crate::common::{causal, same, signed};
use ndarray::{Array3, Array4, Axis, s};
use proptest::collection::vec;
use proptest::prelude::*;
use rosetta_attention::{
    Append, Budget, Cache, Format, KiviCache, KvCache, Mask, PagePool, PageSizes, PagedCache,
    PerHeadCache, Policy, Quantisation, QuantisedCache, Rope, RopeAt, RotatingCache, Sdpa,
    quantise, restore,
};

const BATCH: usize = 2;
const HEADS: usize = 2;
const D: usize = 4;
const DV: usize = 3;

type Any = Box<dyn Cache<f32>>;

fn tensors(seed: u64, len: usize) -> (Array4<f32>, Array4<f32>) {
    (signed((BATCH, HEADS, len, D), 10 * seed), signed((BATCH, HEADS, len, DV), 10 * seed + 1))
}

fn queries(seed: u64) -> Array4<f32> {
    signed((BATCH, 2 * HEADS, 2, D), seed)
}

fn contiguous() -> KvCache<f32> {
    KvCache::new(BATCH, HEADS, D, DV, None).unwrap()
}

fn filled(mut cache: impl Cache<f32> + 'static, len: usize) -> Any {
    let (k, v) = tensors(1, len);
    cache.append(&k, &v, &Append::default()).unwrap();
    Box::new(cache)
}

/// One of the four, with sinks + recent <= budget.
fn policy<'a>(which: usize, budget: Budget<'a>, q: &'a Array4<f32>) -> Policy<'a, f32> {
    let (sinks, recent) = (1, 1);
    match which {
        0 => Policy::Window { budget, sinks },
        1 => Policy::HeavyHitters { budget, sinks, recent },
        2 => Policy::SnapKv { budget, sinks, recent, q, scale: None, pool: 3 },
        _ => Policy::KeyNorm { budget, sinks, recent },
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn evicted_equals_contiguous_with_the_slots_masked(
        len in 2..9_usize, budget in 2..9_usize, which in 0..4_usize, turn: bool, at_attend: bool,
    ) {
        let at = if at_attend { RopeAt::Attend } else { RopeAt::Append };
        let make = || {
            let cache = contiguous().with_track().unwrap();
            if turn { cache.with_rope_at(Rope::default(), at).unwrap() } else { cache }
        };
        let (mut evicted, full) = (filled(make(), len), filled(make(), len));
        let q = queries(5);
        evicted.attend(&queries(6), &causal()).unwrap();
        evicted.evict_by(&policy(which, Budget::One(budget), &q)).unwrap();
        let rows = evicted.rows().positions();
        let exists = |b: usize, j: usize| rows.row(b).iter().any(|&held| held == j as i64);
        let keep = Array4::from_shape_fn((BATCH, 1, 1, len), |(b, _, _, j)| exists(b, j)).into_dyn();
        let mask = Mask { causal: true, keep: Some(&keep), ..Mask::default() };
        let masked = full.attend(&q, &Sdpa { mask, ..Sdpa::default() }).unwrap();
        prop_assert!(same(&evicted.attend(&q, &causal()).unwrap(), &masked));
        prop_assert!(evicted.rows().lengths().iter().all(|&n| n == budget.min(len) as i64));
    }

    #[test]
    fn per_head_equals_contiguous_where_all_choose_alike(
        cuts in vec(0..5_usize, 1..6), budget in 1..6_usize, turn: bool,
    ) {
        let rope = Rope::default;
        let (mut plain, mut apart): (Any, Any) = if turn {
            let apart = PerHeadCache::new(BATCH, HEADS, D, DV, None).unwrap();
            (Box::new(contiguous().with_rope(rope()).unwrap()), Box::new(apart.with_rope(rope()).unwrap()))
        } else {
            (Box::new(contiguous()), Box::new(PerHeadCache::new(BATCH, HEADS, D, DV, None).unwrap()))
        };
        for (seed, len) in (1..).zip(cuts) {
            let (k, v) = tensors(seed, len);
            let outputs = [&mut plain, &mut apart].map(|cache| {
                let (append, q) = (Append::default(), queries(seed));
                let steps = cache.append_attend_steps((&k, &v), &append, &q, &causal()).unwrap();
                cache.evict_by(&Policy::Window { budget: Budget::One(budget), sinks: 1 }).unwrap();
                if len == 3 {
                    cache.reorder(&[1, 0]).unwrap();
                    cache.shift(2, 1).unwrap();
                }
                steps
            });
            prop_assert!(same(&outputs[0].output, &outputs[1].output));
            prop_assert!(same(&outputs[0].lse, &outputs[1].lse));
            let (plain, apart) = (plain.read(), apart.read());
            prop_assert!(same(&plain.k, &apart.k) && same(&plain.v, &apart.v));
            let heads = |b| apart.positions.slice(s![b * HEADS..(b + 1) * HEADS, ..]).to_owned();
            for b in 0..BATCH {
                let row = plain.positions.row(b).to_owned();
                prop_assert!(heads(b).outer_iter().all(|head| head == row));
            }
        }
    }

    #[test]
    fn keys_of_a_group_are_quantised_along_their_slots(
        cuts in vec(0..4_usize, 1..6), n in 1..5_usize, int4: bool, zero_point: bool,
    ) {
        let format = if int4 { Format::Int4 } else { Format::Int8 };
        let quantisation = Quantisation { format, group: None, zero_point };
        let mut cache = KiviCache::<f32>::new(BATCH, HEADS, D, DV, quantisation, n, None).unwrap();
        let (k, v) = tensors(1, cuts.iter().sum());
        let mut len = 0;
        for cut in cuts {
            let at = s![.., .., len..len + cut, ..];
            cache.append(&k.slice(at), &v.slice(at), &Append::default()).unwrap();
            len += cut;
        }
        let (full, held) = (len / n * n, cache.read());
        let [codes, _] = cache.read_codes().unwrap();
        for start in (0..full).step_by(n) {
            let by_channel = k.slice(s![.., .., start..start + n, ..]).permuted_axes([0, 1, 3, 2]);
            let whole = quantise(&by_channel.as_standard_layout(), quantisation).unwrap(); // (B, Hkv, D, n)
            let back = restore(&whole).unwrap().permuted_axes([0, 1, 3, 2]);
            prop_assert!(same(held.k.slice(s![.., .., start..start + n, ..]), &back));
            prop_assert!(same(codes.scale.slice(s![.., .., start, ..]), whole.scale.slice(s![.., .., .., 0])));
        }
        prop_assert!(same(held.k.slice(s![.., .., full.., ..]), k.slice(s![.., .., full.., ..])));
        let restored = restore(&codes).unwrap();
        prop_assert!(same(held.k.slice(s![.., .., ..full, ..]), restored.slice(s![.., .., ..full, ..])));

        let mut plain = QuantisedCache::<f32>::new(BATCH, HEADS, D, DV, quantisation, None).unwrap();
        plain.append(&k, &v, &Append::default()).unwrap();
        prop_assert!(same(&held.v, &plain.read().v)); // values are as without groups of tokens
        let mut of_restored = contiguous();
        of_restored.append(&held.k, &held.v, &Append::default()).unwrap();
        let q = queries(7);
        prop_assert!(same(&cache.attend(&q, &causal()).unwrap(), &of_restored.attend(&q, &causal()).unwrap()));
    }

    #[test]
    fn an_evict_of_groups_is_an_append_of_what_is_left(len in 0..9_usize, n in 1..4_usize, gone in vec(0..9_i64, 0..4)) {
        let quantisation = Quantisation { format: Format::Int8, group: None, zero_point: true };
        let new = || KiviCache::<f32>::new(BATCH, HEADS, D, DV, quantisation, n, None).unwrap();
        let mut cache = new();
        let (k, v) = tensors(1, len);
        cache.append(&k, &v, &Append::default()).unwrap();
        let held = cache.read();
        cache.evict(&gone).unwrap();
        let stay: Vec<usize> = (0..len).filter(|&j| !gone.contains(&(j as i64))).collect();
        let first = (0..len).find(|&j| gone.contains(&(j as i64))).map_or(len, |j| j / n * n);
        let mut other = new();
        // What no group from the first changed one on holds is as it was, quantised from the numbers that came.
        let mut k_then = held.k.clone();
        k_then.slice_mut(s![.., .., ..first, ..]).assign(&k.slice(s![.., .., ..first, ..]));
        let axis = Axis(2);
        other.append(&k_then.select(axis, &stay), &held.v.select(axis, &stay), &Append::default()).unwrap();
        let (got, want) = (cache.read(), other.read());
        prop_assert!(same(&got.k, &want.k));
        prop_assert!(same(&got.v, held.v.select(axis, &stay).iter()));
    }

    #[test]
    fn keys_turned_at_an_attend_give_what_keys_turned_at_their_append_give(cuts in vec(0..4_usize, 1..6)) {
        // Before a shift both turn a key once, in the same type: the same bits.
        let pool = || {
            let sizes =
                PageSizes { num_pages: 32, page_size: 2, num_kv_heads: HEADS, head_dim: D, value_dim: DV };
            PagePool::new(sizes).unwrap()
        };
        let pairs = [RopeAt::Append, RopeAt::Attend].map(|at| -> Vec<Any> {
            let rope = Rope::default;
            vec![
                Box::new(contiguous().with_rope_at(rope(), at).unwrap()),
                Box::new(RotatingCache::new(BATCH, HEADS, D, DV, 3, 1).unwrap().with_rope_at(rope(), at).unwrap()),
                Box::new(PagedCache::new(&pool(), BATCH).unwrap().with_rope_at(rope(), at).unwrap()),
                Box::new(PerHeadCache::new(BATCH, HEADS, D, DV, None).unwrap().with_rope_at(rope(), at).unwrap()),
            ]
        });
        let [appended, attended] = pairs;
        for (mut appended, mut attended) in appended.into_iter().zip(attended) {
            for (seed, &len) in (1..).zip(&cuts) {
                let ((k, v), q) = (tensors(seed, len), queries(seed));
                let outputs = [&mut appended, &mut attended].map(|cache| {
                    let append = Append::default();
                    cache.append_attend_steps((&k, &v), &append, &q, &causal()).unwrap().output
                });
                prop_assert!(same(&outputs[0], &outputs[1]), "{:?}", appended.describe());
            }
            prop_assert_ne!(appended.describe(), attended.describe());
        }
    }

    #[test]
    fn a_shift_moves_numbers_alone_where_keys_are_turned_at_an_attend(len in 1..8_usize, cut in 0..8_usize) {
        let cut = cut.min(len - 1);
        let quantisation = Quantisation { format: Format::Int8, group: None, zero_point: false };
        let make: [fn(Quantisation) -> Any; 3] = [
            |_| Box::new(contiguous().with_rope_at(Rope::default(), RopeAt::Attend).unwrap()),
            |q| {
                let cache = QuantisedCache::new(BATCH, HEADS, D, DV, q, None).unwrap();
                Box::new(cache.with_rope_at(Rope::default(), RopeAt::Attend).unwrap())
            },
            |q| {
                let cache = KiviCache::new(BATCH, HEADS, D, DV, q, 1, None).unwrap();
                Box::new(cache.with_rope_at(Rope::default(), RopeAt::Attend).unwrap())
            },
        ];
        let ((k, v), q) = (tensors(1, len), queries(3));
        for make in make {
            let (mut moved, mut fresh) = (make(quantisation), make(quantisation));
            moved.append(&k, &v, &Append::default()).unwrap();
            moved.evict(&Vec::from_iter(0..cut as i64)).unwrap();
            let held = moved.read();
            moved.shift(-(cut as i64), cut as i64).unwrap();
            prop_assert!(same(&held.k, &moved.read().k));
            let at = s![.., .., cut.., ..];
            fresh.append(&k.slice(at), &v.slice(at), &Append::default()).unwrap();
            prop_assert!(moved.rows() == fresh.rows() && moved.contents() == fresh.contents());
            prop_assert!(same(&moved.attend(&q, &causal()).unwrap(), &fresh.attend(&q, &causal()).unwrap()));
        }
    }

    #[test]
    fn sums_are_those_of_the_weights(len in 1..7_usize, asks in 1..4_u64, index in [0..BATCH as i64, 0..BATCH as i64]) {
        let quantisation = Quantisation { format: Format::F16, group: None, zero_point: false };
        let quantised = QuantisedCache::<f32>::new(BATCH, HEADS, D, DV, quantisation, None).unwrap();
        let caches: [Any; 2] =
            [filled(contiguous().with_track().unwrap(), len), filled(quantised.with_track().unwrap(), len)];
        for mut cache in caches {
            let mut sums = Array3::<f64>::zeros((BATCH, HEADS, len));
            for ask in 1..=asks {
                let weights = cache.attend_steps(&queries(ask), &causal()).unwrap().weights;
                for ((b, h, _, j), &weight) in weights.indexed_iter() {
                    sums[[b, h / 2, j]] += f64::from(weight);
                }
            }
            // At most 12 weights, none above 1: on both sides 12 sums, none above 12, each rounded once.
            let room = 2.0 * 12.0 * 12.0 * f64::EPSILON / 2.0;
            let near = |a: &Array3<f64>, b: &Array3<f64>| {
                a.iter().zip(b).all(|(a, b)| (a - b).abs() <= room) && a.dim() == b.dim()
            };
            prop_assert!(near(&cache.tracked().unwrap(), &sums));
            cache.reorder(&index).unwrap();
            let rows: Vec<usize> = index.iter().map(|&b| b as usize).collect();
            prop_assert!(near(&cache.tracked().unwrap(), &sums.select(Axis(0), &rows)));
        }
    }

    #[test]
    fn a_policy_that_is_refused_changes_nothing(len in 0..7_usize, which in 0..4_usize) {
        let quantisation = Quantisation { format: Format::Int4, group: None, zero_point: false };
        let kivi = KiviCache::<f32>::new(BATCH, HEADS, D, DV, quantisation, 2, None).unwrap();
        let apart = PerHeadCache::<f32>::new(BATCH, HEADS, D, DV, None).unwrap();
        let caches: [Any; 3] = [filled(contiguous(), len), filled(kivi, len), filled(apart, len)];
        for mut cache in caches {
            let held = cache.contents();
            let narrow = Array4::zeros((BATCH, HEADS, 1, D - 1));
            let q = queries(1);
            if which > 0 {
                prop_assert!(cache.evict_by(&policy(which, Budget::One(1), &q)).is_err());
            }
            prop_assert!(cache.evict_by(&policy(which, Budget::PerHead(&[1]), &q)).is_err());
            prop_assert!(cache.evict_by(&policy(2, Budget::One(9), &narrow)).is_err());
            prop_assert!(cache.evict_by(&policy(1, Budget::One(9), &q)).is_err()); // nothing is tracked
            prop_assert!(held == cache.contents());
        }
    }
}

#[test]
fn a_half_is_turned_without_rounding_at_an_attend() {
    use half::bf16;
    use rosetta_attention::narrow;
    let wide = signed::<f32>((1, 1, 3, D), 4).mapv(|x| bf16::from_f32(x).to_f32());
    let half = narrow::<bf16, _>(wide.clone());
    let q = signed((1, 1, 1, D), 5);
    let rope = Rope::default;
    let mut halves = KvCache::<bf16>::new(1, 1, D, D, None).unwrap();
    halves = halves.with_rope_at(rope(), RopeAt::Attend).unwrap();
    halves.append(&half, &half, &Append::default()).unwrap();
    let mut exact = KvCache::<f32>::new(1, 1, D, D, None).unwrap().with_rope(rope()).unwrap();
    exact.append(&wide, &wide, &Append::default()).unwrap();
    let mut rounded = KvCache::<bf16>::new(1, 1, D, D, None).unwrap().with_rope(rope()).unwrap();
    rounded.append(&half, &half, &Append::default()).unwrap();
    let want = exact.attend(&q, &causal()).unwrap();
    assert!(same(&halves.attend(&q, &causal()).unwrap(), &want));
    assert!(!same(&rounded.attend(&q, &causal()).unwrap(), &want));
    assert_eq!(halves.read().k, half);
}
