//! Registers of 128 bits, and what crosses their lanes. Needs NEON, which every AArch64 with floats has.

#![allow(clippy::needless_range_loop, reason = "constant index loops unroll into registers")]

use std::arch::aarch64::*;
use std::arch::asm;
use std::convert::identity; // the lanes of f32 are as wide as the halves of those of f64

use super::across::{Across, line};
use super::exp;
use super::instructions::{instructions, multiply_by_powers, power_of_two};
use super::lanes::{Lanes, Work};

/// 4 floats.
#[derive(Debug, Clone, Copy)]
pub struct F32x4(float32x4_t);

/// 2 floats.
#[derive(Debug, Clone, Copy)]
pub struct F64x2(float64x2_t);

/// One implementation for both element types, which differ in the names of the instructions.
macro_rules! neon {
    (
        $name:ident, $scalar:ty, $count:literal, $round:expr, $set1:ident, $load:ident, $store:ident,
        $add:ident, $sub:ident, $mul:ident, $div:ident, $fma:ident, $greater:ident, $less:ident, $equal:ident,
        $blend:ident, $as_halves:ident, $as_integer:ident, $as_float:ident, $negative:ident, $shift_left:ident
    ) => {
        impl Lanes for $name {
            instructions!($scalar, $count, "neon", $set1, $load, $store, $add, $sub, $mul, $div);

            const BLOCK: usize = 4;

            /// The instruction takes the term first.
            #[inline(always)]
            fn mul_add(self, factor: Self, term: Self) -> Self {
                // SAFETY: `self` vouches for NEON.
                Self(unsafe { $fma(term.0, self.0, factor.0) })
            }

            /// Neither maximum of the instruction set will do: one makes NaN of any NaN, the other a number.
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                // SAFETY: `self` vouches for NEON.
                Self(unsafe { $blend($greater(self.0, other.0), self.0, other.0) })
            }

            /// As for `max`.
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                // SAFETY: `self` vouches for NEON.
                Self(unsafe { $blend($less(self.0, other.0), self.0, other.0) })
            }

            /// All bits of a lane are set where it is equal, so that any part of it tells.
            #[inline(always)]
            fn any_equal(self, other: Self) -> bool {
                // SAFETY: `self` vouches for NEON.
                unsafe { vmaxvq_u32($as_halves($equal(self.0, other.0))) != 0 }
            }

            #[inline(always)]
            fn select_equal(self, value: Self, then: Self, otherwise: Self) -> Self {
                // SAFETY: `self` vouches for NEON.
                Self(unsafe { $blend($equal(self.0, value.0), then.0, otherwise.0) })
            }

            /// An integer with the sign bit of the float is negative.
            #[inline(always)]
            fn select_negative(self, then: Self, otherwise: Self) -> Self {
                // SAFETY: `self` vouches for NEON.
                Self(unsafe { $blend($negative($as_integer(self.0)), then.0, otherwise.0) })
            }

            multiply_by_powers!($round);
        }

        impl $name {
            power_of_two!($scalar, $round, $set1, $add, $as_integer, $as_float, $shift_left);
        }
    };
}

neon!(
    F32x4,
    f32,
    4,
    exp::F32.round,
    vdupq_n_f32,
    vld1q_f32,
    vst1q_f32,
    vaddq_f32,
    vsubq_f32,
    vmulq_f32,
    vdivq_f32,
    vfmaq_f32,
    vcgtq_f32,
    vcltq_f32,
    vceqq_f32,
    vbslq_f32,
    identity,
    vreinterpretq_s32_f32,
    vreinterpretq_f32_s32,
    vcltzq_s32,
    vshlq_n_s32
);
neon!(
    F64x2,
    f64,
    2,
    exp::F64.round,
    vdupq_n_f64,
    vld1q_f64,
    vst1q_f64,
    vaddq_f64,
    vsubq_f64,
    vmulq_f64,
    vdivq_f64,
    vfmaq_f64,
    vcgtq_f64,
    vcltq_f64,
    vceqq_f64,
    vbslq_f64,
    vreinterpretq_u32_u64,
    vreinterpretq_s64_f64,
    vreinterpretq_f64_s64,
    vcltzq_s64,
    vshlq_n_s64
);

