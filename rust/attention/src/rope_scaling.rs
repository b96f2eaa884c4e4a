//! How rotary frequencies are changed for texts longer than those that a model was trained on.
//!
//! f_i is the frequency of pair i, R the rotary size, L the length of the text, L0 the one trained for, s the
//! factor. Some methods also scale cosine and sine by an attention factor.
//!
//! Sources: Chen et al., "Extending Context Window of Large Language Models via Positional
//! Interpolation", 2023 (linear); Peng et al., "YaRN", 2023, sections 3.1 to 3.4 (yarn, and dynamic in
//! its appendix B); Llama 3.1 report, 2024 (llama3); Ding et al., "LongRoPE", 2024, and Phi-3's use of it.

use std::f64::consts::TAU;

/// One method with its settings. Lengths are in positions.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// All positions squeezed together by `factor`.
    Linear {
        /// s
        factor: f64,
    },
    /// A larger base, as soon as the text is longer than `original_length`.
    Dynamic {
        /// s
        factor: f64,
        /// L0
        original_length: usize,
        /// L; `None` = the largest position of the row plus 1.
        length: Option<usize>,
    },
    /// High frequencies kept, low ones squeezed, a ramp between them.
    Yarn {
        /// s
        factor: f64,
        /// L0
        original_length: usize,
        /// Turns within L0 from which on a frequency is kept; 32 in the paper.
        beta_fast: f64,
        /// Turns within L0 down to which one is squeezed whole; 1 in the paper.
        beta_slow: f64,
        /// `None` = 0.1 ln s + 1.
        attention_factor: Option<f64>,
        /// Whether the ends of the ramp are rounded to whole pairs.
        truncate: bool,
    },
    /// The same idea, the ramp being over wavelengths.
    Llama3 {
        /// s
        factor: f64,
        /// L0
        original_length: usize,
        /// Wavelengths above L0 by this are squeezed whole; 1 in Llama 3.1.
        low_freq_factor: f64,
        /// Wavelengths below L0 by this are kept; 4 in Llama 3.1.
        high_freq_factor: f64,
    },
    /// A factor of its own for each frequency, one set for short texts and one for long ones.
    LongRope {
        /// (R/2), while L <= L0.
        short_factor: Vec<f64>,
        /// (R/2), when L > L0.
        long_factor: Vec<f64>,
        /// L0
        original_length: usize,
        /// s, which only the attention factor depends on; `None` = 1.
        factor: Option<f64>,
        /// `None` = sqrt(1 + ln s / ln L0).
        attention_factor: Option<f64>,
        /// L; `None` = the largest position of the row plus 1.
        length: Option<usize>,
    },
}

impl RopeScaling {
    /// The changed frequencies (R/2) and the attention factor, for a text whose largest position
    /// plus 1 is `seen`.
    pub(crate) fn apply(&self, base: f64, f: &[f64], seen: f64) -> (Vec<f64>, f64) {
        let rotary_dim = 2.0 * f.len() as f64; // R
        let l0 = self.original_length() as f64; // L0
        let l = self.length().map_or(seen, |length| length as f64); // L
        match self {
            Self::Linear { factor: s } => {
                // 1. linear: position p turns like position p / s did
                (f.iter().map(|f| f / s).collect(), 1.0) // (R/2)
            }
            Self::Dynamic { factor: s, .. } => {
                // 2. dynamic: a base so much larger that the lowest frequency fits the length
                if l <= l0 || rotary_dim == 2.0 {
                    return (f.to_vec(), 1.0); // (R/2)
                }
                let stretch = s * l / l0 - (s - 1.0);
                let base = base * stretch.powf(rotary_dim / (rotary_dim - 2.0));
                (frequencies(base, f.len()), 1.0) // (R/2)
            }
            Self::Yarn { factor: s, beta_fast, beta_slow, attention_factor, truncate, .. } => {
                // 3. yarn: the pair that turns `beta` times within L0 is an end of the ramp
                let pair = |beta: f64| rotary_dim * (l0 / (TAU * beta)).ln() / (2.0 * base.ln());
                let (low, high) = (pair(*beta_fast), pair(*beta_slow));
                let (low, high) = if *truncate { (low.floor(), high.ceil()) } else { (low, high) };
                let within = |pair: f64| pair.max(0.0).min(rotary_dim - 1.0);
                let (low, high) = (within(low), within(high));
                let high = if low == high { low + 0.001 } else { high };
                let ramp = |i: usize| ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                let mixed = |(i, f): (usize, &f64)| f * (1.0 - ramp(i)) + f / s * ramp(i);
                let own = if *s > 1.0 { 0.1 * s.ln() + 1.0 } else { 1.0 };
                (f.iter().enumerate().map(mixed).collect(), attention_factor.unwrap_or(own))
            }
            Self::Llama3 { factor: s, low_freq_factor, high_freq_factor, .. } => {
                // 4. llama3: by wavelength, short ones kept, long ones divided, mixed between
                let (low, high) = (low_freq_factor, high_freq_factor);
                let scaled = |&f: &f64| {
                    let wavelength = TAU / f;
                    if wavelength < l0 / high {
                        f
                    } else if wavelength > l0 / low {
                        f / s
                    } else {
                        let t = (l0 / wavelength - low) / (high - low);
                        (1.0 - t) * f / s + t * f
                    }
                };
                (f.iter().map(scaled).collect(), 1.0) // (R/2)
            }
            Self::LongRope { short_factor, long_factor, factor, attention_factor, .. } => {
                // 5. longrope: the set of factors that fits the length
                let factors = if l > l0 { long_factor } else { short_factor }; // (R/2)
                let s = factor.unwrap_or(1.0);
                let own = if s > 1.0 { (1.0 + s.ln() / l0.ln()).sqrt() } else { 1.0 };
                let divided = f.iter().zip(factors).map(|(f, factor)| f / factor);
                (divided.collect(), attention_factor.unwrap_or(own))
            }
        }
    }

