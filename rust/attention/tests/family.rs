//! The relatives of sdpa say the same as sdpa itself, whatever the sizes.

use crate::common::{rungs, same, signed, tiers};
use half::{bf16, f16};
use ndarray::{Array1, Array3, Array4, Axis, Ix2, array, s};
use proptest::prelude::*;
use rosetta_attention::{
    Dropout, Mask, Offset, OutputLse, Rope, Sdpa, Stored, Tiles, Varlen, alibi_steps, cast,
    dropout, flash, merge, narrow, relative_bias, rope, sdpa_simd, sdpa_steps, split_kv, varlen,
    varlen_simd, widen,
};

/// (N, H, n) as a batch of one, heads before positions.
fn as_batch(x: &Array3<f64>, rows: std::ops::Range<usize>) -> Array4<f64> {
    x.slice(s![rows, .., ..]).permuted_axes([1, 0, 2]).insert_axis(Axis(0)).to_owned()
}

#[test]
fn the_bias_of_alibi_goes_into_sdpa() {
    let (q, k, v) =
        (signed::<f64>((1, 3, 4, 5), 1), signed((1, 3, 6, 5), 2), signed((1, 3, 6, 2), 3));
    let plain = sdpa_steps(&q, &k, &v, &Sdpa::default()).unwrap();
    let steps = alibi_steps(&plain.scores, 2).unwrap();
    let bias = steps.bias.into_dyn();
    let biased = sdpa_steps(&q, &k, &v, &Sdpa { bias: Some(&bias), ..Sdpa::default() }).unwrap();
    assert!(same(&biased.biased, &steps.output));
    assert_eq!(bias[[2, 0, 5]], -0.25 * 3.0); // of three heads the last has the first slope of four
}

#[test]
fn a_learned_bias_is_looked_up_by_distance() {
    let table = Array1::range(0.0, 8.0, 1.0).into_shape_with_order((8, 1)).unwrap();
    let bias = relative_bias(&Array4::<f64>::zeros((1, 1, 3, 3)), &table, &Default::default());
    // 4 buckets for each direction, those for keys after the query are the last 4
    assert_eq!(bias.unwrap(), array![[[[0.0, 5.0, 6.0], [1.0, 0.0, 5.0], [2.0, 1.0, 0.0]]]]);
}

#[test]
fn all_dropped_in_every_rung() {
    let x = signed::<f32>((1, 2, 3, 4), 5);
    let options = Sdpa { dropout: Some(Dropout { p: 1.0, seed: 3 }), ..Sdpa::default() };
    for (rung, output, lse) in rungs(&x, &x, &x, &options) {
        assert_eq!(output, Array4::<f32>::zeros(x.dim()), "{rung}");
        assert!(lse.iter().all(|lse| lse.is_finite()), "{rung}");
    }
}

#[test]
fn faults_of_tiles_and_splits() {
    let x = Array4::<f32>::zeros((1, 1, 1, 1));
    for tiles in
        [Tiles { block_q: 0, ..Tiles::default() }, Tiles { block_k: 0, ..Tiles::default() }]
    {
        let error = flash(&x, &x, &x, &Sdpa::default(), tiles).unwrap_err();
        assert_eq!(error.code(), "invalid_config");
    }
    let error = split_kv(&x, &x, &x, &Sdpa::default(), 0).unwrap_err();
    assert_eq!(error.to_string(), "split_kv: splits: expected an integer >= 1, got 0");
    let far = Tiles { block_q: usize::MAX, block_k: usize::MAX };
    assert!(flash(&x, &x, &x, &Sdpa::default(), far).is_ok());
    assert!(split_kv(&x, &x, &x, &Sdpa::default(), usize::MAX).is_ok());
}

