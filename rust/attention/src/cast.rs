//! The types that numbers are stored in, and the way from one to another.
//!
//! f32 and f64 are computed in as they are. The half types, f16 (11 bits of precision) and bf16 (8), are only
//! stored: an operation on them widens its inputs to f32, runs in f32, and rounds each result once.
//!
//! Rounding is to the nearest value, half to even, and once: f64 to f16 by way of the nearest f32 would round
//! twice, and miss the nearest f16 where the first rounding lands in the middle between two of them.
//!
//! Sources: IEEE 754-2019, sections 3.6 and 4.3 (formats and rounding); Boldo and Melquiond, "When double
//! rounding is odd", 2005 (why a stop on the way is harmless when that one rounds to odd).

use half::{bf16, f16};
use ndarray::{Array, ArrayRef, ArrayView, CowArray, Dimension};

use crate::cache_content::Element;
use crate::float::Float;

/// A type that floats are stored in. Implemented for `f16`, `bf16`, `f32` and `f64`, and for nothing else.
pub trait Stored: Element + Send + Sync + 'static {
    /// What numbers of this type are computed in.
    type Compute: Float;

    /// The same number in the compute type; always exact.
    fn widen(self) -> Self::Compute;

    /// The value of this type that is nearest to `x`, half to even; infinite beyond the largest.
    fn nearest(x: f64) -> Self;

    /// [`widen`] for arrays, which a type that is computed in only borrows.
    fn widen_array<D: Dimension>(x: ArrayView<'_, Self, D>) -> CowArray<'_, Self::Compute, D> {
        x.mapv(Self::widen).into()
    }

    /// [`narrow`] for arrays, which a type that is computed in only passes on.
    fn narrow_array<D: Dimension>(x: Array<Self::Compute, D>) -> Array<Self, D> {
        x.mapv(|x| Self::nearest(wide(x)))
    }
}

macro_rules! stored_as_half {
    ($half:ty) => {
        impl Stored for $half {
            type Compute = f32;

            fn widen(self) -> f32 {
                // 1. widen: every half number is an f32 as well
                self.to_f32()
            }

            fn nearest(x: f64) -> Self {
                // 2. narrow: rounded once; the stop at f32 leaves a trace of all that it cuts off
                let traced = round_to_odd(x);
                <$half>::from_f32(traced)
            }
        }
    };
}

stored_as_half!(f16);
stored_as_half!(bf16);

