//! The simd rung in calls of more than one block of keys: what its two kernels, and its blocks, may not change.
//!
//! The queries of a head go through one kernel if they are few, through another if they are many, and a block of keys
//! starts wherever some row of the tile sees one. A query gets the same bits whatever else is in the call, from both
//! kernels what the derived bound allows, and 0 where it sees nothing.

use crate::common::{same, signed, tiers};
use ndarray::{Array1, Array4, ArrayD, ArrayView4, array, s};
use rosetta_attention::{Float, Mask, Offset, Sdpa, Tiles, flash, sdpa_simd};

/// More than two blocks of 256 keys, and no multiple of any register.
const TK: usize = 601;

/// Head size, and the largest of |q|, |k| and |v|.
const D: usize = 21;
const MOST: f64 = 2.0;

/// How far two outputs may be apart, by the bound that `agrees_with_flash` derives, in units of u: scores of at most
/// `most` are each off by e = (D + 2) · most, and a softcap of 3 by less than 32 more; sums over TK keys and
/// rescalings by 4 · TK + 1; that of either call.
fn room<T: Float>(most: f64) -> f64 {
    let e = (D + 2) as f64 * most + 32.0;
    let sums = (4 * TK + 1) as f64;
    2.0 * MOST * (2.0 * (2.0 * e + 8.0) + 2.0 * sums) * T::epsilon().to_f64().unwrap() / 2.0
}

/// Every query of 40 alone, one head at a time and all heads of its group, against all at once; and some heads in
/// a larger batch against the same in a call of their own, bit by bit.
fn alone_and_together<T: Float>(group: usize, mask: &Mask<'_>, more: &Sdpa<'_, T>) {
    let (tq, d, dv) = (40, D, 37);
    let q = signed::<T>((1, group, tq, d), 1).mapv(|x| x * T::from_f64(2.0));
    let (k, mut v) = (signed::<T>((1, 1, TK, d), 2), signed::<T>((1, 1, TK, dv), 3));
    let keep = signed::<f64>((1, 1, tq, TK), 4).mapv(|x| x < 1.5).into_dyn();
    let keep = mask.keep.map(|_| {
        v.slice_mut(s![.., .., 300, ..]).fill(T::infinity());
        let mut keep = keep;
        keep.slice_mut(s![.., .., .., 300]).fill(false); // where nothing may be read
        keep
    });
    let scale = more.scale.unwrap_or(1.0 / (d as f64).sqrt());
    let room = room::<T>(scale * 2.0 * MOST * MOST * d as f64);
    let sinks = Array1::from_shape_fn(group, |h| T::from_f64(h as f64));
    for tier in tiers() {
        let call = |queries: std::ops::Range<usize>, heads: std::ops::Range<usize>, batch| {
            let keep: Option<ArrayD<bool>> = keep
                .as_ref()
                .map(|keep| keep.slice(s![.., .., queries.clone(), ..]).to_owned().into_dyn());
            let offset = match mask.q_offset {
                Some(Offset::One(offset)) => offset,
                _ => 0,
            };
            let mask = Mask {
                keep: keep.as_deref(),
                q_offset: Some(Offset::One(offset + queries.start as i64)),
                ..*mask
            };
            let sinks = sinks.slice(s![heads.clone()]).to_owned();
            let options = Sdpa { mask, sinks: Some(&sinks), ..*more };
            let q = q.slice(s![.., heads, queries, ..]);
            let many = |x: ArrayView4<'_, T>| {
                let (_, heads, t, n) = x.dim();
                x.broadcast((batch, heads, t, n)).unwrap().to_owned()
            };
            let (q, k, v) = (many(q), many(k.view()), many(v.view()));
            sdpa_simd(&q, &k, &v, &options, Some(tier)).unwrap()
        };
        let near = |x: &T, y: &T| {
            let (x, y) = (x.to_f64().unwrap(), y.to_f64().unwrap());
            x == y || (x - y).abs() <= room
        };
        let (output, lse) = call(0..tq, 0..group, 1);
        assert!(output.iter().all(|x| x.is_finite()), "{tier}");
        for i in [0, 1, 17, 38, 39] {
            for heads in [0..group, 0..1, group - 1..group] {
                let (one, one_lse) = call(i..i + 1, heads.clone(), 1);
                let want = output.slice(s![.., heads.clone(), i..i + 1, ..]);
                let all = one.iter().zip(want).all(|(x, y)| near(x, y));
                assert!(all, "{tier}, query {i}, heads {heads:?}");
                let want = lse.slice(s![.., heads.clone(), i..i + 1]);
                let all = one_lse.iter().zip(want).all(|(x, y)| near(x, y));
                assert!(all, "{tier}, query {i}, lse of heads {heads:?}");
                let (three, three_lse) = call(i..i + 1, heads, 3);
                assert!(same(three.slice(s![2..3, .., .., ..]), &one), "{tier}, query {i}");
                assert!(same(three_lse.slice(s![2..3, .., ..]), &one_lse), "{tier}, query {i}");
            }
        }
    }
}

/// Both types, and groups on both sides of half a register.
fn both(mask: &Mask<'_>, softcap: Option<f64>, scale: Option<f64>) {
    for group in [1, 3, 4, 8] {
        alone_and_together::<f32>(group, mask, &Sdpa { softcap, scale, ..Sdpa::default() });
        alone_and_together::<f64>(group, mask, &Sdpa { softcap, scale, ..Sdpa::default() });
    }
}

