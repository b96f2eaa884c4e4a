//! Numbers in 8 bits: a sign, four bits of exponent and three of fraction, no infinity.
//!
//! Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022, table 1 (e4m3).

use std::sync::LazyLock;

/// The number that each code stands for.
pub(crate) static E4M3: LazyLock<[f32; 256]> =
    LazyLock::new(|| std::array::from_fn(|code| e4m3_value(code as u8)));

/// The nearest of the numbers with four bits of precision, half to even, at most 448 in size.
pub(crate) fn e4m3_code(x: f32) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let size = x.abs().min(448.0);
    let exponent = ((size.to_bits() >> 23) as i32 - 127).max(-6); // subnormal below 2^-6
    let steps = (size / 2.0_f32.powi(exponent - 3)).round_ties_even(); // 8 to 16 of them, or less than 8
    sign | (steps as i32 + 8 * (exponent + 6)) as u8 // the eighth step is what counts the exponent up
}

/// The number that a code stands for.
pub(crate) fn e4m3_value(code: u8) -> f32 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match (code & 0x7f, exponent) {
        (0x7f, _) => f32::NAN,
        (_, 0) => fraction * 2.0_f32.powi(-9),
        _ => (8.0 + fraction) * 2.0_f32.powi(exponent - 10),
    };
    if code & 0x80 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_fp8() {
        let mut before = 0.0;
        for code in 0..0x7f_u8 {
            let value = e4m3_value(code);
            assert_eq!((e4m3_code(value), e4m3_code(-value)), (code, code | 0x80));
            if code > 0 {
                let middle = (before + value) / 2.0; // exact
                assert_eq!(e4m3_code(middle), if code % 2 == 0 { code } else { code - 1 });
                assert_eq!(e4m3_code(middle.next_up()), code);
                assert_eq!(e4m3_code(middle.next_down()), code - 1);
            }
            before = value;
        }
        assert_eq!(before, 448.0);
        for huge in [448.1, 464.0, 1e30, f32::INFINITY] {
            assert_eq!((e4m3_code(huge), e4m3_code(-huge)), (0x7e, 0xfe));
        }
        assert_eq!((e4m3_code(-f32::NAN), e4m3_code(-0.0)), (0x7f, 0x80));
        assert!(e4m3_value(0x7f).is_nan() && e4m3_value(0xff).is_nan());
    }
}