macro_rules! stored_as_computed {
    ($float:ty) => {
        impl Stored for $float {
            type Compute = Self;

            fn widen(self) -> Self {
                self
            }

            fn nearest(x: f64) -> Self {
                x as Self
            }

            fn widen_array<D: Dimension>(x: ArrayView<'_, Self, D>) -> CowArray<'_, Self, D> {
                x.into()
            }

            fn narrow_array<D: Dimension>(x: Array<Self, D>) -> Array<Self, D> {
                x
            }
        }
    };
}

stored_as_computed!(f32);
stored_as_computed!(f64);

/// `x` in the type that it is computed in, exactly; same shape.
///
/// ```
/// use half::f16;
/// use rosetta_attention::widen;
/// let x = ndarray::array![f16::MAX, f16::from_f32(-0.5)];
/// assert_eq!(widen(x.view()), ndarray::array![65504.0, -0.5]);
/// ```
pub fn widen<S: Stored, D: Dimension>(x: ArrayView<'_, S, D>) -> CowArray<'_, S::Compute, D> {
    S::widen_array(x)
}

/// `x` in the type that it is stored in, each element rounded once; same shape.
pub fn narrow<S: Stored, D: Dimension>(x: Array<S::Compute, D>) -> Array<S, D> {
    S::narrow_array(x)
}

/// `x` from any type to any other, each element rounded once; same shape. NaN stays NaN.
///
/// ```
/// use half::f16;
/// use rosetta_attention::cast;
/// let x = ndarray::array![1.0 + 2.0_f64.powi(-11) + 2.0_f64.powi(-40)]; // just above the middle
/// assert_eq!(cast::<_, f16, _>(&x)[0], f16::from_f32(1.0 + 2.0_f32.powi(-10)));
/// ```
pub fn cast<From: Stored, To: Stored, D: Dimension>(x: &ArrayRef<From, D>) -> Array<To, D> {
    x.mapv(|x| To::nearest(wide(x.widen())))
}

/// Every f32 is an f64.
pub(crate) fn wide<T: Float>(x: T) -> f64 {
    x.to_f64().expect("a float")
}

/// `x` as an f32: itself, or of its two neighbours the one with an odd last bit. Odd is never the
/// middle of two values with fewer bits, so what rounds next sees on which side of it `x` lies.
fn round_to_odd(x: f64) -> f32 {
    let near = x as f32;
    if f64::from(near) == x || x.is_nan() {
        return near;
    }
    let away = f64::from(near).abs() > x.abs();
    let toward_zero = near.to_bits() - u32::from(away); // the magnitude is in the low bits
    f32::from_bits(toward_zero | 1)
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    /// All codes of a half type, and the number that each stands for by the definition of its fields.
    fn codes<H>(
        half: fn(u16) -> H,
        mantissa: i32,
        bias: i32,
    ) -> impl Iterator<Item = (u16, H, f64)> {
        (0..=u16::MAX).map(move |code| {
            let field = i32::from(code & 0x7fff) >> mantissa;
            let fraction = f64::from(i32::from(code) & ((1 << mantissa) - 1));
            let top = 2.0_f64.powi(mantissa);
            let size = if field == (0x7fff >> mantissa) {
                if fraction == 0.0 { f64::INFINITY } else { f64::NAN }
            } else if field == 0 {
                fraction / top * 2.0_f64.powi(1 - bias)
            } else {
                (1.0 + fraction / top) * 2.0_f64.powi(field - bias)
            };
            (code, half(code), if code >> 15 == 1 { -size } else { size })
        })
    }

    fn check_codes<H: Stored<Compute = f32>>(half: fn(u16) -> H, mantissa: i32, bias: i32) {
        let bits = |x: f64| H::nearest(x).widen().to_bits();
        let mut before: Option<(u16, f64)> = None;
        for (code, stored, number) in codes(half, mantissa, bias) {
            if number.is_nan() {
                assert!(stored.widen().is_nan() && H::nearest(f64::NAN).widen().is_nan());
                before = None;
                continue;
            }
            assert_eq!(f64::from(stored.widen()).to_bits(), number.to_bits(), "{code:#x}");
            assert_eq!(bits(number), stored.widen().to_bits(), "{code:#x}");
            if let Some((below, low)) = before.filter(|_| number.is_finite()) {
                let middle = low / 2.0 + number / 2.0; // exact
                let even = half(if below % 2 == 0 { below } else { code }).widen().to_bits();
                assert_eq!(bits(middle), even, "{code:#x}");
                let (toward, away) = (half(below).widen().to_bits(), stored.widen().to_bits());
                assert_eq!(bits(f64::from_bits(middle.to_bits() - 1)), toward, "{code:#x}");
                assert_eq!(bits(f64::from_bits(middle.to_bits() + 1)), away, "{code:#x}");
            }
            before = (code != 0x7fff && number.is_finite()).then_some((code, number));
        }
    }

    #[test]
    fn every_code_and_every_middle() {
        check_codes(f16::from_bits, 10, 15);
        check_codes(bf16::from_bits, 7, 127);
    }

    #[test]
    fn beyond_the_largest() {
        assert_eq!(f16::nearest(65519.999), f16::MAX);
        assert_eq!(f16::nearest(65520.0), f16::INFINITY);
        assert_eq!(bf16::nearest(f64::MAX), bf16::INFINITY);
        assert_eq!(f16::nearest(-1e-300).to_bits(), 0x8000);
        assert_eq!(bf16::nearest(1e-300).to_bits(), 0);
        let half_step = 2.0_f64.powi(119);
        let most = f64::from(bf16::MAX.to_f32());
        assert_eq!(bf16::nearest(most + half_step), bf16::INFINITY);
        assert_eq!(bf16::nearest(f64::from_bits((most + half_step).to_bits() - 1)), bf16::MAX);
    }

    #[test]
    fn what_is_computed_in_is_not_copied() {
        let x = array![1.0_f32, f32::NAN];
        assert_eq!(widen(x.view()).as_ptr(), x.as_ptr());
        let at = x.as_ptr();
        assert_eq!(narrow::<f32, _>(x).as_ptr(), at);
    }

    #[test]
    fn between_all_types() {
        let x = array![1.0, -2.5, f64::INFINITY, f64::NAN, 1e-45];
        let bf: Array<bf16, _> = cast(&x);
        let f: Array<f32, _> = cast(&bf);
        assert_eq!((f[1], f[2], f[3].is_nan(), f[4]), (-2.5, f32::INFINITY, true, 0.0));
        let same: Array<f64, _> = cast(&cast::<_, f32, _>(&x));
        assert_eq!(same[4], f64::from(1e-45_f32));
        let halves: Array<f16, _> = cast(&bf);
        assert_eq!(narrow::<f16, _>(widen(halves.view()).into_owned())[1], halves[1]);
    }
}
