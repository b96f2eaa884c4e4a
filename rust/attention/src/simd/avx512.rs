//! Registers of 512 bits. Needs AVX-512F alone.

use std::arch::x86_64::*;

use super::lanes::Lanes;

/// 16 floats.
#[derive(Debug, Clone, Copy)]
pub struct F32x16(__m512);

/// 8 floats.
#[derive(Debug, Clone, Copy)]
pub struct F64x8(__m512d);

/// One implementation for both element types, which differ in the names of the instructions.
macro_rules! avx512 {
    (
        $name:ident, $scalar:ty, $count:literal, $set1:ident, $load:ident, $store:ident, $add:ident,
        $sub:ident, $fmadd:ident, $max:ident, $cmp:ident, $blend:ident, $as_integer:ident,
        $cmplt_integer:ident, $scalef:ident
    ) => {
        impl Lanes for $name {
            type Scalar = $scalar;
            const COUNT: usize = $count;
            const BLOCK: usize = 4;

            #[inline(always)]
            unsafe fn splat(x: $scalar) -> Self {
                // SAFETY: the caller vouches for AVX-512F.
                Self(unsafe { $set1(x) })
            }

            #[inline(always)]
            unsafe fn load(from: *const $scalar) -> Self {
                // SAFETY: the caller vouches for AVX-512F and for COUNT floats; unaligned is fine.
                Self(unsafe { $load(from) })
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut $scalar) {
                // SAFETY: the caller vouches for COUNT floats; `self` vouches for AVX-512F.
                unsafe { $store(to, self.0) }
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                // SAFETY: `self` vouches for AVX-512F.
                Self(unsafe { $add(self.0, other.0) })
            }

            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                // SAFETY: `self` vouches for AVX-512F.
                Self(unsafe { $sub(self.0, other.0) })
            }

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
    _mm512_fmadd_ps,
    _mm512_max_ps,
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
    _mm512_fmadd_pd,
    _mm512_max_pd,
    _mm512_cmp_pd_mask,
    _mm512_mask_blend_pd,
    _mm512_castpd_si512,
    _mm512_cmplt_epi64_mask,
    _mm512_scalef_pd
);
