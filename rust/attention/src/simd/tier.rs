//! Which instruction set the kernels use, chosen when they run.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use crate::errors::{AttentionError, Fault, Result};

/// The environment variable that forces a tier where a call names none. Read once.
const VARIABLE: &str = "ROSETTA_SIMD_TIER";

/// An instruction set, the widest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// AVX-512F: 16 f32 or 8 f64 in a register.
    Avx512,
    /// AVX2, FMA and F16C: 8 f32 or 4 f64 in a register.
    Avx2,
    /// NEON, of AArch64: 4 f32 or 2 f64 in a register.
    Neon,
    /// What every processor of the target has.
    Portable,
}

impl Tier {
    /// All tiers, the widest first.
    pub const ALL: [Self; 4] = [Self::Avx512, Self::Avx2, Self::Neon, Self::Portable];

    /// Whether this machine has it.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => is_x86_feature_detected!("avx512f"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 | Self::Avx2 => false,
            // In the order of bytes that the widening loads are written for.
            #[cfg(target_arch = "aarch64")]
            Self::Neon => {
                cfg!(target_endian = "little") && std::arch::is_aarch64_feature_detected!("neon")
            }
            #[cfg(not(target_arch = "aarch64"))]
            Self::Neon => false,
            Self::Portable => true,
        }
    }

    /// The tier that a call asks for, else the one that `ROSETTA_SIMD_TIER` names, else the widest
    /// that this machine has.
    ///
    /// # Errors
    /// `Unsupported` for a tier that this machine lacks, `InvalidConfig` for an unknown name.
    pub fn choose(asked: Option<Self>) -> Result<Self> {
        static FORCED: LazyLock<Option<String>> = LazyLock::new(|| std::env::var(VARIABLE).ok());
        Self::chosen(asked, FORCED.as_deref(), Self::is_available)
    }

    /// `choose`, given what the variable says and what the machine has.
    fn chosen(
        asked: Option<Self>,
        forced: Option<&str>,
        is_available: impl Fn(Self) -> bool,
    ) -> Result<Self> {
        let named = match (asked, forced) {
            (None, Some(name)) => Some(name.parse()?),
            _ => asked,
        };
        match named {
            None => Ok(Self::ALL.into_iter().find(|&tier| is_available(tier)).expect("portable")),
            Some(tier) if is_available(tier) => Ok(tier),
            Some(tier) => Err(AttentionError::Unsupported(format!("tier.{tier}"))),
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Neon => "neon",
            Self::Portable => "portable",
        })
    }
}

impl FromStr for Tier {
    type Err = AttentionError;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|tier| tier.to_string() == name).ok_or_else(|| {
            let expected = "avx512, avx2, neon or portable";
            AttentionError::InvalidConfig(Fault::new("sdpa", "tier", expected, name))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Tier::{Avx2, Avx512, Neon, Portable};
    use super::*;

    #[test]
    fn the_call_goes_before_the_variable_before_the_machine() {
        let on = |machine: &[Tier], asked, forced| {
            let chosen = Tier::chosen(asked, forced, |tier| machine.contains(&tier));
            chosen.map_err(|error| error.to_string())
        };
        let (all, narrow) = (&Tier::ALL, &[Avx2, Portable]);
        assert_eq!((on(all, None, None), on(narrow, None, None)), (Ok(Avx512), Ok(Avx2)));
        assert_eq!(on(&[Portable], None, None), Ok(Portable));
        assert_eq!(on(&[Neon, Portable], None, None), Ok(Neon));
        assert_eq!(on(all, None, Some("portable")), Ok(Portable));
        assert_eq!(on(all, Some(Avx2), Some("portable")), Ok(Avx2));
        assert_eq!(on(all, Some(Avx2), Some("sse9")), Ok(Avx2));
        let missing = Err("tier.avx512 is not offered here".into());
        assert_eq!(on(narrow, Some(Avx512), None), missing);
        assert_eq!(on(narrow, None, Some("avx512")), missing);
        assert_eq!(on(narrow, None, Some("neon")), Err("tier.neon is not offered here".into()));
        let unknown = "sdpa: tier: expected avx512, avx2, neon or portable, got sse9";
        assert_eq!(on(all, None, Some("sse9")), Err(unknown.into()));
    }
}
