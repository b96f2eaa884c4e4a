//! Registers of 512 bits. Needs AVX-512F alone.

#![allow(clippy::needless_range_loop, reason = "constant index loops unroll into registers")]

use std::arch::x86_64::*;

use super::instructions::instructions;
use super::lanes::{Lanes, Work};

/// 16 floats.
#[derive(Debug, Clone, Copy)]
pub struct F32x16(pub(super) __m512);

/// 8 floats.
#[derive(Debug, Clone, Copy)]
pub struct F64x8(pub(super) __m512d);

/// One implementation for both element types, which differ in the names of the instructions.
macro_rules! avx512 {
    (
        $name:ident, $scalar:ty, $count:literal, $set1:ident, $load:ident, $store:ident, $add:ident,
        $sub:ident, $mul:ident, $div:ident, $fmadd:ident, $max:ident, $min:ident, $cmp:ident, $blend:ident,
        $as_integer:ident, $cmplt_integer:ident, $scalef:ident
    ) => {
        impl Lanes for $name {
            instructions!($scalar, $count, "avx512f", $set1, $load, $store, $add, $sub, $mul, $div);

            const BLOCK: usize = 4;

            #[inline(always)]
            fn mul_add(self, factor: Self, term: Self) -> Self {
                // SAFETY: `self` vouches for AVX-512F.
                Self(unsafe { $fmadd(self.0, factor.0, term.0) })
            }

            /// The instruction returns its second operand where either is NaN.
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                // SAFETY: `self` vouches for AVX-512F.
                Self(unsafe { $max(self.0, other.0) })
            }

            /// As for `max`.
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                // SAFETY: `self` vouches for AVX-512F.
                Self(unsafe { $min(self.0, other.0) })
            }

            #[inline(always)]
            fn any_equal(self, other: Self) -> bool {
                // SAFETY: `self` vouches for AVX-512F.
                unsafe { $cmp::<_CMP_EQ_OQ>(self.0, other.0) != 0 }
            }

            #[inline(always)]
            fn select_equal(self, value: Self, then: Self, otherwise: Self) -> Self {
                // SAFETY: `self` vouches for AVX-512F.
                Self(unsafe {
                    let equal = $cmp::<_CMP_EQ_OQ>(self.0, value.0);
                    $blend(equal, otherwise.0, then.0)
                })
            }

            /// An integer with the sign bit of the float is negative.
            #[inline(always)]
            fn select_negative(self, then: Self, otherwise: Self) -> Self {
                // SAFETY: `self` vouches for AVX-512F.
                Self(unsafe {
                    let negative = $cmplt_integer($as_integer(self.0), _mm512_setzero_si512());
                    $blend(negative, otherwise.0, then.0)
                })
            }

            #[inline(always)]
            fn mul_power_of_two(self, n: Self) -> Self {
                // SAFETY: `self` vouches for AVX-512F.
                Self(unsafe { $scalef(self.0, n.0) })
            }

            /// No instruction is shorter.
            #[inline(always)]
            fn mul_normal_power_of_two(self, n: Self) -> Self {
                self.mul_power_of_two(n)
            }
        }
    };
}

avx512!(
    F32x16,
    f32,
    16,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_add_ps,
    _mm512_sub_ps,
    _mm512_mul_ps,
    _mm512_div_ps,
    _mm512_fmadd_ps,
    _mm512_max_ps,
    _mm512_min_ps,
    _mm512_cmp_ps_mask,
    _mm512_mask_blend_ps,
    _mm512_castps_si512,
    _mm512_cmplt_epi32_mask,
    _mm512_scalef_ps
);
avx512!(
    F64x8,
    f64,
    8,
    _mm512_set1_pd,
    _mm512_loadu_pd,
    _mm512_storeu_pd,
    _mm512_add_pd,
    _mm512_sub_pd,
    _mm512_mul_pd,
    _mm512_div_pd,
    _mm512_fmadd_pd,
    _mm512_max_pd,
    _mm512_min_pd,
    _mm512_cmp_pd_mask,
    _mm512_mask_blend_pd,
    _mm512_castpd_si512,
    _mm512_cmplt_epi64_mask,
    _mm512_scalef_pd
);

impl F32x16 {
    /// Pairs of rows, then fours, are turned within each quarter of the registers; then the quarters.
    ///
    /// # Safety
    /// The processor has AVX-512F.
    #[inline(always)]
    unsafe fn columns(rows: [__m512; 16]) -> [__m512; 16] {
        let mut columns = rows;
        // SAFETY: the caller vouches for AVX-512F.
        unsafe {
            let mut fours = rows; // fours[4·g + c]: rows 4·g to 4·g + 3, quarter l of columns 4·l + c
            for g in (0..16).step_by(4) {
                let (a, b) = (rows[g], rows[g + 1]);
                let (c, d) = (rows[g + 2], rows[g + 3]);
                let low = _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
                let high = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
                let low_2 = _mm512_castps_pd(_mm512_unpacklo_ps(c, d));
                let high_2 = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
                fours[g] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, low_2));
                fours[g + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, low_2));
                fours[g + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high, high_2));
                fours[g + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high, high_2));
            }
            for c in 0..4 {
                let (a, b) = (fours[c], fours[c + 4]);
                let (d, e) = (fours[c + 8], fours[c + 12]);
                let (first, last) =
                    (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xEE>(a, b));
                let (first_2, last_2) =
                    (_mm512_shuffle_f32x4::<0x44>(d, e), _mm512_shuffle_f32x4::<0xEE>(d, e));
                columns[c] = _mm512_shuffle_f32x4::<0x88>(first, first_2);
                columns[c + 4] = _mm512_shuffle_f32x4::<0xDD>(first, first_2);
                columns[c + 8] = _mm512_shuffle_f32x4::<0x88>(last, last_2);
                columns[c + 12] = _mm512_shuffle_f32x4::<0xDD>(last, last_2);
            }
        }
        columns
    }
}

impl F64x8 {
    /// Pairs of rows are turned within each quarter of the registers; then the quarters.
    ///
    /// # Safety
    /// The processor has AVX-512F.
    #[inline(always)]
    unsafe fn columns(rows: [__m512d; 8]) -> [__m512d; 8] {
        let mut columns = rows;
        // SAFETY: the caller vouches for AVX-512F.
        unsafe {
            for c in 0..2 {
                let mut pairs = [rows[0]; 4]; // rows 2·g and 2·g + 1, quarter l of column 2·l + c
                for g in 0..4 {
                    let (x, y) = (rows[2 * g], rows[2 * g + 1]);
                    pairs[g] =
                        if c == 0 { _mm512_unpacklo_pd(x, y) } else { _mm512_unpackhi_pd(x, y) };
                }
                let [a, b, d, e] = pairs;
                let (first, last) =
                    (_mm512_shuffle_f64x2::<0x44>(a, b), _mm512_shuffle_f64x2::<0xEE>(a, b));
                let (first_2, last_2) =
                    (_mm512_shuffle_f64x2::<0x44>(d, e), _mm512_shuffle_f64x2::<0xEE>(d, e));
                columns[c] = _mm512_shuffle_f64x2::<0x88>(first, first_2);
                columns[c + 2] = _mm512_shuffle_f64x2::<0xDD>(first, first_2);
                columns[c + 4] = _mm512_shuffle_f64x2::<0x88>(last, last_2);
                columns[c + 6] = _mm512_shuffle_f64x2::<0xDD>(last, last_2);
            }
        }
        columns
    }
}
