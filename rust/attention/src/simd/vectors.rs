//! The register types of an element type, one per tier.

use std::cell::Cell;
use std::thread::LocalKey;

use ndarray::{Array3, Array4};

use super::across::Across;
use super::attend::{Call, Share, attend, attend_segment};
use super::cached;
use super::decode::Partial;
use super::exp::{self, Table};
use super::lanes::Lanes;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::portable;
use super::tier::Tier;
use super::wave::Wave;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

/// What an element type has for the kernels. Sealed: they trust the implementations here.
pub trait Vectors: Sized + 'static {
    /// Works on every machine.
    type Portable: Across<Scalar = Self>;
    /// 256 bits.
    #[cfg(target_arch = "x86_64")]
    type Avx2: Across<Scalar = Self>;
    /// 512 bits.
    #[cfg(target_arch = "x86_64")]
    type Avx512: Across<Scalar = Self>;
    /// 128 bits.
    #[cfg(target_arch = "aarch64")]
    type Neon: Across<Scalar = Self>;
    /// The numbers that `exp` needs.
    const EXP: &'static Table<Self>;

    /// The buffers that a thread keeps from call to call.
    fn kept() -> &'static LocalKey<Cell<Option<Wave<Self>>>>;

    /// `attend` for this type. Not generic, so that its many inlined kernels are compiled in this
    /// crate alone and not in every crate that calls it.
    fn attend(call: &Call<'_, Self>) -> (Array4<Self>, Array3<Self>);

    /// The same for one segment of the keys of a call of few rows.
    fn attend_segment(call: &Call<'_, Self>, share: Share) -> Partial<Self>;

    /// The same over the slots of a cache.
    fn attend_cached(call: &cached::Call<'_, Self>) -> (Array4<Self>, Array3<Self>);

    /// Floats in a register.
    fn lanes(tier: Tier) -> usize {
        match tier {
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512 => <Self::Avx512 as Lanes>::COUNT,
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2 => <Self::Avx2 as Lanes>::COUNT,
            #[cfg(target_arch = "aarch64")]
            Tier::Neon => <Self::Neon as Lanes>::COUNT,
            _ => <Self::Portable as Lanes>::COUNT,
        }
    }
}

impl Vectors for f32 {
    type Portable = portable::Array<f32, 4>;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = avx2::F32x8;
    #[cfg(target_arch = "x86_64")]
    type Avx512 = avx512::F32x16;
    #[cfg(target_arch = "aarch64")]
    type Neon = neon::F32x4;
    const EXP: &'static Table<f32> = &exp::F32;

    fn kept() -> &'static LocalKey<Cell<Option<Wave<f32>>>> {
        thread_local!(static KEPT: Cell<Option<Wave<f32>>> = const { Cell::new(None) });
        &KEPT
    }

    fn attend(call: &Call<'_, f32>) -> (Array4<f32>, Array3<f32>) {
        attend(call)
    }

    fn attend_segment(call: &Call<'_, f32>, share: Share) -> Partial<f32> {
        attend_segment(call, share)
    }

    fn attend_cached(call: &cached::Call<'_, f32>) -> (Array4<f32>, Array3<f32>) {
        cached::attend(call)
    }
}

impl Vectors for f64 {
    type Portable = portable::Array<f64, 2>;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = avx2::F64x4;
    #[cfg(target_arch = "x86_64")]
    type Avx512 = avx512::F64x8;
    #[cfg(target_arch = "aarch64")]
    type Neon = neon::F64x2;
    const EXP: &'static Table<f64> = &exp::F64;

    fn kept() -> &'static LocalKey<Cell<Option<Wave<f64>>>> {
        thread_local!(static KEPT: Cell<Option<Wave<f64>>> = const { Cell::new(None) });
        &KEPT
    }

    fn attend(call: &Call<'_, f64>) -> (Array4<f64>, Array3<f64>) {
        attend(call)
    }

    fn attend_segment(call: &Call<'_, f64>, share: Share) -> Partial<f64> {
        attend_segment(call, share)
    }

    fn attend_cached(call: &cached::Call<'_, f64>) -> (Array4<f64>, Array3<f64>) {
        cached::attend(call)
    }
}
