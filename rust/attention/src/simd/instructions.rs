//! What is written in the same way for every instruction set: what is one instruction on a whole register, and what the
//! others are made of. The names of the instructions are handed in.

/// The methods of `Lanes` that are one instruction each, `apart` for what `features` names, and `transpose` by the
/// `columns` of the type.
macro_rules! instructions {
    (
        $scalar:ty, $count:literal, $features:literal, $set1:ident, $load:ident, $store:ident, $add:ident,
        $sub:ident, $mul:ident, $div:ident
    ) => {
        type Scalar = $scalar;
        const COUNT: usize = $count;
        const FUSED: bool = true;

        #[inline(never)]
        #[target_feature(enable = $features)]
        unsafe fn apart<W: Work>(work: W) -> W::Output {
            // SAFETY: the caller's; this function has the instruction set.
            unsafe { work.run() }
        }

        #[inline(always)]
        unsafe fn splat(x: $scalar) -> Self {
            // SAFETY: the caller vouches for the instruction set.
            Self(unsafe { $set1(x) })
        }

        #[inline(always)]
        unsafe fn load(from: *const $scalar) -> Self {
            // SAFETY: the caller vouches for the instruction set and for COUNT floats; unaligned is fine.
            Self(unsafe { $load(from) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut $scalar) {
            // SAFETY: the caller vouches for COUNT floats; `self` vouches for the instruction set.
            unsafe { $store(to, self.0) }
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: `self` vouches for the instruction set.
            Self(unsafe { $add(self.0, other.0) })
        }

        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            // SAFETY: `self` vouches for the instruction set.
            Self(unsafe { $sub(self.0, other.0) })
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: `self` vouches for the instruction set.
            Self(unsafe { $mul(self.0, other.0) })
        }

        #[inline(always)]
        fn div(self, other: Self) -> Self {
            // SAFETY: `self` vouches for the instruction set.
            Self(unsafe { $div(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn transpose(
            from: *const $scalar,
            stride: usize,
            to: *mut $scalar,
            to_stride: usize,
        ) {
            // SAFETY: the caller vouches for the instruction set, the rows and the columns.
            unsafe {
                // In plain loops: a closure is compiled without the instruction set, and called.
                let mut rows = [$load(from); $count];
                for row in 1..$count {
                    rows[row] = $load(from.add(row * stride));
                }
                let columns = Self::columns(rows);
                for column in 0..$count {
                    $store(to.add(column * to_stride), columns[column]);
                }
            }
        }
    };
}

/// The methods of `Lanes` that multiply by powers of two, where no instruction does: by the `power_of_two` of the type.
macro_rules! multiply_by_powers {
    ($round:expr) => {
        /// In two factors, since 2^n itself may be below the smallest normal number.
        #[inline(always)]
        fn mul_power_of_two(self, n: Self) -> Self {
            // SAFETY: `self` vouches for the instruction set.
            let (round, half) = unsafe { (Self::splat($round), Self::splat(0.5)) };
            let half = n.mul_add(half, round).sub(round);
            self.mul(half.power_of_two()).mul(n.sub(half).power_of_two())
        }

        #[inline(always)]
        fn mul_normal_power_of_two(self, n: Self) -> Self {
            self.mul(n.power_of_two())
        }
    };
}

/// `power_of_two`, by the integers that a float is stored as.
macro_rules! power_of_two {
    (
        $scalar:ty, $round:expr, $set1:ident, $add:ident, $as_integer:ident, $as_float:ident, $shift_left:ident
    ) => {
        /// 2^self where that is a normal number: `$round + self + bias` has self + bias in its
        /// lowest bits, and the shift makes them the exponent.
        #[inline(always)]
        fn power_of_two(self) -> Self {
            const BIAS: $scalar = (<$scalar>::MAX_EXP - 1) as $scalar;
            const FRACTION: i32 = <$scalar>::MANTISSA_DIGITS as i32 - 1;
            // SAFETY: `self` vouches for the instruction set.
            Self(unsafe {
                let n = $add(self.0, $set1($round + BIAS));
                $as_float($shift_left::<FRACTION>($as_integer(n)))
            })
        }
    };
}

pub(super) use {instructions, multiply_by_powers, power_of_two};
