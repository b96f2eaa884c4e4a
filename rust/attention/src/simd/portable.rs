//! Registers as plain arrays: for machines without AVX2 or NEON. The compiler makes of them what the
//! target has, 128-bit vectors on any x86-64 or AArch64.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::exp;
use super::lanes::Lanes;

/// N floats.
#[derive(Debug, Clone, Copy)]
pub struct Array<T, const N: usize>(pub(super) [T; N]);

macro_rules! portable {
    (
        $scalar:ty, $count:literal, $round:expr, $load:ident, $store:ident, $add:ident, $mul:ident
    ) => {
        impl Array<$scalar, $count> {
            /// 2^n for an n whose power is a normal number: `$round + n + bias` has n + bias in its
            /// lowest bits, and the shift makes them the exponent.
            #[inline(always)]
            fn power_of_two(n: $scalar) -> $scalar {
                const BIAS: $scalar = (<$scalar>::MAX_EXP - 1) as $scalar;
                <$scalar>::from_bits(
                    (n + ($round + BIAS)).to_bits() << (<$scalar>::MANTISSA_DIGITS - 1),
                )
            }
        }

        impl Lanes for Array<$scalar, $count> {
            type Scalar = $scalar;
            const COUNT: usize = $count;
            const BLOCK: usize = 2;
            const FUSED: bool = false;

            #[inline(always)]
            unsafe fn splat(x: $scalar) -> Self {
                Self([x; $count])
            }

            #[inline(always)]
            unsafe fn load(from: *const $scalar) -> Self {
                // SAFETY: the caller vouches for COUNT floats; an array has the alignment of one.
                Self(unsafe { from.cast::<[$scalar; $count]>().read() })
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut $scalar) {
                // SAFETY: the caller vouches for COUNT floats; an array has the alignment of one.
                unsafe { to.cast::<[$scalar; $count]>().write(self.0) }
            }

            #[inline(always)]
            fn add(mut self, other: Self) -> Self {
                for (x, y) in self.0.iter_mut().zip(other.0) {
                    *x += y;
                }
                self
            }

            #[inline(always)]
            fn sub(mut self, other: Self) -> Self {
                for (x, y) in self.0.iter_mut().zip(other.0) {
                    *x -= y;
                }
                self
            }

            #[inline(always)]
            fn mul(mut self, other: Self) -> Self {
                for (x, y) in self.0.iter_mut().zip(other.0) {
                    *x *= y;
                }
                self
            }

            #[inline(always)]
            fn div(mut self, other: Self) -> Self {
                for (x, y) in self.0.iter_mut().zip(other.0) {
                    *x /= y;
                }
                self
            }

            /// Rounded twice: without the instruction, `mul_add` of the standard library is a call.
            ///
            /// Written as vectors where these are known: left to itself the compiler now and then takes the
            /// numbers of several registers together in another order, and half of the time goes into shuffles.
            #[inline(always)]
            fn mul_add(self, factor: Self, term: Self) -> Self {
                #[cfg(target_arch = "x86_64")]
                {
                    // SAFETY: arrays of 128 bits and registers have the same bits; every x86-64 has SSE2.
                    unsafe {
                        let (x, y, z) = (self.0.as_ptr(), factor.0.as_ptr(), term.0.as_ptr());
                        let sum = $add($mul($load(x), $load(y)), $load(z));
                        let mut out = self;
                        $store(out.0.as_mut_ptr(), sum);
                        out
                    }
                }
                #[cfg(not(target_arch = "x86_64"))]
                Self(std::array::from_fn(|i| self.0[i] * factor.0[i] + term.0[i]))
            }

            #[inline(always)]
            fn max(mut self, other: Self) -> Self {
                for (x, y) in self.0.iter_mut().zip(other.0) {
                    *x = if *x > y { *x } else { y };
                }
                self
            }

            #[inline(always)]
            fn min(mut self, other: Self) -> Self {
                for (x, y) in self.0.iter_mut().zip(other.0) {
                    *x = if *x < y { *x } else { y };
                }
                self
            }

            #[inline(always)]
            fn any_equal(self, other: Self) -> bool {
                (0..$count).any(|i| self.0[i] == other.0[i])
            }

            #[inline(always)]
            fn select_equal(self, value: Self, then: Self, otherwise: Self) -> Self {
                let mut out = then;
                for i in 0..$count {
                    if self.0[i] != value.0[i] {
                        out.0[i] = otherwise.0[i];
                    }
                }
                out
            }

            #[inline(always)]
            fn select_negative(self, then: Self, otherwise: Self) -> Self {
                let mut out = then;
                for i in 0..$count {
                    if !self.0[i].is_sign_negative() {
                        out.0[i] = otherwise.0[i];
                    }
                }
                out
            }

            /// In two factors, since 2^n itself may be below the smallest normal number.
            #[inline(always)]
            fn mul_power_of_two(mut self, n: Self) -> Self {
                for (x, n) in self.0.iter_mut().zip(n.0) {
                    let half = (n * 0.5 + $round) - $round;
                    *x = *x * Self::power_of_two(half) * Self::power_of_two(n - half);
                }
                self
            }

            #[inline(always)]
            fn mul_normal_power_of_two(mut self, n: Self) -> Self {
                for (x, n) in self.0.iter_mut().zip(n.0) {
                    *x *= Self::power_of_two(n);
                }
                self
            }

            #[inline(always)]
            unsafe fn transpose(
                from: *const $scalar,
                stride: usize,
                to: *mut $scalar,
                to_stride: usize,
            ) {
                for row in 0..$count {
                    for column in 0..$count {
                        // SAFETY: the caller vouches for COUNT rows and columns of COUNT floats.
                        unsafe {
                            *to.add(column * to_stride + row) = *from.add(row * stride + column)
                        };
                    }
                }
            }
        }
    };
}

portable!(f32, 4, exp::F32.round, _mm_loadu_ps, _mm_storeu_ps, _mm_add_ps, _mm_mul_ps);
portable!(f64, 2, exp::F64.round, _mm_loadu_pd, _mm_storeu_pd, _mm_add_pd, _mm_mul_pd);
