//! Registers as plain arrays: for machines without AVX2. The compiler makes of them what the
//! target has, 128-bit vectors on any x86-64 or AArch64.

use super::exp;
use super::lanes::Lanes;

/// N floats.
#[derive(Debug, Clone, Copy)]
pub struct Array<T, const N: usize>([T; N]);

macro_rules! portable {
    ($scalar:ty, $count:literal, $round:expr) => {
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

            /// Rounded twice: without the instruction, `mul_add` of the standard library is a call.
            #[inline(always)]
            fn mul_add(mut self, factor: Self, term: Self) -> Self {
                for ((x, y), z) in self.0.iter_mut().zip(factor.0).zip(term.0) {
                    *x = *x * y + z;
                }
                self
            }

            #[inline(always)]
            fn max(mut self, other: Self) -> Self {
                for (x, y) in self.0.iter_mut().zip(other.0) {
                    *x = if *x > y { *x } else { y };
                }
                self
            }

            #[inline(always)]
            fn select_equal(self, value: Self, then: Self, otherwise: Self) -> Self {
                Self(std::array::from_fn(|i| {
                    if self.0[i] == value.0[i] { then.0[i] } else { otherwise.0[i] }
                }))
            }

            #[inline(always)]
            fn select_negative(self, then: Self, otherwise: Self) -> Self {
                Self(std::array::from_fn(|i| {
                    if self.0[i].is_sign_negative() { then.0[i] } else { otherwise.0[i] }
                }))
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
        }
    };
}

portable!(f32, 4, exp::F32.round);
portable!(f64, 2, exp::F64.round);