#[test]
fn all_keys() {
    both(&Mask::default(), None, None);
}

/// Some exponentials are 0 or too small to be normal numbers, in one query of a tile and not in another.
#[test]
fn scores_far_apart() {
    both(&Mask::default(), None, Some(20.0));
}

#[test]
fn causal_across_the_border_of_a_block() {
    let offset = Some(Offset::One(236)); // the queries stand at 236 to 275
    both(&Mask { causal: true, q_offset: offset, ..Mask::default() }, Some(3.0), None);
}

#[test]
fn a_window_that_starts_within_a_block() {
    let mask = Mask {
        window: Some((Some(290), Some(70))),
        q_offset: Some(Offset::One(500)),
        ..Mask::default()
    };
    both(&mask, None, None);
}

#[test]
fn hidden_values_that_are_infinite() {
    let keep = array![true].into_dyn(); // stands for one that is drawn
    both(&Mask { keep: Some(&keep), ..Mask::default() }, None, None);
}

/// One visible key is one block, all others are hidden: the output is its value, wherever it stands.
#[test]
fn one_visible_key_in_any_block() {
    let (k, v) = (signed::<f32>((1, 1, TK, 8), 5), signed::<f32>((1, 1, TK, 3), 6));
    for (rows, j) in [1, 20].into_iter().flat_map(|rows| [0, 255, 256, 511, 600].map(|j| (rows, j)))
    {
        let mut keep = ArrayD::from_elem(vec![1, TK], false);
        keep[[0, j]] = true;
        let mut poisoned = (k.clone(), v.clone());
        for x in 0..TK {
            if x != j {
                poisoned.0.slice_mut(s![.., .., x, ..]).fill(f32::NAN);
                poisoned.1.slice_mut(s![.., .., x, ..]).fill(f32::NAN);
            }
        }
        let q = signed::<f32>((1, 1, rows, 8), 7);
        let options =
            Sdpa { mask: Mask { keep: Some(&keep), ..Mask::default() }, ..Sdpa::default() };
        for tier in tiers() {
            let (output, _) =
                sdpa_simd(&q, &poisoned.0, &poisoned.1, &options, Some(tier)).unwrap();
            for row in output.rows() {
                assert_eq!(row, v.slice(s![0, 0, j, ..]), "{tier}, {rows} rows, key {j}");
            }
        }
    }
}

/// A sink of infinity before, and a score of infinity after, a block without any visible key.
#[test]
fn infinities_and_nan_in_any_block() {
    for (rows, at) in [1, 20].into_iter().flat_map(|rows| [0, 256, 600].map(|at| (rows, at))) {
        for bad in [f64::INFINITY, f64::NAN] {
            let q = Array4::<f64>::ones((1, 1, rows, 1));
            let (mut k, v) = (signed::<f64>((1, 1, TK, 1), 8), signed::<f64>((1, 1, TK, 3), 9));
            k[[0, 0, at, 0]] = bad;
            let sinks = array![f64::INFINITY];
            for tier in tiers() {
                let call =
                    |options: &Sdpa<'_, f64>| sdpa_simd(&q, &k, &v, options, Some(tier)).unwrap();
                let (output, lse) = call(&Sdpa::default());
                assert!(output.iter().chain(&lse).all(|x| x.is_nan()), "{tier}, {bad} at {at}");
                let keep = array![false].into_dyn();
                let mask = Mask { keep: Some(&keep), ..Mask::default() };
                let (output, lse) = call(&Sdpa { mask, ..Sdpa::default() });
                assert!(output.iter().all(|&x| x == 0.0), "{tier}");
                assert!(lse.iter().all(|&x| x == f64::NEG_INFINITY), "{tier}");
                let (output, _) = call(&Sdpa { mask, sinks: Some(&sinks), ..Sdpa::default() });
                assert!(output.iter().all(|&x| x == 0.0), "{tier}");
            }
        }
    }
}

/// Against the readable online softmax, by the bound that `properties.rs` derives, with the largest numbers that can
/// occur in it, in units of u: |q|, |k|, |v| <= 2 and D = 64 make scores of at most 32, each off by e = 66 · 32; sums
/// over 601 keys and rescalings by 4 · 601 + 1; the output by 2 · 2 · (2 · (2·e + 8) + 2 · 2405) < 60,000; the lse,
/// of at most 39, by 2 · (e + 2405 + 8 + 78), which is less.
#[test]
fn agrees_with_flash() {
    let (q, k, v) = (
        signed::<f64>((2, 8, 2, 64), 11),
        signed::<f64>((2, 2, TK, 64), 12),
        signed::<f64>((2, 2, TK, 40), 13),
    );
    let options = Sdpa::default();
    let (want, want_lse) = flash(&q, &k, &v, &options, Tiles::default()).unwrap();
    let near = |(x, y): (&f64, &f64)| (x - y).abs() <= 60_000.0 * f64::EPSILON / 2.0;
    for tier in tiers() {
        let (output, lse) = sdpa_simd(&q, &k, &v, &options, Some(tier)).unwrap();
        assert!(output.iter().zip(&want).all(near), "{tier}");
        assert!(lse.iter().zip(&want_lse).all(near), "{tier}");
    }
}