/// f64 straight to a half type is the nearer of the two neighbours that a walk over all codes finds.
fn nearest_code<H: Stored<Compute = f32>>(x: f64, code: impl Fn(u16) -> H) -> bool {
    let got = f64::from(H::nearest(x).widen());
    let distance = (got - x).abs();
    (0..=u16::MAX).all(|n| {
        let other = f64::from(code(n).widen());
        !other.is_finite() || (other - x).abs() >= distance
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn packed_sequences_are_calls_of_their_own(
        lengths in proptest::collection::vec((0..5_usize, 0..9_usize), 0..5),
        (causal, offset, left) in (any::<bool>(), -3..6_i64, proptest::option::of(0..4_usize)),
    ) {
        let cu = |pick: fn(&(usize, usize)) -> usize| {
            let mut total = 0;
            let ends = lengths.iter().map(|pair| { total += pick(pair) as i64; total });
            [0].into_iter().chain(ends.collect::<Vec<_>>()).collect::<Array1<i64>>()
        };
        let (cu_q, cu_k) = (cu(|pair| pair.0), cu(|pair| pair.1));
        let rows = |cu: &Array1<i64>| cu[cu.len() - 1] as usize;
        let packed = |n, h, d, seed| signed::<f64>((1, n, h, d), seed).remove_axis(Axis(0));
        let (q, k, v) = (packed(rows(&cu_q), 4, 3, 1), packed(rows(&cu_k), 2, 3, 2), packed(rows(&cu_k), 2, 5, 3));
        let window = Some((left, None));
        let offsets = Array1::from_shape_fn(lengths.len(), |s| offset + s as i64);
        let q_offset = Some(Offset::PerRow(&offsets));
        let options = Varlen { causal, q_offset, window, ..Varlen::default() };
        let (output, lse) = varlen(&q, &k, &v, &cu_q, &cu_k, &options).unwrap();
        let fast: Vec<_> = tiers()
            .map(|tier| (tier, varlen_simd(&q, &k, &v, &cu_q, &cu_k, &options, Some(tier)).unwrap()))
            .collect();
        for s in 0..lengths.len() {
            let own = cu_q[s] as usize..cu_q[s + 1] as usize;
            let keys = cu_k[s] as usize..cu_k[s + 1] as usize;
            let q_offset = Some(Offset::One(offsets[s]));
            let mask = Mask { causal, window, q_offset, ..Mask::default() };
            let (q, k, v) = (as_batch(&q, own.clone()), as_batch(&k, keys.clone()), as_batch(&v, keys));
            let options = Sdpa { mask, ..Sdpa::default() };
            let alone = sdpa_steps(&q, &k, &v, &options).unwrap();
            let rows = alone.output.index_axis(Axis(0), 0).permuted_axes([1, 0, 2]);
            prop_assert!(same(output.slice(s![own.clone(), .., ..]), rows));
            prop_assert!(same(lse.slice(s![own.clone(), ..]), alone.lse.index_axis(Axis(0), 0).t()));
            for (tier, (output, lse)) in &fast {
                let alone = sdpa_simd(&q, &k, &v, &options, Some(*tier)).unwrap();
                let rows = alone.0.index_axis(Axis(0), 0).permuted_axes([1, 0, 2]);
                prop_assert!(same(output.slice(s![own.clone(), .., ..]), rows));
                prop_assert!(same(lse.slice(s![own.clone(), ..]), alone.1.index_axis(Axis(0), 0).t()));
            }
        }
    }

    #[test]
    fn merging_does_not_depend_on_the_order(seed in 0..10_000_u64, empty in 0..4_usize) {
        let part = |n: u64| {
            let lse = signed::<f64>((1, 1, 1, 3), seed + n).into_shape_with_order(3).unwrap();
            let lse = if n as usize == empty { Array1::from_elem(3, f64::NEG_INFINITY) } else { lse * 9.0 };
            (signed::<f64>((1, 1, 3, 4), seed + 10 + n).into_shape_with_order((3, 4)).unwrap(), lse)
        };
        let join = |a: &OutputLse<f64, Ix2>, b: &OutputLse<f64, Ix2>| merge(&a.0, &a.1, &b.0, &b.1).unwrap();
        let (a, b, c) = (part(0), part(1), part(2));
        let (left, right) = (join(&join(&a, &b), &c), join(&a, &join(&c, &b)));
        // An lse is below 18 + ln 3 < 20: two logarithms and sums round it by 20 units of 2^-53 each, on both sides.
        // Those errors are the relative ones of the weights in a mean of values up to 2.
        let room = 2.0 * (4.0 * 20.0 + 16.0) * f64::EPSILON / 2.0;
        let near = |(x, y): (&f64, &f64)| x == y || (x - y).abs() <= 2.0 * room;
        prop_assert!(left.0.iter().zip(&right.0).all(near));
        prop_assert!(left.1.iter().zip(&right.1).all(near));
    }

    #[test]
    fn turning_keeps_lengths_and_distances(
        (seed, p, step) in (0..10_000_u64, -100..100_i64, -50..50_i64),
        (pairs, rest, interleaved) in (1..5_usize, 0..3_usize, any::<bool>()),
    ) {
        let dim = (2, 3, 4, 2 * pairs + rest);
        let (x, y) = (signed::<f64>(dim, seed), signed::<f64>(dim, seed + 1));
        let turned = |x: &Array4<f64>, offset| {
            let options = Rope { interleaved, rotary_dim: Some(2 * pairs), offset, ..Rope::default() };
            rope(x, &options, None, None).unwrap()
        };
        let products = |x: &Array4<f64>, y: &Array4<f64>| (x * y).sum_axis(Axis(3));
        // In units of 2^-53, of at most 4 pairs up to sqrt(8) long: angles that are not whole are below 16, so off by 8,
        // sines, products and sums by 12, in two products of two vectors; and 10 sums of numbers up to 4.
        let room = (4.0 * 8.0 * 2.0 * (2.0 * 8.0 + 12.0) + 2.0 * 10.0 * 32.0) * 2.0_f64.powi(-53);
        let close = |a: Array3<f64>, b: Array3<f64>| a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= room);
        prop_assert!(close(products(&turned(&x, p), &turned(&x, p)), products(&x, &x)));
        let here = products(&turned(&x, 0), &turned(&y, step));
        prop_assert!(close(products(&turned(&x, p), &turned(&y, p + step)), here));
        let tail = s![.., .., .., 2 * pairs..];
        prop_assert!(same(turned(&x, p).slice(tail), x.slice(tail)));
    }

    #[test]
    fn doubles_become_the_nearest_half(mantissa in -1.0..1.0_f64, exponent in -30..16_i32) {
        let x = mantissa * 2.0_f64.powi(exponent);
        prop_assert!(nearest_code(x, f16::from_bits));
        prop_assert!(nearest_code(x, bf16::from_bits));
        let wide: Array1<f64> = cast(&array![f16::nearest(x)]);
        let halves = narrow::<f16, _>(widen(array![f16::nearest(x)].view()).into_owned());
        prop_assert_eq!(cast::<f64, f16, _>(&wide), halves);
    }

    #[test]
    fn dropout_keeps_its_share(p in 0.0..1.0_f64, seed in 0..1_u64 << 53) {
        let x = Array1::<f64>::ones(4000);
        let kept = dropout(&x, &Dropout { p, seed }, seed).unwrap();
        let share = kept.iter().filter(|&&x| x != 0.0).count() as f64 / 4000.0;
        prop_assert!((share - (1.0 - p)).abs() < 0.05); // more than six standard deviations
    }
}
