//! Registers of 256 bits. Needs AVX2 and FMA.

#![allow(clippy::needless_range_loop, reason = "constant index loops unroll into registers")]

use std::arch::x86_64::*;

use super::exp;
use super::lanes::{Lanes, Work};

/// 8 floats.
#[derive(Debug, Clone, Copy)]
pub struct F32x8(pub(super) __m256);

/// 4 floats.
#[derive(Debug, Clone, Copy)]
pub struct F64x4(pub(super) __m256d);

/// One implementation for both element types, which differ in the names of the instructions.
macro_rules! avx2 {
    (
        $name:ident, $scalar:ty, $count:literal, $round:expr, $set1:ident, $load:ident, $store:ident,
        $add:ident, $sub:ident, $mul:ident, $div:ident, $fmadd:ident, $max:ident, $min:ident, $cmp:ident,
        $blend:ident, $mask:ident, $as_integer:ident, $as_float:ident, $shift_left:ident
    ) => {
        impl Lanes for $name {
            type Scalar = $scalar;
            const COUNT: usize = $count;
            const BLOCK: usize = 2;
            const FUSED: bool = true;

            #[inline(never)]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn apart<W: Work>(work: W) -> W::Output {
                // SAFETY: the caller's; this function has the instruction set.
                unsafe { work.run() }
            }

            #[inline(always)]
            unsafe fn splat(x: $scalar) -> Self {
                // SAFETY: the caller vouches for AVX2.
                Self(unsafe { $set1(x) })
            }

            #[inline(always)]
            unsafe fn load(from: *const $scalar) -> Self {
                // SAFETY: the caller vouches for AVX2 and for COUNT floats; unaligned is fine.
                Self(unsafe { $load(from) })
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut $scalar) {
                // SAFETY: the caller vouches for COUNT floats; `self` vouches for AVX2.
                unsafe { $store(to, self.0) }
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                // SAFETY: `self` vouches for AVX2.
                Self(unsafe { $add(self.0, other.0) })
            }

            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                // SAFETY: `self` vouches for AVX2.
                Self(unsafe { $sub(self.0, other.0) })
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                // SAFETY: `self` vouches for AVX2.
                Self(unsafe { $mul(self.0, other.0) })
            }

            #[inline(always)]
            fn div(self, other: Self) -> Self {
                // SAFETY: `self` vouches for AVX2.
                Self(unsafe { $div(self.0, other.0) })
            }

            #[inline(always)]
            fn mul_add(self, factor: Self, term: Self) -> Self {
                // SAFETY: `self` vouches for AVX2 and FMA.
                Self(unsafe { $fmadd(self.0, factor.0, term.0) })
            }

            /// The instruction returns its second operand where either is NaN.
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                // SAFETY: `self` vouches for AVX2.
                Self(unsafe { $max(self.0, other.0) })
            }

            /// As for `max`.
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                // SAFETY: `self` vouches for AVX2.
                Self(unsafe { $min(self.0, other.0) })
            }

            #[inline(always)]
            fn any_equal(self, other: Self) -> bool {
                // SAFETY: `self` vouches for AVX2.
                unsafe { $mask($cmp::<_CMP_EQ_OQ>(self.0, other.0)) != 0 }
            }

            #[inline(always)]
            fn select_equal(self, value: Self, then: Self, otherwise: Self) -> Self {
                // SAFETY: `self` vouches for AVX2.
                Self(unsafe { $blend(otherwise.0, then.0, $cmp::<_CMP_EQ_OQ>(self.0, value.0)) })
            }

            /// The instruction looks at the sign bit alone.
            #[inline(always)]
            fn select_negative(self, then: Self, otherwise: Self) -> Self {
                // SAFETY: `self` vouches for AVX2.
                Self(unsafe { $blend(otherwise.0, then.0, self.0) })
            }

            /// In two factors, since 2^n itself may be below the smallest normal number.
            #[inline(always)]
            fn mul_power_of_two(self, n: Self) -> Self {
                // SAFETY: `self` vouches for AVX2.
                let (round, half) = unsafe { (Self::splat($round), Self::splat(0.5)) };
                let half = n.mul_add(half, round).sub(round);
                let (first, second) = (half.power_of_two(), n.sub(half).power_of_two());
                // SAFETY: `self` vouches for AVX2.
                Self(unsafe { $mul($mul(self.0, first.0), second.0) })
            }

            #[inline(always)]
            fn mul_normal_power_of_two(self, n: Self) -> Self {
                self.mul(n.power_of_two())
            }

            #[inline(always)]
            unsafe fn transpose(
                from: *const $scalar,
                stride: usize,
                to: *mut $scalar,
                to_stride: usize,
            ) {
                // SAFETY: the caller vouches for AVX2, the rows and the columns.
                unsafe {
                    // In plain loops: a closure is compiled without the instruction set, and called.
                    let mut rows = [$load(from); $count];
                    for row in 1..$count {
                        rows[row] = $load(from.add(row * stride));
                    }
                    let columns = $name::columns(rows);
                    for column in 0..$count {
                        $store(to.add(column * to_stride), columns[column]);
                    }
                }
            }
        }

        impl $name {
            /// 2^self where that is a normal number: `$round + self + bias` has self + bias in its
            /// lowest bits, and the shift makes them the exponent.
            #[inline(always)]
            fn power_of_two(self) -> Self {
                const BIAS: $scalar = (<$scalar>::MAX_EXP - 1) as $scalar;
                const FRACTION: i32 = <$scalar>::MANTISSA_DIGITS as i32 - 1;
                // SAFETY: `self` vouches for AVX2.
                Self(unsafe {
                    let n = $add(self.0, $set1($round + BIAS));
                    $as_float($shift_left::<FRACTION>($as_integer(n)))
                })
            }
        }
    };
}

