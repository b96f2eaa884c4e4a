//! Attention on the slots of caches where they lie, on every tier: against the same kernels over copies, and against
//! the readable attend.

use crate::common::{same, signed, tiers};
use half::{bf16, f16};
use ndarray::{Array1, Array4, ArrayD, array, s};
use rosetta_attention::{
    Append, Cache, Dropout, Float, Format, KiviCache, KvCache, LatentCache, Mask, Offset, PagePool,
    PageSizes, PagedCache, PerHeadCache, Quantisation, QuantisedCache, Rope, RopeAt, RotatingCache,
    Sdpa, Stored, Tier, cast, sdpa_simd, widen,
};

const BATCH: usize = 2;
const HEADS: usize = 2;
const D: usize = 64;

/// No multiple of any register.
const DV: usize = 37;

/// More than two blocks of 256 keys, and much less; no multiple of any page or register.
const LENGTHS: [i64; BATCH] = [601, 43];

type Any<S> = Box<dyn Cache<S>>;

/// Rows of these lengths, of which some tokens in the middle are forgotten again where `holes`.
fn filled<S: Stored>(mut cache: Any<S>, holes: bool) -> Any<S> {
    let lengths = Array1::from(LENGTHS.to_vec());
    let t = LENGTHS[0] as usize;
    let k: Array4<S> = cast(&signed::<f64>((BATCH, HEADS, t, D), 1));
    let v: Array4<S> = cast(&signed::<f64>((BATCH, HEADS, t, DV), 2));
    let options = Append { lengths: Some(&lengths), ..Append::default() };
    cache.append(&k, &v, &options).unwrap();
    if holes {
        cache.evict(&[0, 3, 40, 41, 255, 256, 257, 400]).unwrap();
    }
    cache
}

fn contiguous<S: Stored>() -> KvCache<S> {
    KvCache::new(BATCH, HEADS, D, DV, None).unwrap()
}

fn paged<S: Stored>(page_size: usize) -> PagedCache<S> {
    let num_pages = 2 * 601_usize.div_ceil(page_size);
    let sizes = PageSizes { num_pages, page_size, num_kv_heads: HEADS, head_dim: D, value_dim: DV };
    PagedCache::new(&PagePool::new(sizes).unwrap(), BATCH).unwrap()
}

fn quantised<S: Stored>(
    format: Format,
    group: Option<usize>,
    zero_point: bool,
) -> QuantisedCache<S> {
    let quantisation = Quantisation { format, group, zero_point };
    QuantisedCache::new(BATCH, HEADS, D, DV, quantisation, None).unwrap()
}

/// Every kind that holds all it is given, and its name.
fn whole<S: Stored>() -> Vec<(String, Any<S>)> {
    let mut all: Vec<(String, Any<S>)> =
        vec![("contiguous".into(), filled(Box::new(contiguous()), false))];
    all.push(("with holes".into(), filled(Box::new(contiguous()), true)));
    for page_size in [7, 16, 700] {
        all.push((format!("pages of {page_size}"), filled(Box::new(paged(page_size)), false)));
    }
    for format in Format::ALL {
        all.push((format!("{format}"), filled(Box::new(quantised(format, None, false)), false)));
    }
    for (format, group) in [Format::Int8, Format::Int4].into_iter().zip([Some(32), Some(5)]) {
        all.push((
            format!("{format}, zeros"),
            filled(Box::new(quantised(format, None, true)), true),
        ));
        let cache = Box::new(quantised(format, group, true));
        all.push((format!("{format}, groups"), filled(cache, false)));
    }
    all
}

/// What query i of row b sees of the slots held, from the table of the protocol.
fn table<S: Stored>(cache: &dyn Cache<S>, mask: &Mask<'_>, hq: usize, tq: usize) -> ArrayD<bool> {
    let (positions, next) = (cache.rows().positions(), cache.rows().next());
    let (left, right) = mask.window.unwrap_or_default();
    let shape = (BATCH, hq, tq, positions.dim().1);
    let keep = mask.keep.map(|keep| keep.broadcast(shape).unwrap());
    Array4::from_shape_fn(shape, |(b, h, i, slot)| {
        let p = i as i64
            + match mask.q_offset {
                None => next[b] - tq as i64,
                Some(Offset::One(offset)) => offset,
                Some(Offset::PerRow(offsets)) => offsets[b],
            };
        let j = positions[[b, slot]];
        j >= 0
            && (!mask.causal || j <= p)
            && left.is_none_or(|left| p - left as i64 <= j)
            && right.is_none_or(|right| j <= p + right as i64)
            && keep.is_none_or(|keep| keep[(b, h, i, slot)])
    })
    .into_dyn()
}

