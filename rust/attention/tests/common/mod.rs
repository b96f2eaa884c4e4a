//! What the tests share: the two forms of a case that can be checked by hand, and all rungs.

use ndarray::{Array3, Array4};
use rosetta_attention::{
    Append, Cache, Float, Mask, Sdpa, Tier, Tiles, blocked, flash, sdpa_simd, sdpa_steps, split_kv,
};

/// The tiers of this machine, the portable one always among them.
pub fn tiers() -> impl Iterator<Item = Tier> {
    Tier::ALL.into_iter().filter(|tier| tier.is_available())
}

/// (1, 1, T, n) from its rows.
pub fn rows<T: Float, const N: usize>(rows: &[[f64; N]]) -> Array4<T> {
    Array4::from_shape_fn((1, 1, rows.len(), N), |(_, _, t, n)| T::from_f64(rows[t][n]))
}

/// (1, 1, T, 1) from its values.
pub fn column<T: Float>(values: &[f64]) -> Array4<T> {
    Array4::from_shape_fn((1, 1, values.len(), 1), |(_, _, t, _)| T::from_f64(values[t]))
}

/// Output and lse of every rung, named.
pub fn rungs<T: Float>(
    q: &Array4<T>,
    k: &Array4<T>,
    v: &Array4<T>,
    options: &Sdpa<'_, T>,
) -> Vec<(String, Array4<T>, Array3<T>)> {
    let naive = sdpa_steps(q, k, v, options).unwrap();
    let mut all = vec![("naive".to_string(), naive.output, naive.lse)];
    let whole_and_small = [Tiles::default(), Tiles { block_q: 2, block_k: 3 }];
    for (name, tiles) in ["flash", "flash in tiles"].into_iter().zip(whole_and_small) {
        let (output, lse) = flash(q, k, v, options, tiles).unwrap();
        all.push((name.to_string(), output, lse));
    }
    for splits in [1, 4] {
        let (output, lse) = split_kv(q, k, v, options, splits).unwrap();
        all.push((format!("split into {splits}"), output, lse));
    }
    if options.dropout.is_some() {
        return all; // which the others do not offer
    }
    let (output, lse) = blocked(q, k, v, options).unwrap();
    all.push(("blocked".to_string(), output, lse));
    for tier in tiers() {
        let (output, lse) = sdpa_simd(q, k, v, options, Some(tier)).unwrap();
        all.push((tier.to_string(), output, lse));
    }
    all
}

/// Every rung gives these outputs (and lse where it is given), NaN where NaN is expected.
pub fn expect<T: Float>(
    q: &Array4<T>,
    k: &Array4<T>,
    v: &Array4<T>,
    options: &Sdpa<'_, T>,
    output: &[f64],
    lse: Option<&[f64]>,
) {
    for (rung, got, got_lse) in rungs(q, k, v, options) {
        close(&rung, got.iter(), output);
        if let Some(lse) = lse {
            close(&format!("{rung} lse"), got_lse.iter(), lse);
        }
    }
}

fn close<'a, T: Float>(what: &str, got: impl Iterator<Item = &'a T>, want: &[f64]) {
    let got: Vec<f64> = got.map(|x| x.to_f64().unwrap()).collect();
    assert_eq!(got.len(), want.len(), "{what}");
    // Of a few keys whose values have one sign, so that all errors are relative, in halves of epsilon: scores off by at
    // most 4, exp by 4, a sum of weights and one of products by 6 each, a quotient by 1; and again in a merge of parts.
    let room = T::epsilon().to_f64().unwrap() * 16.0;
    for (&got, &want) in got.iter().zip(want) {
        let same = got == want || (got.is_nan() && want.is_nan());
        assert!(same || (got - want).abs() <= room * want.abs(), "{what}: got {got}, want {want}");
    }
}

/// The default options, but causal.
pub fn causal<'a, T>() -> Sdpa<'a, T> {
    Sdpa { mask: Mask { causal: true, ..Mask::default() }, ..Sdpa::default() }
}

/// One row and head of these values, whose keys are 0, goes into a cache.
pub fn push(cache: &mut dyn Cache<f64>, values: &[f64]) {
    let k = Array4::zeros((1, 1, values.len(), 1));
    cache.append(&k, &column(values), &Append::default()).unwrap();
}

/// As many queries of 0 as there are means give these outputs.
pub fn expect_means(cache: &dyn Cache<f64>, options: &Sdpa<'_, f64>, means: &[f64]) {
    let got = cache.attend(&Array4::zeros((1, 1, means.len(), 1)), options).unwrap();
    // n values of one sign, weights that are 1/n after one rounding: a product, and at most n sums, of up to 40.
    let near = got.iter().zip(means).all(|(x, y)| (x - y).abs() <= 21.0 * f64::EPSILON * y.abs());
    assert!(near && got.len() == means.len(), "{got} instead of {means:?}");
}

/// Whether two arrays have the same elements, the signs of zeros and the places of NaN included.
pub fn same<'a, T: Float>(
    a: impl IntoIterator<Item = &'a T>,
    b: impl IntoIterator<Item = &'a T>,
) -> bool {
    let (a, b): (Vec<_>, Vec<_>) = (a.into_iter().collect(), b.into_iter().collect());
    let equal = |(a, b): (&&T, &&T)| {
        (a == b && a.is_sign_negative() == b.is_sign_negative()) || (a.is_nan() && b.is_nan())
    };
    a.len() == b.len() && a.iter().zip(&b).all(equal)
}

/// Signed values of a size around 1 that no two indices share.
pub fn signed<T: Float>(dim: (usize, usize, usize, usize), seed: u64) -> Array4<T> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    Array4::from_shape_simple_fn(dim, || {
        // A multiplicative generator; its high bits are good enough to tell elements apart.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        T::from_f64((state >> 40) as f64 / f64::from(1 << 22) - 2.0)
    })
}
