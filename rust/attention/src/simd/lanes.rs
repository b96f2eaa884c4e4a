//! A vector register of floats: what the kernels ask of an instruction set.

use crate::float::Float;

/// One register of `COUNT` floats.
///
/// A value comes only from `splat` or `load`, whose caller answers for the instruction set; so a
/// method that takes a value may use it. Everything is inlined into a function that was compiled
/// for that instruction set: one that `apart` makes of a piece of work.
pub trait Lanes: Copy {
    /// The element.
    type Scalar: Float;
    /// Floats in a register.
    const COUNT: usize;
    /// Registers of queries in the largest tile. With four keys at a time a tile of b registers
    /// holds 4·b sums, and must leave b + 1 registers for what it multiplies: 4 where there are 32
    /// registers, 2 where there are 16.
    const BLOCK: usize;
    /// Whether `mul_add` rounds once.
    const FUSED: bool;

    /// Does the work, in a function that is compiled for the instruction set: once for each type of work, whoever
    /// asks for it. The kernels in the callers themselves would be compiled once for each of these, and together: a
    /// compiler takes longer for one large function than for its parts.
    ///
    /// # Safety
    /// The processor has the instruction set of this type, and what the work itself asks for holds.
    #[inline(never)]
    unsafe fn apart<W: Work>(work: W) -> W::Output {
        // SAFETY: the caller's.
        unsafe { work.run() }
    }

    /// # Safety
    /// The processor has the instruction set of this type.
    unsafe fn splat(x: Self::Scalar) -> Self;

    /// # Safety
    /// The processor has the instruction set of this type, and `COUNT` floats can be read at `from`.
    unsafe fn load(from: *const Self::Scalar) -> Self;

    /// # Safety
    /// `COUNT` floats can be written at `to`.
    unsafe fn store(self, to: *mut Self::Scalar);

    /// self + other
    fn add(self, other: Self) -> Self;

    /// self - other
    fn sub(self, other: Self) -> Self;

    /// self · other
    fn mul(self, other: Self) -> Self;

    /// self / other
    fn div(self, other: Self) -> Self;

    /// self · factor + term, rounded once where the instruction set can.
    fn mul_add(self, factor: Self, term: Self) -> Self;

    /// The larger; `other` where `self` is NaN.
    fn max(self, other: Self) -> Self;

    /// The smaller; `other` where `self` is NaN.
    fn min(self, other: Self) -> Self;

    /// Whether some element equals that of `other`.
    fn any_equal(self, other: Self) -> bool;

    /// `then` where self equals `value`, else `otherwise`.
    fn select_equal(self, value: Self, then: Self, otherwise: Self) -> Self;

    /// `then` where the sign bit of self is set, -0 included, else `otherwise`.
    fn select_negative(self, then: Self, otherwise: Self) -> Self;

    /// self · 2^n for an integral n from -2·max_exponent to 0, rounded once.
    fn mul_power_of_two(self, n: Self) -> Self;

    /// The same for an n whose power is a normal number.
    fn mul_normal_power_of_two(self, n: Self) -> Self;

    /// Turns COUNT rows of COUNT floats, `stride` apart, into as many columns, `to_stride` apart.
    ///
    /// # Safety
    /// The processor has the instruction set of this type; all rows can be read, and all columns written.
    unsafe fn transpose(
        from: *const Self::Scalar,
        stride: usize,
        to: *mut Self::Scalar,
        to_stride: usize,
    );
}

/// Something to be done in registers, with all that it needs: the arguments of a function that `Lanes::apart` compiles.
pub trait Work {
    /// What it results in.
    type Output;

    /// Does it; always inlined.
    ///
    /// # Safety
    /// The processor has the instruction set of the registers that it works in, and what it says itself.
    unsafe fn run(self) -> Self::Output;
}