/// The masks that caches treat in ways of their own, for G query heads a KV head and Tq queries.
fn masks<'a>(offsets: &'a Array1<i64>, keep: &'a ArrayD<bool>) -> Vec<Mask<'a>> {
    let causal = Mask { causal: true, ..Mask::default() };
    vec![
        Mask::default(),
        causal,
        Mask { window: Some((Some(290), None)), ..causal },
        Mask { q_offset: Some(Offset::PerRow(offsets)), ..causal },
        Mask {
            window: Some((Some(1), Some(300))),
            q_offset: Some(Offset::One(120)),
            keep: Some(keep),
            ..Mask::default()
        },
    ]
}

/// `sizes`: G and Tq.
fn near_a_copy<S: Stored>(sizes: &[(usize, usize)]) {
    for &(group, tq) in sizes {
        let hq = HEADS * group;
        let q = signed::<S::Compute>((BATCH, hq, tq, D), 3);
        let offsets = array![270_i64, -1];
        let sinks = Array1::from_shape_fn(hq, |h| S::Compute::from_f64(h as f64 - 2.0));
        for (name, cache) in whole::<S>() {
            let held = cache.read();
            let quantised: Option<[Array4<S::Compute>; 2]> = cache
                .read_codes()
                .ok()
                .map(|codes| codes.map(|codes| cast(&rosetta_attention::restore(&codes).unwrap())));
            let [k, v] = quantised.unwrap_or_else(|| {
                [widen(held.k.view()).into_owned(), widen(held.v.view()).into_owned()]
            });
            let slots = k.dim().2;
            let keep = signed::<f64>((BATCH, 1, tq, slots), 4).mapv(|x| x < 1.0).into_dyn();
            for (n, mask) in masks(&offsets, &keep).iter().enumerate() {
                let softcap = (n == 1).then_some(3.0);
                let options = Sdpa { mask: *mask, softcap, sinks: Some(&sinks), ..Sdpa::default() };
                let keep = table(&*cache, mask, hq, tq);
                let plain = Mask { keep: Some(&keep), ..Mask::default() };
                for tier in tiers() {
                    let (got, got_lse) = cache.attend_simd(&q, &options, Some(tier)).unwrap();
                    let options = Sdpa { mask: plain, ..options };
                    let (want, want_lse) = sdpa_simd(&q, &k, &v, &options, Some(tier)).unwrap();
                    let most = [farthest(&got, &want), farthest(&got_lse, &want_lse)];
                    let at = format!("{tier}, {name}, G {group}, Tq {tq}, mask {n}");
                    let room = room::<S>();
                    assert!(
                        most.iter().all(|&x| x <= room),
                        "{at}: {most:?} is more than {room:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn near_a_copy_f32() {
    near_a_copy::<f32>(&[(1, 1), (4, 5)]);
}

#[test]
fn near_a_copy_f64() {
    near_a_copy::<f64>(&[(3, 1)]);
}

#[test]
fn near_a_copy_halves() {
    near_a_copy::<f16>(&[(3, 1)]);
    near_a_copy::<bf16>(&[(3, 1)]);
}

fn epsilon<T: Float>() -> f64 {
    T::epsilon().to_f64().unwrap()
}

/// The largest difference, NaN if there is one; equal infinities do not differ.
fn farthest<'a, T: Float>(
    x: impl IntoIterator<Item = &'a T>,
    y: impl IntoIterator<Item = &'a T>,
) -> f64 {
    let apart = |x: T, y: T| if x == y { 0.0 } else { (x - y).abs().to_f64().unwrap() };
    let off = x.into_iter().zip(y).map(|(&x, &y)| apart(x, y));
    off.fold(0.0, |most: f64, x| if x > most || x.is_nan() { x } else { most })
}

/// By the bound that `simd.rs` derives, in units of u: |q|, |k| <= 2, and 2 · sqrt(2) after a rotation, so that
/// scores are at most 64, each off by e = 67 · 64, a scale that is multiplied last included; the output by 2 · 2 · (2
/// · (2·e + 9) + 2 · 2405) < 90,000.
fn room<S: Stored>() -> f64 {
    90_000.0 * epsilon::<S::Compute>() / 2.0
}

fn near<S: Stored>(name: &str, cache: &dyn Cache<S>, options: &Sdpa<'_, S::Compute>, tq: usize) {
    let q = signed::<S::Compute>((BATCH, 3 * HEADS, tq, D), 5);
    let want = cache.attend(&q, options).unwrap();
    for tier in tiers() {
        let (got, _) = cache.attend_simd(&q, options, Some(tier)).unwrap();
        let (most, room) = (farthest(&got, &want), room::<S>());
        assert!(most <= room, "{tier}, {name}, Tq {tq}: {most:e} is more than {room:e}");
    }
}

fn all_near<S: Stored>() {
    let causal = Mask { causal: true, ..Mask::default() };
    let options = Sdpa { mask: causal, ..Sdpa::default() };
    for (name, cache) in whole::<S>() {
        near(&name, &*cache, &options, 2);
    }
    let turned: [(&str, Any<S>); 3] = [
        ("contiguous, turned", Box::new(contiguous().with_rope(Rope::default()).unwrap())),
        ("paged, turned", Box::new(paged(16).with_rope(Rope::default()).unwrap())),
        (
            "int8, turned",
            Box::new(quantised(Format::Int8, None, false).with_rope(Rope::default()).unwrap()),
        ),
    ];
    for (name, cache) in turned {
        near(name, &*filled(cache, false), &options, 2);
    }
    // A chunk longer than the window, so that queries see windows that lie apart from what stays.
    for (window, keep) in [(5, 3), (300, 2), (1000, 0)] {
        for rope in [false, true] {
            let cache = RotatingCache::new(BATCH, HEADS, D, DV, window, keep).unwrap();
            let cache = if rope { cache.with_rope(Rope::default()).unwrap() } else { cache };
            let mut cache = filled(Box::new(cache) as Any<S>, false);
            let name = format!("rotating, window {window}, keep {keep}, rope {rope}");
            near(&name, &*cache, &options, 2);
            near(&name, &*cache, &Sdpa::default(), 9);
            let (k, v) = (signed::<f64>((BATCH, HEADS, 1, D), 6), signed((BATCH, HEADS, 1, DV), 7));
            cache.append(&cast(&k), &cast::<f64, _, _>(&v), &Append::default()).unwrap();
            near(&name, &*cache, &options, 1);
        }
    }
}

#[test]
fn near_the_readable_attend() {
    all_near::<f64>();
    all_near::<f16>();
}

/// What lies beyond a row, and what a mask hides, is NaN.
#[test]
fn nothing_of_hidden_slots_is_read() {
    let (k, v) =
        (signed::<f32>((BATCH, HEADS, 50, D), 8), signed::<f32>((BATCH, HEADS, 50, DV), 9));
    let nan = |n| Array4::from_elem((BATCH, HEADS, 5, n), f32::NAN);
    for rows in [1, 20] {
        let q = signed::<f32>((BATCH, HEADS, rows, D), 10);
        let kinds: [fn() -> Any<f32>; 2] = [|| Box::new(contiguous()), || Box::new(paged(16))];
        for empty in kinds {
            let (mut clean, mut dirty) = (empty(), empty());
            clean.append(&k, &v, &Append::default()).unwrap();
            dirty.append(&k, &v, &Append::default()).unwrap();
            dirty.append(&nan(D), &nan(DV), &Append::default()).unwrap();
            let keep = Array1::from_shape_fn(55, |j| j < 50).into_dyn();
            let hidden =
                Sdpa { mask: Mask { keep: Some(&keep), ..Mask::default() }, ..Sdpa::default() };
            let plain = Sdpa::default();
            for tier in tiers().map(Some) {
                let want = clean.attend_simd(&q, &plain, tier).unwrap();
                let got = dirty.attend_simd(&q, &hidden, tier).unwrap();
                assert!(farthest(&got.0, &want.0) <= room::<f32>(), "{tier:?}, a mask");
                assert!(farthest(&got.1, &want.1) <= room::<f32>(), "{tier:?}, a mask");
                let (seen, _) = dirty.attend_simd(&q, &plain, tier).unwrap();
                assert!(seen.iter().all(|x| x.is_nan()), "{tier:?}");
            }
            dirty.truncate(&[50, 50]).unwrap();
            for tier in tiers().map(Some) {
                let want = clean.attend_simd(&q, &plain, tier).unwrap();
                let got = dirty.attend_simd(&q, &plain, tier).unwrap();
                assert!(same(&got.0, &want.0) && same(&got.1, &want.1), "{tier:?}, a truncate");
            }
        }
    }
}

#[test]
fn empty_rows_and_forks_and_other_orders() {
    let q = signed::<f32>((BATCH, HEADS, 1, D), 11);
    for tier in tiers().map(Some) {
        let empty = contiguous::<f32>();
        let (output, lse) = empty.attend_simd(&q, &Sdpa::default(), tier).unwrap();
        assert!(output.iter().all(|&x| x == 0.0) && lse.iter().all(|&x| x == f32::NEG_INFINITY));
        let none = signed::<f32>((BATCH, HEADS, 0, D), 12);
        let (output, lse) = empty.attend_simd(&none, &Sdpa::default(), tier).unwrap();
        assert_eq!((output.dim(), lse.dim()), ((BATCH, HEADS, 0, DV), (BATCH, HEADS, 0)));
        for (name, mut cache) in whole::<f32>() {
            let (before, _) = cache.attend_simd(&q, &Sdpa::default(), tier).unwrap();
            let fork = cache.fork();
            cache.reorder(&[1, 1]).unwrap();
            let (after, _) = cache.attend_simd(&q, &Sdpa::default(), tier).unwrap();
            let one = cache.attend(&q, &Sdpa::default()).unwrap();
            let off = after.iter().zip(&one).map(|(x, y)| (x - y).abs());
            assert!(off.fold(0.0, f32::max) <= 90_000.0 * f32::EPSILON / 2.0, "{name}");
            assert!(
                same(after.slice(s![1, .., .., ..]), before.slice(s![1, .., .., ..])),
                "{name}"
            );
            let (again, _) = fork.attend_simd(&q, &Sdpa::default(), tier).unwrap();
            assert!(same(&again, &before), "{name}");
        }
    }
}

#[test]
fn what_it_does_not_do() {
    let q = signed::<f32>((BATCH, HEADS, 1, D), 13);
    let code = |cache: &dyn Cache<f32>, options: &Sdpa<'_, f32>| {
        let error = cache.attend_simd(&q, options, Some(Tier::Portable)).unwrap_err();
        (error.code(), error.to_string())
    };
    let plain = Sdpa::default();
    let int8 = Quantisation { format: Format::Int8, group: None, zero_point: false };
    let turned = contiguous::<f32>().with_rope_at(Rope::default(), RopeAt::Attend).unwrap();
    let latent = LatentCache::<f32>::new(BATCH, D, 0, None).unwrap();
    let per_head = PerHeadCache::<f32>::new(BATCH, HEADS, D, DV, None).unwrap();
    let kivi = KiviCache::<f32>::new(BATCH, HEADS, D, DV, int8, 4, None).unwrap();
    let refused: [(&dyn Cache<f32>, &str); 5] = [
        (&turned, "rope_at"),
        (&contiguous::<f32>().with_track().unwrap(), "track"),
        (&latent, "simd"),
        (&per_head, "simd"),
        (&kivi, "simd"),
    ];
    for (cache, feature) in refused {
        let message = format!("{feature} is not offered here");
        assert_eq!(code(cache, &plain), ("unsupported", message));
    }
    let dropout = Some(Dropout { p: 0.5, seed: 0 });
    let options = Sdpa { dropout, ..plain };
    assert_eq!(code(&contiguous(), &options).0, "unsupported");
    let bad = Sdpa { softcap: Some(-1.0), ..plain };
    assert_eq!(code(&contiguous(), &bad).0, "invalid_config");
}