impl F32x4 {
    /// Pairs of rows are turned; then the pairs of two such registers are put together.
    ///
    /// # Safety
    /// The processor has NEON.
    #[inline(always)]
    unsafe fn columns(rows: [float32x4_t; 4]) -> [float32x4_t; 4] {
        let [a, b, c, d] = rows;
        // SAFETY: the caller vouches for NEON.
        unsafe {
            let even = vreinterpretq_f64_f32(vtrn1q_f32(a, b)); // a0 b0, a2 b2
            let odd = vreinterpretq_f64_f32(vtrn2q_f32(a, b)); // a1 b1, a3 b3
            let even_2 = vreinterpretq_f64_f32(vtrn1q_f32(c, d));
            let odd_2 = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
            [
                vreinterpretq_f32_f64(vzip1q_f64(even, even_2)),
                vreinterpretq_f32_f64(vzip1q_f64(odd, odd_2)),
                vreinterpretq_f32_f64(vzip2q_f64(even, even_2)),
                vreinterpretq_f32_f64(vzip2q_f64(odd, odd_2)),
            ]
        }
    }
}

impl F64x2 {
    /// # Safety
    /// The processor has NEON.
    #[inline(always)]
    unsafe fn columns([a, b]: [float64x2_t; 2]) -> [float64x2_t; 2] {
        // SAFETY: the caller vouches for NEON.
        unsafe { [vzip1q_f64(a, b), vzip2q_f64(a, b)] }
    }
}

impl Across for F32x4 {
    const NARROW: bool = true;

    #[inline(always)]
    fn add_up<const K: usize, const H: usize>(sums: [[Self; K]; H]) -> Self {
        let [a, b, c, d]: [Self; 4] = line(sums);
        // SAFETY: the sums vouch for NEON.
        Self(unsafe { vpaddq_f32(vpaddq_f32(a.0, b.0), vpaddq_f32(c.0, d.0)) })
    }

    /// Every NEON has the instruction, but the type of its intrinsic is newer than the oldest compiler that
    /// builds this.
    #[inline(always)]
    unsafe fn from_f16(from: *const u8) -> Self {
        let wide: float32x4_t;
        // SAFETY: the caller vouches for NEON, and for 8 bytes.
        unsafe {
            let halves = from.cast::<u64>().read_unaligned();
            asm!(
                "fcvtl {wide:v}.4s, {halves:v}.4h",
                wide = lateout(vreg) wide,
                halves = in(vreg) vcreate_u16(halves),
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        Self(wide)
    }

    #[inline(always)]
    unsafe fn from_bf16(from: *const u8) -> Self {
        // SAFETY: the caller vouches for NEON, and for 8 bytes.
        unsafe {
            let halves = vmovl_u16(vcreate_u16(from.cast::<u64>().read_unaligned()));
            Self(vreinterpretq_f32_u32(vshlq_n_u32::<16>(halves)))
        }
    }

    #[inline(always)]
    unsafe fn from_i8(from: *const u8) -> Self {
        // SAFETY: the caller vouches for NEON, and for 4 bytes.
        unsafe {
            let codes = vcreate_s8(u64::from(from.cast::<u32>().read_unaligned()));
            Self(vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(codes)))))
        }
    }

    /// Each lane shifts its own to the top, and down again with its sign.
    #[inline(always)]
    unsafe fn from_i4(from: *const u8) -> Self {
        const UP: [i32; 4] = [28, 24, 20, 16];
        // SAFETY: the caller vouches for NEON, and for 2 bytes.
        unsafe {
            let all = vdupq_n_s32(i32::from(from.cast::<u16>().read_unaligned()));
            let top = vshlq_s32(all, vld1q_s32(UP.as_ptr()));
            Self(vcvtq_f32_s32(vshrq_n_s32::<28>(top)))
        }
    }
}

impl Across for F64x2 {
    #[inline(always)]
    fn add_up<const K: usize, const H: usize>(sums: [[Self; K]; H]) -> Self {
        let [a, b]: [Self; 2] = line(sums);
        // SAFETY: the sums vouch for NEON.
        Self(unsafe { vpaddq_f64(a.0, b.0) })
    }
}
