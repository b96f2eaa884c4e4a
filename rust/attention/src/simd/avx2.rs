//! Registers of 256 bits. Needs AVX2 and FMA.

#![allow(clippy::needless_range_loop, reason = "constant index loops unroll into registers")]

use std::arch::x86_64::*;

use super::exp;
use super::instructions::{instructions, multiply_by_powers, power_of_two};
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
            instructions!(
                $scalar,
                $count,
                "avx2,fma,f16c",
                $set1,
                $load,
                $store,
                $add,
                $sub,
                $mul,
                $div
            );

            const BLOCK: usize = 2;

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

            multiply_by_powers!($round);
        }

        impl $name {
            power_of_two!($scalar, $round, $set1, $add, $as_integer, $as_float, $shift_left);
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