    /// Whether frequencies depend on how long a text is, and no length was given.
    pub(crate) fn follows_the_text(&self) -> bool {
        let by_length = matches!(self, Self::Dynamic { .. } | Self::LongRope { .. });
        by_length && self.length().is_none()
    }

    /// L0, where the method has one.
    fn original_length(&self) -> usize {
        match self {
            Self::Linear { .. } => 0,
            Self::Dynamic { original_length, .. }
            | Self::Yarn { original_length, .. }
            | Self::Llama3 { original_length, .. }
            | Self::LongRope { original_length, .. } => *original_length,
        }
    }

    /// L, where it was given.
    fn length(&self) -> Option<usize> {
        match self {
            Self::Dynamic { length, .. } | Self::LongRope { length, .. } => *length,
            _ => None,
        }
    }
}

/// base^(-i / count) for i = 0 .. count - 1, which is base^(-2i/R).
pub(crate) fn frequencies(base: f64, count: usize) -> Vec<f64> {
    (0..count).map(|i| base.powf(-(i as f64) / count as f64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: f64 = 10000.0;

    fn close(got: &[f64], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        // In units of 2^-53: a rounded exponent is off by what ln(base) < 11 makes of it; two such powers on each side,
        // and a few products and quotients, are below 64.
        let room = 32.0 * f64::EPSILON;
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() <= room * want.abs(), "got {got}, want {want}");
        }
    }

    #[test]
    fn linear_divides() {
        let (f, factor) = RopeScaling::Linear { factor: 4.0 }.apply(BASE, &[1.0, 0.5], 9.0);
        assert_eq!((f, factor), (vec![0.25, 0.125], 1.0));
    }

    #[test]
    fn dynamic_begins_after_the_original_length() {
        let f = frequencies(BASE, 4);
        let scaling = |length| RopeScaling::Dynamic { factor: 2.0, original_length: 8, length };
        assert_eq!(scaling(None).apply(BASE, &f, 8.0).0, f);
        // L = 16: 2·16/8 - 1 = 3, so the base grows by 3^(8/6), and the lowest frequency falls to a third.
        let (changed, _) = scaling(None).apply(BASE, &f, 16.0);
        close(
            &changed,
            &[f[0], f[1] / 3.0_f64.powf(1.0 / 3.0), f[2] / 3.0_f64.powf(2.0 / 3.0), f[3] / 3.0],
        );
        assert_eq!(scaling(Some(16)).apply(BASE, &f, 1.0).0, changed);
        assert_eq!(scaling(None).apply(BASE, &[1.0], 99.0).0, [1.0]); // R = 2
    }

    fn yarn(factor: f64, attention_factor: Option<f64>, truncate: bool) -> RopeScaling {
        RopeScaling::Yarn {
            factor,
            original_length: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor,
            truncate,
        }
    }

    #[test]
    fn yarn_keeps_the_fast_and_divides_the_slow() {
        let f = frequencies(BASE, 64);
        let (changed, factor) = yarn(16.0, None, true).apply(BASE, &f, 1.0);
        // ln(4096 / 64π) · 128 / (2 ln 10000) = 20.9…, ln(4096 / 2π) · 128 / … = 45.03…
        assert_eq!(changed[..=20], f[..=20]);
        assert_eq!(changed[46..], f[46..].iter().map(|f| f / 16.0).collect::<Vec<_>>());
        close(&[changed[33]], &[f[33] * (0.5 + 0.5 / 16.0)]);
        close(&[factor], &[0.1 * 16.0_f64.ln() + 1.0]);
        assert_eq!(yarn(0.5, None, true).apply(BASE, &f, 1.0).1, 1.0);
        assert_eq!(yarn(16.0, Some(0.7), true).apply(BASE, &f, 1.0).1, 0.7);
        let (exact, _) = yarn(16.0, None, false).apply(BASE, &f, 1.0);
        assert!(exact[21] < changed[20] && exact[45] < changed[44] && exact[45] > f[45] / 16.0);
    }

    #[test]
    fn llama3_by_wavelength() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            original_length: 100,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
        };
        let f: Vec<f64> = [24.0, 40.0, 101.0].iter().map(|wavelength| TAU / wavelength).collect();
        let (changed, factor) = scaling.apply(BASE, &f, 1.0);
        close(&changed, &[f[0], 0.5 * f[1] / 8.0 + 0.5 * f[1], f[2] / 8.0]); // 100/40 is halfway from 1 to 4
        assert_eq!(factor, 1.0);
    }

    #[test]
    fn longrope_has_two_sets() {
        let scaling = |factor| RopeScaling::LongRope {
            short_factor: vec![1.0, 2.0],
            long_factor: vec![4.0, 8.0],
            original_length: 16,
            factor,
            attention_factor: None,
            length: None,
        };
        assert_eq!(scaling(None).apply(BASE, &[1.0, 0.5], 16.0), (vec![1.0, 0.25], 1.0));
        let (f, factor) = scaling(Some(16.0)).apply(BASE, &[1.0, 0.5], 17.0);
        assert_eq!(f, [0.25, 0.0625]);
        close(&[factor], &[2.0_f64.sqrt()]);
    }
}
