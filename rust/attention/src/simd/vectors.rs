//! The register types of an element type, one per tier.

use ndarray::{Array3, Array4};

use super::attend::{Call, attend};
use super::exp::{self, Table};
use super::lanes::Lanes;
use super::portable;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

/// What an element type has for the kernels. Sealed: they trust the implementations here.
pub trait Vectors: Sized + 'static {
    /// Works on every machine.
    type Portable: Lanes<Scalar = Self>;
    /// 256 bits.
    #[cfg(target_arch = "x86_64")]
    type Avx2: Lanes<Scalar = Self>;
    /// 512 bits.
    #[cfg(target_arch = "x86_64")]
    type Avx512: Lanes<Scalar = Self>;
    /// The numbers that `exp` needs.
    const EXP: &'static Table<Self>;

    /// `attend` for this type. Not generic, so that its many inlined kernels are compiled in this
    /// crate alone and not in every crate that calls it.
    fn attend(call: &Call<'_, Self>) -> (Array4<Self>, Array3<Self>);
}

impl Vectors for f32 {
    type Portable = portable::Array<f32, 4>;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = avx2::F32x8;
    #[cfg(target_arch = "x86_64")]
    type Avx512 = avx512::F32x16;
    const EXP: &'static Table<f32> = &exp::F32;

    fn attend(call: &Call<'_, f32>) -> (Array4<f32>, Array3<f32>) {
        attend(call)
    }
}

impl Vectors for f64 {
    type Portable = portable::Array<f64, 2>;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = avx2::F64x4;
    #[cfg(target_arch = "x86_64")]
    type Avx512 = avx512::F64x8;
    const EXP: &'static Table<f64> = &exp::F64;

    fn attend(call: &Call<'_, f64>) -> (Array4<f64>, Array3<f64>) {
        attend(call)
    }
}
