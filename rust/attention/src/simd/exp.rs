//! The exponential of a register of numbers <= 0.

use super::kernel::num;
use super::lanes::Lanes;
use super::vectors::Vectors;

/// What the exponential of one element type needs.
#[derive(Debug)]
pub struct Table<T: 'static> {
    /// exp of anything below rounds to 0.
    pub(super) lowest: T,
    /// 1.5 · 2^(mantissa bits): a number added to it loses its fraction, rounded half to even.
    pub(super) round: T,
    log2_e: T,
    /// ln 2 in two parts; the first has so few bits that its product with n is exact.
    ln2_high: T,
    ln2_low: T,
    /// Of a polynomial near exp, the highest power first.
    polynomial: &'static [T],
}

/// |r| <= ln2/2: at most 4.3e-9 off exp, relatively, a fourteenth of half an ulp. The least that a polynomial of this
/// degree can be off by is 3.1e-9 once it starts with 1 + r, and two terms of a Taylor sum more would be needed for it
/// (Remez's algorithm, each coefficient rounded before the next ones were fitted).
pub(super) const F32: Table<f32> = Table {
    lowest: -104.0,
    round: 12_582_912.0,
    log2_e: std::f32::consts::LOG2_E,
    ln2_high: 355.0 / 512.0,
    ln2_low: -2.121_944_4e-4,
    polynomial: &[0.001_383_809, 0.008_368_997, 0.041_668_19, 0.166_665_21, 0.499_999_94, 1.0, 1.0],
};

/// 1/k!. |r| <= ln2/2: the first term left out is r^14/14! < 5e-18, a twentieth of half an ulp.
pub(super) const F64: Table<f64> = Table {
    lowest: -746.0,
    round: 6_755_399_441_055_744.0,
    log2_e: std::f64::consts::LOG2_E,
    ln2_high: 0.693_147_180_369_123_8,
    ln2_low: 1.908_214_929_270_587_7e-10,
    polynomial: &[
        1.0 / 6_227_020_800.0,
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ],
};

/// exp(x) for x <= 0, within 2 ulp (tested); NaN stays NaN.
///
/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn exp<V: Lanes>(x: V) -> V {
    // SAFETY: as for this function.
    unsafe {
        let (lowest, zero) = (V::splat(<V::Scalar as Vectors>::EXP.lowest), V::splat(num(0.0)));
        let x = lowest.max(x); // in this order a NaN passes
        // 0 is written, not computed: processors take a hundred times as long for a result that small.
        x.select_equal(lowest, zero, exp_near(x.select_equal(lowest, zero, x)))
    }
}

/// The same bits, for no x below `lowest`.
///
/// x = n·ln2 + r with an integral n, so exp(x) = 2^n · exp(r), and exp(r) is a short polynomial.
/// Source: Cody and Waite, "Software Manual for the Elementary Functions", 1980, chapter 6.
///
/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn exp_near<V: Lanes>(x: V) -> V {
    let table = <V::Scalar as Vectors>::EXP;
    // SAFETY: as for this function.
    unsafe {
        let round = V::splat(table.round);
        let n = x.mul_add(V::splat(table.log2_e), round).sub(round);
        let r = n.mul_add(V::splat(-table.ln2_high), x);
        let r = n.mul_add(V::splat(-table.ln2_low), r);
        let mut sum = V::splat(table.polynomial[0]);
        for &coefficient in &table.polynomial[1..] {
            sum = sum.mul_add(r, V::splat(coefficient));
        }
        sum.mul_power_of_two(n)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tier::Tier;
    use super::*;
    use crate::float::Float;

    /// exp of each, in the registers of `V`.
    fn each<V: Lanes>(x: &[V::Scalar]) -> Vec<V::Scalar> {
        let mut out = x.to_vec();
        for lanes in out.chunks_exact_mut(V::COUNT) {
            // SAFETY: the tests ask only for tiers of this machine; a chunk has COUNT floats.
            unsafe { exp(V::load(lanes.as_ptr())).store(lanes.as_mut_ptr()) };
        }
        out
    }

    /// Every tier against `exact`, in units of the last place of the exact result.
    fn check<T: Float>(x: &[T], exact: impl Fn(T) -> f64, ulp: impl Fn(f64) -> f64) {
        let mut all = vec![each::<T::Portable>(x)];
        #[cfg(target_arch = "x86_64")]
        if Tier::Avx2.is_available() {
            all.push(each::<T::Avx2>(x));
        }
        #[cfg(target_arch = "x86_64")]
        if Tier::Avx512.is_available() {
            all.push(each::<T::Avx512>(x));
        }
        for got in all {
            for (&x, got) in x.iter().zip(got) {
                let want = exact(x);
                let error = (got.to_f64().unwrap() - want).abs() / ulp(want);
                assert!(error <= 2.0, "exp({x:e}): {got:e} is {error} ulp off");
            }
        }
    }

    #[test]
    fn f32_within_two_ulp_down_to_the_last_denormal() {
        let x: Vec<f32> = (0..1 << 20).map(|i| -i as f32 * 1e-4).collect();
        let ulp = |y: f64| f64::from((y as f32).next_up() - y as f32);
        check(&x, |x| f64::from(x).exp(), ulp);
    }

    #[test]
    fn f64_within_two_ulp_down_to_the_last_denormal() {
        let x: Vec<f64> = (0..1 << 18).map(|i| f64::from(-i) * 0.002_85).collect();
        check(&x, f64::exp, |y| y.next_up() - y);
    }

    #[test]
    fn special_values() {
        let x = [0.0, -0.0, f64::NEG_INFINITY, -1e300, f64::NAN, -746.0, -1e-300, -5e-324];
        let want = [1.0, 1.0, 0.0, 0.0, f64::NAN, 0.0, 1.0, 1.0];
        let same = |(x, y): (&f64, &f64)| x == y || (x.is_nan() && y.is_nan());
        assert!(each::<<f64 as Vectors>::Portable>(&x).iter().zip(&want).all(same));
        #[cfg(target_arch = "x86_64")]
        if Tier::Avx2.is_available() {
            assert!(each::<<f64 as Vectors>::Avx2>(&x).iter().zip(&want).all(same));
        }
        #[cfg(target_arch = "x86_64")]
        if Tier::Avx512.is_available() {
            assert!(each::<<f64 as Vectors>::Avx512>(&x).iter().zip(&want).all(same));
        }
    }
}