avx2!(
    F32x8,
    f32,
    8,
    exp::F32.round,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_add_ps,
    _mm256_sub_ps,
    _mm256_mul_ps,
    _mm256_div_ps,
    _mm256_fmadd_ps,
    _mm256_max_ps,
    _mm256_min_ps,
    _mm256_cmp_ps,
    _mm256_blendv_ps,
    _mm256_movemask_ps,
    _mm256_castps_si256,
    _mm256_castsi256_ps,
    _mm256_slli_epi32
);
avx2!(
    F64x4,
    f64,
    4,
    exp::F64.round,
    _mm256_set1_pd,
    _mm256_loadu_pd,
    _mm256_storeu_pd,
    _mm256_add_pd,
    _mm256_sub_pd,
    _mm256_mul_pd,
    _mm256_div_pd,
    _mm256_fmadd_pd,
    _mm256_max_pd,
    _mm256_min_pd,
    _mm256_cmp_pd,
    _mm256_blendv_pd,
    _mm256_movemask_pd,
    _mm256_castpd_si256,
    _mm256_castsi256_pd,
    _mm256_slli_epi64
);

impl F32x8 {
    /// Pairs of rows, then fours, are turned within each half of the registers; then the halves.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[inline(always)]
    unsafe fn columns(rows: [__m256; 8]) -> [__m256; 8] {
        let mut columns = rows;
        // SAFETY: the caller vouches for AVX2.
        unsafe {
            let mut fours = rows; // fours[4·g + c]: rows 4·g to 4·g + 3, half l of columns 4·l + c
            for g in (0..8).step_by(4) {
                let (a, b) = (rows[g], rows[g + 1]);
                let (c, d) = (rows[g + 2], rows[g + 3]);
                let low = _mm256_castps_pd(_mm256_unpacklo_ps(a, b));
                let high = _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
                let low_2 = _mm256_castps_pd(_mm256_unpacklo_ps(c, d));
                let high_2 = _mm256_castps_pd(_mm256_unpackhi_ps(c, d));
                fours[g] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, low_2));
                fours[g + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, low_2));
                fours[g + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(high, high_2));
                fours[g + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(high, high_2));
            }
            for c in 0..4 {
                columns[c] = _mm256_permute2f128_ps::<0x20>(fours[c], fours[c + 4]);
                columns[c + 4] = _mm256_permute2f128_ps::<0x31>(fours[c], fours[c + 4]);
            }
        }
        columns
    }
}

impl F64x4 {
    /// Pairs of rows are turned within each half of the registers; then the halves.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[inline(always)]
    unsafe fn columns(rows: [__m256d; 4]) -> [__m256d; 4] {
        // SAFETY: the caller vouches for AVX2.
        unsafe {
            let low = _mm256_unpacklo_pd(rows[0], rows[1]);
            let high = _mm256_unpackhi_pd(rows[0], rows[1]);
            let low_2 = _mm256_unpacklo_pd(rows[2], rows[3]);
            let high_2 = _mm256_unpackhi_pd(rows[2], rows[3]);
            [
                _mm256_permute2f128_pd::<0x20>(low, low_2),
                _mm256_permute2f128_pd::<0x20>(high, high_2),
                _mm256_permute2f128_pd::<0x31>(low, low_2),
                _mm256_permute2f128_pd::<0x31>(high, high_2),
            ]
        }
    }
}
