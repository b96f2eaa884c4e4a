//! The exponential of a register of numbers <= 0.

use super::kernel::num;
use super::lanes::Lanes;
use super::vectors::Vectors;

/// What the exponential of one element type needs.
#[derive(Debug)]
pub struct Table<T: 'static> {
    /// exp of anything below rounds to 0.
    pub(super) lowest: T,
    /// exp of this, and of anything above, is a normal number.
    pub(super) normal: T,
    /// 1.5 · 2^(mantissa bits): a number added to it loses its fraction, rounded half to even.
    pub(super) round: T,
    log2_e: T,
    /// Of a polynomial near 2^x, the highest power first.
    polynomial: &'static [T],
}

/// |r| <= 1/2: at most 9.3e-8 off 2^r, relatively, 1.6 times half an ulp, and exactly 1 at 0. The least that a polynomial
/// of this degree can be off by is 9.2e-8 once it starts with 1 (least squares, weighed until the errors are even, each
/// coefficient rounded before the next ones were fitted).
pub(super) const F32: Table<f32> = Table {
    lowest: -104.0,
    normal: -87.0,
    round: 12_582_912.0,
    log2_e: std::f32::consts::LOG2_E,
    polynomial: &[0.001_325_596_2, 0.009_671_245, 0.055_507_686, 0.240_222_48, 0.693_146_94, 1.0],
};

/// ln2^k/k!. |r| <= 1/2: the first term left out is (ln2/2)^14/14! < 5e-18, a twentieth of half an ulp.
pub(super) const F64: Table<f64> = Table {
    lowest: -746.0,
    normal: -708.0,
    round: 6_755_399_441_055_744.0,
    log2_e: std::f64::consts::LOG2_E,
    polynomial: &[
        1.369_148_885_390_412_4e-12,
        2.567_843_599_348_819_6e-11,
        4.445_538_271_870_81e-10,
        7.054_911_620_801_121e-9,
        1.017_808_600_923_969_6e-7,
        1.321_548_679_014_430_5e-6,
        1.525_273_380_405_983_8e-5,
        0.000_154_035_303_933_816_06,
        0.001_333_355_814_642_844_3,
        0.009_618_129_107_628_477,
        0.055_504_108_664_821_576,
        0.240_226_506_959_100_7,
        std::f64::consts::LN_2,
        1.0,
    ],
};

/// exp(x) for x <= 0; NaN stays NaN. Within 2 ulp of exp of an x that is off by a quarter of its half ulp, or by five
/// quarters where products are not fused with sums (tested); a difference of two scores is off by one half ulp anyway.
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
        let (n, power) = parts(x.select_equal(lowest, zero, x));
        x.select_equal(lowest, zero, power.mul_power_of_two(n))
    }
}

/// The same bits, for no x below `normal`.
///
/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn exp_normal<V: Lanes>(x: V) -> V {
    // SAFETY: as for this function.
    unsafe {
        let (n, power) = parts(x);
        power.mul_normal_power_of_two(n)
    }
}

/// n and 2^r, for no x below `lowest`.
///
/// x·log2(e) = n + r with an integral n, so exp(x) = 2^n · 2^r, and 2^r is a short polynomial. A fused product leaves r
/// off by what log2(e) itself is rounded by, less than a quarter of half an ulp of x; ln 2 in two parts, as it is done where x is
/// exact (Cody and Waite, "Software Manual for the Elementary Functions", 1980, chapter 6), is an operation more.
///
/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
unsafe fn parts<V: Lanes>(x: V) -> (V, V) {
    let table = <V::Scalar as Vectors>::EXP;
    // SAFETY: as for this function.
    unsafe {
        let round = V::splat(table.round);
        let log2_e = V::splat(table.log2_e);
        let n = x.mul_add(log2_e, round).sub(round);
        let r = x.mul_add(log2_e, V::splat(num(-0.0)).sub(n)); // -0 - n is a sign, which costs nothing
        let mut sum = V::splat(table.polynomial[0]);
        for &coefficient in &table.polynomial[1..] {
            sum = sum.mul_add(r, V::splat(coefficient));
        }
        (n, sum)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tier::Tier;
    use super::*;
    use crate::float::Float;

    /// exp of each, in the registers of `V`; the other function gives the same bits where it may be asked.
    fn each<V: Lanes>(x: &[V::Scalar]) -> Vec<V::Scalar> {
        let mut out = x.to_vec();
        for lanes in out.chunks_exact_mut(V::COUNT) {
            // SAFETY: the tests ask only for tiers of this machine; a chunk has COUNT floats.
            unsafe {
                let x = V::load(lanes.as_ptr());
                let normal = lanes.iter().all(|&x| x >= <V::Scalar as Vectors>::EXP.normal);
                exp(x).store(lanes.as_mut_ptr());
                if normal {
                    let all = lanes.to_vec();
                    exp_normal(x).store(lanes.as_mut_ptr());
                    assert_eq!(all, lanes);
                }
            }
        }
        out
    }

    /// Every tier against `exact`, in units of the last place of the exact result.
    ///
    /// log2(e) is rounded by 0.23 (f32) or 0.13 (f64) of half an epsilon, and a product that is not fused by half an
    /// epsilon more: x, and so the logarithm of the result, is as if it were off by so much of itself.
    fn check<T: Float>(x: &[T], exact: impl Fn(T) -> f64, ulp: impl Fn(f64) -> f64) {
        let mut all = vec![(each::<T::Portable>(x), T::Portable::FUSED)];
        #[cfg(target_arch = "x86_64")]
        if Tier::Avx2.is_available() {
            all.push((each::<T::Avx2>(x), T::Avx2::FUSED));
        }
        #[cfg(target_arch = "x86_64")]
        if Tier::Avx512.is_available() {
            all.push((each::<T::Avx512>(x), T::Avx512::FUSED));
        }
        #[cfg(target_arch = "aarch64")]
        if Tier::Neon.is_available() {
            all.push((each::<T::Neon>(x), T::Neon::FUSED));
        }
        for (got, fused) in all {
            let halves = if fused { 0.25 } else { 1.25 };
            for (&x, got) in x.iter().zip(got) {
                let want = exact(x);
                let error = (got.to_f64().unwrap() - want).abs() / ulp(want);
                let off = halves * (x.abs() * T::epsilon()).to_f64().unwrap() / 2.0;
                let most = 2.0 + want * off / ulp(want);
                assert!(error <= most, "exp({x:e}): {got:e} is {error} ulp off, not {most}");
            }
        }
    }

    #[test]
    fn f32_down_to_the_last_denormal() {
        let x: Vec<f32> = (0..1 << 20).map(|i| -i as f32 * 1e-4).collect();
        let ulp = |y: f64| f64::from((y as f32).next_up() - y as f32);
        check(&x, |x| f64::from(x).exp(), ulp);
    }

    #[test]
    fn f64_down_to_the_last_denormal() {
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
        #[cfg(target_arch = "aarch64")]
        if Tier::Neon.is_available() {
            assert!(each::<<f64 as Vectors>::Neon>(&x).iter().zip(&want).all(same));
        }
    }
}
