//! What the kernels for few rows ask of a register beside what those of the tiles do: sums of its lanes, and numbers
//! that are stored in fewer bits.

#![allow(clippy::needless_range_loop, reason = "constant index loops unroll into registers")]

use half::{bf16, f16};

use super::lanes::Lanes;
use crate::float::Float;

/// The longest register.
pub(super) const LONGEST: usize = 16;

/// What crosses the lanes of a register, or becomes one.
pub trait Across: Lanes {
    /// Whether the kernels for few rows are compiled for each kind of numbers in fewer bits, which become wide where they
    /// are multiplied. Else a block of rows becomes wide before it is read, so that one kernel reads all kinds: that takes
    /// longer, but less to compile.
    const NARROW: bool = false;

    /// Lane l of the result is the sum of all lanes of `sums[l / K][l % K]`; K · H = COUNT. Every sum is a tree of
    /// the same form.
    fn add_up<const K: usize, const H: usize>(sums: [[Self; K]; H]) -> Self;

    /// The first `count` numbers at `from`, and zeros; 0 < count < COUNT.
    ///
    /// # Safety
    /// The processor has the instruction set of this type, and `count` floats can be read at `from`.
    #[inline(always)]
    unsafe fn load_first(from: *const Self::Scalar, count: usize) -> Self {
        let mut lanes = [zero::<Self>(); LONGEST];
        // SAFETY: count < COUNT <= LONGEST; the caller vouches for the rest.
        unsafe {
            for (lane, to) in lanes.iter_mut().enumerate().take(count) {
                *to = *from.add(lane);
            }
            Self::load(lanes.as_ptr())
        }
    }

    /// COUNT numbers of 16 bits: 11 of precision.
    ///
    /// # Safety
    /// The processor has the instruction set of this type, and they can be read at `from`.
    #[inline(always)]
    unsafe fn from_f16(from: *const u8) -> Self {
        // SAFETY: lane < COUNT; the caller vouches for the rest.
        unsafe { each(|lane| from.cast::<f16>().add(lane).read_unaligned().to_f32()) }
    }

    /// COUNT numbers of 16 bits: 8 of precision.
    ///
    /// # Safety
    /// As for `from_f16`.
    #[inline(always)]
    unsafe fn from_bf16(from: *const u8) -> Self {
        // SAFETY: as above.
        unsafe { each(|lane| from.cast::<bf16>().add(lane).read_unaligned().to_f32()) }
    }

    /// COUNT integers of 8 bits.
    ///
    /// # Safety
    /// As for `from_f16`.
    #[inline(always)]
    unsafe fn from_i8(from: *const u8) -> Self {
        // SAFETY: as above.
        unsafe { each(|lane| f32::from(*from.cast::<i8>().add(lane))) }
    }

    /// COUNT integers of 4 bits, from -8 to 7, the low four bits of a byte first.
    ///
    /// # Safety
    /// As for `from_f16`.
    #[inline(always)]
    unsafe fn from_i4(from: *const u8) -> Self {
        // SAFETY: as above.
        unsafe {
            each(|lane| {
                let four = *from.add(lane / 2) >> (lane % 2 * 4);
                f32::from((four << 4) as i8 >> 4)
            })
        }
    }
}

#[inline(always)]
fn zero<V: Lanes>() -> V::Scalar {
    V::Scalar::from_f64(0.0)
}

/// A register of what `number` says of each lane.
///
/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
unsafe fn each<V: Lanes>(number: impl Fn(usize) -> f32) -> V {
    let mut lanes = [zero::<V>(); LONGEST];
    for (lane, to) in lanes.iter_mut().enumerate().take(V::COUNT) {
        *to = V::Scalar::from_f64(f64::from(number(lane)));
    }
    // SAFETY: COUNT <= LONGEST; the caller vouches for the instruction set.
    unsafe { V::load(lanes.as_ptr()) }
}

/// Those of `sums` in one line; K · H = N.
#[inline(always)]
pub(super) fn line<V: Copy, const K: usize, const H: usize, const N: usize>(
    sums: [[V; K]; H],
) -> [V; N] {
    debug_assert!(K * H == N);
    let mut line = [sums[0][0]; N];
    for l in 0..N {
        line[l] = sums[l / K % H][l % K];
    }
    line
}

mod portable {
    use super::super::portable::Array;
    use super::{Across, line};

    impl Across for Array<f32, 4> {
        #[inline(always)]
        fn add_up<const K: usize, const H: usize>(sums: [[Self; K]; H]) -> Self {
            let line: [Self; 4] = line(sums);
            let mut all = line[0].0;
            for l in 0..4 {
                let [a, b, c, d] = line[l].0;
                all[l] = (a + c) + (b + d);
            }
            Self(all)
        }
    }

    impl Across for Array<f64, 2> {
        #[inline(always)]
        fn add_up<const K: usize, const H: usize>(sums: [[Self; K]; H]) -> Self {
            let line: [Self; 2] = line(sums);
            Self([line[0].0[0] + line[0].0[1], line[1].0[0] + line[1].0[1]])
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::super::avx2::{F32x8, F64x4};
    use super::{Across, line};

    impl Across for F32x8 {
        const NARROW: bool = true;

        #[inline(always)]
        fn add_up<const K: usize, const H: usize>(sums: [[Self; K]; H]) -> Self {
            let line: [Self; 8] = line(sums);
            // SAFETY: the sums vouch for AVX2.
            unsafe {
                let mut fours = [line[0].0; 2]; // half l of fours[g]: a part of the sums 4·g to 4·g + 3
                for g in 0..2 {
                    let (a, b) = (line[4 * g].0, line[4 * g + 1].0);
                    let (c, d) = (line[4 * g + 2].0, line[4 * g + 3].0);
                    let x = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                    let y = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
                    let (x, y) = (_mm256_castps_pd(x), _mm256_castps_pd(y));
                    let low = _mm256_castpd_ps(_mm256_unpacklo_pd(x, y));
                    let high = _mm256_castpd_ps(_mm256_unpackhi_pd(x, y));
                    fours[g] = _mm256_add_ps(low, high);
                }
                let [x, y] = fours;
                let low = _mm256_permute2f128_ps::<0x20>(x, y);
                Self(_mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(x, y)))
            }
        }

        #[inline(always)]
        unsafe fn from_f16(from: *const u8) -> Self {
            // SAFETY: the caller vouches for AVX2 and F16C, and for 16 bytes.
            Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) })
        }

        #[inline(always)]
        unsafe fn from_bf16(from: *const u8) -> Self {
            // SAFETY: the caller vouches for AVX2, and for 16 bytes.
            unsafe {
                let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
                Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves)))
            }
        }

        #[inline(always)]
        unsafe fn from_i8(from: *const u8) -> Self {
            // SAFETY: the caller vouches for AVX2, and for 8 bytes.
            unsafe { Self(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())))) }
        }

        /// Each lane shifts its own to the top, and down again with its sign.
        #[inline(always)]
        unsafe fn from_i4(from: *const u8) -> Self {
            // SAFETY: the caller vouches for AVX2, and for 4 bytes.
            unsafe {
                let all = _mm256_set1_epi32(from.cast::<i32>().read_unaligned());
                let up = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
                let codes = _mm256_srai_epi32::<28>(_mm256_sllv_epi32(all, up));
                Self(_mm256_cvtepi32_ps(codes))
            }
        }
    }

    impl Across for F64x4 {
        #[inline(always)]
        fn add_up<const K: usize, const H: usize>(sums: [[Self; K]; H]) -> Self {
            let [a, b, c, d]: [Self; 4] = line(sums);
            // SAFETY: the sums vouch for AVX2.
            unsafe {
                let x = _mm256_add_pd(_mm256_unpacklo_pd(a.0, b.0), _mm256_unpackhi_pd(a.0, b.0));
                let y = _mm256_add_pd(_mm256_unpacklo_pd(c.0, d.0), _mm256_unpackhi_pd(c.0, d.0));
                let low = _mm256_permute2f128_pd::<0x20>(x, y);
                Self(_mm256_add_pd(low, _mm256_permute2f128_pd::<0x31>(x, y)))
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use super::super::avx512::{F32x16, F64x8};
    use super::{Across, line};

    impl Across for F32x16 {
        const NARROW: bool = true;

        #[inline(always)]
        fn add_up<const K: usize, const H: usize>(sums: [[Self; K]; H]) -> Self {
            let line: [Self; 16] = line(sums);
            let mut fours = [line[0].0; 4]; // quarter l of fours[g]: a part of the sums 4·g to 4·g + 3
            // SAFETY: the sums vouch for AVX-512F.
            unsafe {
                for g in 0..4 {
                    let (a, b) = (line[4 * g].0, line[4 * g + 1].0);
                    let (c, d) = (line[4 * g + 2].0, line[4 * g + 3].0);
                    let x = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                    let y = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                    let (x, y) = (_mm512_castps_pd(x), _mm512_castps_pd(y));
                    let low = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
                    let high = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
                    fours[g] = _mm512_add_ps(low, high);
                }
                let [a, b, c, d] = fours;
                let x = _mm512_add_ps(
                    _mm512_shuffle_f32x4::<0x44>(a, b),
                    _mm512_shuffle_f32x4::<0xEE>(a, b),
                );
                let y = _mm512_add_ps(
                    _mm512_shuffle_f32x4::<0x44>(c, d),
                    _mm512_shuffle_f32x4::<0xEE>(c, d),
                );
                Self(_mm512_add_ps(
                    _mm512_shuffle_f32x4::<0x88>(x, y),
                    _mm512_shuffle_f32x4::<0xDD>(x, y),
                ))
            }
        }

        #[inline(always)]
        unsafe fn load_first(from: *const f32, count: usize) -> Self {
            // SAFETY: the caller vouches for AVX-512F and for `count` floats; others are not touched.
            Self(unsafe { _mm512_maskz_loadu_ps((1 << count) - 1, from) })
        }

        #[inline(always)]
        unsafe fn from_f16(from: *const u8) -> Self {
            // SAFETY: the caller vouches for AVX-512F, and for 32 bytes.
            Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
        }

        #[inline(always)]
        unsafe fn from_bf16(from: *const u8) -> Self {
            // SAFETY: the caller vouches for AVX-512F, and for 32 bytes.
            unsafe {
                let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
                Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves)))
            }
        }

        #[inline(always)]
        unsafe fn from_i8(from: *const u8) -> Self {
            // SAFETY: the caller vouches for AVX-512F, and for 16 bytes.
            unsafe { Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())))) }
        }

        /// Half of the lanes get the first four bytes, half the last, and each shifts its own code down; the table is
        /// looked up by the lowest four bits alone.
        #[inline(always)]
        unsafe fn from_i4(from: *const u8) -> Self {
            // SAFETY: the caller vouches for AVX-512F, and for 8 bytes.
            unsafe {
                let first = from.cast::<i32>().read_unaligned();
                let last = from.cast::<i32>().add(1).read_unaligned();
                let all = _mm512_mask_set1_epi32(_mm512_set1_epi32(first), 0xFF00, last);
                let down =
                    _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
                let table = _mm512_setr_ps(
                    0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, -8.0, -7.0, -6.0, -5.0, -4.0, -3.0,
                    -2.0, -1.0,
                );
                Self(_mm512_permutexvar_ps(_mm512_srlv_epi32(all, down), table))
            }
        }
    }

    impl Across for F64x8 {
        #[inline(always)]
        fn add_up<const K: usize, const H: usize>(sums: [[Self; K]; H]) -> Self {
            let line: [Self; 8] = line(sums);
            let mut pairs = [line[0].0; 4];
            // SAFETY: the sums vouch for AVX-512F.
            unsafe {
                for g in 0..4 {
                    let (a, b) = (line[2 * g].0, line[2 * g + 1].0);
                    pairs[g] = _mm512_add_pd(_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
                }
                let [a, b, c, d] = pairs;
                let x = _mm512_add_pd(
                    _mm512_shuffle_f64x2::<0x44>(a, b),
                    _mm512_shuffle_f64x2::<0xEE>(a, b),
                );
                let y = _mm512_add_pd(
                    _mm512_shuffle_f64x2::<0x44>(c, d),
                    _mm512_shuffle_f64x2::<0xEE>(c, d),
                );
                Self(_mm512_add_pd(
                    _mm512_shuffle_f64x2::<0x88>(x, y),
                    _mm512_shuffle_f64x2::<0xDD>(x, y),
                ))
            }
        }

        #[inline(always)]
        unsafe fn load_first(from: *const f64, count: usize) -> Self {
            // SAFETY: the caller vouches for AVX-512F and for `count` floats; others are not touched.
            Self(unsafe { _mm512_maskz_loadu_pd((1 << count) - 1, from) })
        }
    }
}
