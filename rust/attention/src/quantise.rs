//! Numbers in few bits: half floats, fp8, and integers with a scale for each group of channels.
//!
//! ```text
//! symmetric    scale = max |x| / 127           code = x / scale             value = code · scale
//! zero point   scale = (max - min) / 255       code = (x - min) / scale     value = code · scale + min
//! ```
//!
//! The same with 7 and 15 for int4. Every division, product and sum is one in f32, rounded on its own, and
//! codes are rounded half to even, so that all languages make the same codes.
//!
//! Letters: n channels of one token and head, g = ceil(n / group) groups of them.
//!
//! Sources: Jacob et al., "Quantization and Training of Neural Networks for Efficient
//! Integer-Arithmetic-Only Inference", 2018, section 2.1 (scale and zero point); Micikevicius et al., "FP8
//! Formats for Deep Learning", 2022, table 1 (e4m3).

use std::fmt::{self, Display};
use std::str::FromStr;

use half::{bf16, f16};
use ndarray::{Array, ArrayRef, Axis, Dimension};

use crate::checks::{check_codes, check_group, check_range};
use crate::errors::{AttentionError, Fault, Result};
use crate::fp8::{e4m3_code, e4m3_value};

/// What a number is stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// 11 bits of precision.
    F16,
    /// 8 bits of precision, the range of f32.
    Bf16,
    /// Integers of 8 bits, with a scale.
    Int8,
    /// Integers of 4 bits, with a scale; two of them a byte.
    Int4,
    /// 4 bits of precision up to 448, where it saturates.
    Fp8E4m3,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::F16, Self::Bf16, Self::Int8, Self::Int4, Self::Fp8E4m3];

    /// Whether numbers are multiples of a scale.
    pub fn is_integer(self) -> bool {
        matches!(self, Self::Int8 | Self::Int4)
    }

    /// How many bytes the codes of `n` channels take.
    fn bytes(self, n: usize) -> usize {
        match self {
            Self::F16 | Self::Bf16 => n.saturating_mul(2),
            Self::Int8 | Self::Fp8E4m3 => n,
            Self::Int4 => n.div_ceil(2),
        }
    }
}

impl Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::Fp8E4m3 => "fp8_e4m3",
        })
    }
}

impl FromStr for Format {
    type Err = AttentionError;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|format| format.to_string() == name).ok_or_else(|| {
            let expected = "f16, bf16, int8, int4 or fp8_e4m3";
            AttentionError::InvalidConfig(Fault::new("quantise", "format", expected, name))
        })
    }
}

/// How numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantisation {
    /// What a code is.
    pub format: Format,
    /// Neighbouring channels that share a scale, the last group perhaps being shorter; `None` = all.
    pub group: Option<usize>,
    /// Whether codes count from the minimum of their group on, and not from 0.
    pub zero_point: bool,
}

impl Quantisation {
    /// Bytes of codes, scales and zeros of a token and head with `n` channels.
    pub(crate) fn sizes(&self, n: usize) -> (usize, usize, usize) {
        let groups = n.div_ceil(self.group_of(n));
        let scales = if self.format.is_integer() { groups } else { 0 };
        (self.format.bytes(n), scales, if self.zero_point { scales } else { 0 })
    }

    /// The group for `n` channels.
    pub(crate) fn group_of(&self, n: usize) -> usize {
        self.group.unwrap_or(n).max(1)
    }

    /// The lowest and the highest code.
    fn range(&self) -> (f32, f32) {
        match (self.format, self.zero_point) {
            (Format::Int4, true) => (0.0, 15.0),
            (Format::Int4, false) => (-7.0, 7.0),
            (_, true) => (0.0, 255.0),
            (_, false) => (-127.0, 127.0),
        }
    }
}

/// Numbers (…, n) as they are stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Codes<D: Dimension> {
    /// How they are.
    pub quantisation: Quantisation,
    /// n.
    pub channels: usize,
    /// (…, bytes): int8 and fp8 one a channel, int4 half a one, f16 and bf16 two, the low one first.
    pub codes: Array<u8, D>,
    /// (…, g), or (…, 0) without scales.
    pub scale: Array<f32, D>,
    /// (…, g), or (…, 0) without zero points: what code 0 stands for.
    pub zero: Array<f32, D>,
}

/// The codes of `x` (…, n), at least one axis.
///
/// # Errors
/// `ShapeMismatch`, `InvalidConfig`: among other things for a group of integers with a number that is not finite.
///
/// ```
/// use ndarray::array;
/// use rosetta_attention::{Format, Quantisation, quantise, restore};
/// let int8 = Quantisation { format: Format::Int8, group: None, zero_point: false };
/// let codes = quantise(&array![[-1.0, 0.5, 1.0], [0.0, 0.0, 0.0]], int8)?;
/// assert_eq!(codes.codes.mapv(|code| code as i8), array![[-127, 64, 127], [0, 0, 0]]); // 63.5, half to even
/// assert_eq!(restore(&codes)?[[0, 2]], 1.0);
/// # Ok::<(), rosetta_attention::AttentionError>(())
/// ```
pub fn quantise<D: Dimension>(
    x: &ArrayRef<f32, D>,
    quantisation: Quantisation,
) -> Result<Codes<D>> {
    check_group("quantise", x.shape(), &quantisation)?;
    let n = x.len_of(Axis(x.ndim() - 1));
    let (group, integer) = (quantisation.group_of(n), quantisation.format.is_integer());
    let (mut codes, mut scales, mut zeros) = (vec![], vec![], vec![]);
    for lane in x.lanes(Axis(x.ndim() - 1)) {
        let lane = lane.to_vec(); // (n)
        if !integer {
            codes.extend(lane.iter().flat_map(|&x| float_code(x, quantisation.format)));
            continue;
        }
        let mut rounded = Vec::with_capacity(n); // (n)
        for channels in lane.chunks(group) {
            let (scale, zero) = integer_codes(channels, &quantisation, &mut rounded)?;
            scales.push(scale);
            zeros.extend(quantisation.zero_point.then_some(zero));
        }
        codes.extend(packed(&rounded, quantisation.format));
    }
    let (bytes, groups, zero_groups) = quantisation.sizes(n);
    Ok(Codes {
        quantisation,
        channels: n,
        codes: with_last(x, bytes, codes),
        scale: with_last(x, groups, scales),
        zero: with_last(x, zero_groups, zeros),
    })
}

/// Adds the codes of one group to others; its scale, and a zero of 0 where there is none.
pub(crate) fn integer_codes(
    group: &[f32],
    quantisation: &Quantisation,
    codes: &mut Vec<i16>,
) -> Result<(f32, f32)> {
    // 1. scale: so that the largest number of the group gets the largest code
    let (scale, zero) = scale_and_zero(group, quantisation);
    check_range("quantise", group, scale)?;

    // 2. round: half to even; a group without extent has no scale to divide by
    let (low, high) = quantisation.range();
    let round = |&x: &f32| ((x - zero) / scale).round_ties_even().clamp(low, high) as i16;
    codes.extend(group.iter().map(|x| if scale == 0.0 { 0 } else { round(x) }));
    Ok((scale, zero))
}

/// The bytes of a lane of integers.
pub(crate) fn packed(codes: &[i16], format: Format) -> Vec<u8> {
    // 3. pack: int4 two a byte, the even channel in the low four bits
    let pair = |pair: &[i16]| {
        let high = pair.get(1).map_or(0, |code| code & 15);
        ((high << 4) | (pair[0] & 15)) as u8
    };
    match format {
        Format::Int4 => codes.chunks(2).map(pair).collect(),
        _ => codes.iter().map(|&code| code as u8).collect(),
    }
}

/// The numbers (…, n) that codes stand for.
///
/// # Errors
/// `ShapeMismatch` for parts that do not fit together, `InvalidConfig`.
pub fn restore<D: Dimension>(codes: &Codes<D>) -> Result<Array<f32, D>> {
    check_codes("restore", codes)?;
    Ok(restored(codes))
}

/// `restore` of codes that were made here.
pub(crate) fn restored<D: Dimension>(codes: &Codes<D>) -> Array<f32, D> {
    let Codes { quantisation, channels, .. } = codes;
    let last = Axis(codes.codes.ndim() - 1);
    let mut values = vec![];
    let scales = codes.scale.lanes(last).into_iter().zip(codes.zero.lanes(last));
    for (lane, (scale, zero)) in codes.codes.lanes(last).into_iter().zip(scales) {
        let (lane, scale, zero) = (lane.to_vec(), scale.to_vec(), zero.to_vec());
        let channels = 0..*channels;
        values.extend(
            channels.map(|at| value(&lane, &scale, &zero, at, codes.channels, quantisation)),
        );
    }
    with_last(&codes.codes, *channels, values)
}

/// What one code of a lane of `n` channels stands for, with the scales and zeros of its groups.
pub(crate) fn value(
    lane: &[u8],
    scale: &[f32],
    zero: &[f32],
    channel: usize,
    n: usize,
    quantisation: &Quantisation,
) -> f32 {
    // 4. restore: the way back, rounded after the product and after the sum
    if !quantisation.format.is_integer() {
        return float_value(lane, channel, quantisation.format);
    }
    let group = channel / quantisation.group_of(n);
    let value = integer_code(lane, channel, quantisation) * scale[group];
    zero.get(group).map_or(value, |zero| value + zero)
}

/// Of one group; a zero of 0 where there is none.
fn scale_and_zero(channels: &[f32], quantisation: &Quantisation) -> (f32, f32) {
    let (_, high) = quantisation.range();
    if quantisation.zero_point {
        let least = channels.iter().copied().fold(f32::INFINITY, f32::min);
        let most = channels.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        ((most - least) / high, least + 0.0) // -0 becomes 0
    } else {
        (channels.iter().map(|x| x.abs()).fold(0.0, f32::max) / high, 0.0)
    }
}

/// One code of a lane of integers.
pub(crate) fn integer_code(lane: &[u8], channel: usize, quantisation: &Quantisation) -> f32 {
    match (quantisation.format, quantisation.zero_point) {
        (Format::Int4, zero_point) => {
            let four = (lane[channel / 2] >> (channel % 2 * 4)) & 15;
            let negative = !zero_point && four >= 8;
            f32::from(four) - if negative { 16.0 } else { 0.0 }
        }
        (_, true) => f32::from(lane[channel]),
        (_, false) => f32::from(lane[channel] as i8),
    }
}

/// The bytes of a number that needs no scale.
fn float_code(x: f32, format: Format) -> Vec<u8> {
    match format {
        Format::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
        Format::Bf16 => bf16::from_f32(x).to_le_bytes().to_vec(),
        _ => vec![e4m3_code(x)],
    }
}

/// One number of a lane of such.
fn float_value(lane: &[u8], channel: usize, format: Format) -> f32 {
    let pair = || [lane[2 * channel], lane[2 * channel + 1]];
    match format {
        Format::F16 => f16::from_le_bytes(pair()).to_f32(),
        Format::Bf16 => bf16::from_le_bytes(pair()).to_f32(),
        _ => e4m3_value(lane[channel]),
    }
}

/// Values in the shape of `x`, but for the size of its last axis.
fn with_last<A, E, D: Dimension>(x: &ArrayRef<A, D>, last: usize, values: Vec<E>) -> Array<E, D> {
    let mut shape = x.raw_dim();
    shape[x.ndim() - 1] = last;
    Array::from_shape_vec(shape, values).expect("one lane after the other")
}

#[cfg(test)]
mod tests {
    use ndarray::{Array1, array};

    use super::*;

    fn int(format: Format, zero_point: bool) -> Quantisation {
        Quantisation { format, group: None, zero_point }
    }

    fn float(format: Format) -> Quantisation {
        int(format, false)
    }

    #[test]
    fn degenerate_groups() {
        let zero = quantise(&Array1::zeros(4), int(Format::Int8, false)).unwrap(); // no scale to divide by
        assert_eq!((zero.scale[0], restored(&zero)), (0.0, Array1::zeros(4)));
        let constant = quantise(&array![0.7, 0.7, 0.7, 0.7], int(Format::Int8, true)).unwrap();
        assert_eq!(restored(&constant), Array1::from_elem(4, 0.7));
        let ends = quantise(&array![-1.0, 1.0], int(Format::Int8, false)).unwrap();
        assert_eq!(ends.codes.mapv(|code| code as i8), array![-127, 127]);
        assert_eq!(restored(&ends), array![-1.0, 1.0]);
        // The scale of the smallest number rounds to 0.
        let tiny = quantise(&array![1e-45, -1e-45], int(Format::Int8, false)).unwrap();
        assert_eq!((tiny.scale[0], restored(&tiny)), (0.0, array![0.0, 0.0]));
    }

    #[test]
    fn int4_is_packed() {
        let codes =
            quantise(&array![7.0, -7.0, 3.0, -1.0, -2.0], int(Format::Int4, false)).unwrap();
        assert_eq!(codes.codes, array![0x97, 0xf3, 0x0e]);
        assert_eq!(restored(&codes), array![7.0, -7.0, 3.0, -1.0, -2.0]);
        let codes = quantise(&array![1.0, 16.0, 3.0], int(Format::Int4, true)).unwrap();
        assert_eq!((codes.codes.clone(), codes.zero[0]), (array![0xf0, 0x02], 1.0));
        assert_eq!(restored(&codes), array![1.0, 16.0, 3.0]);
    }

    #[test]
    fn groups_have_scales_of_their_own() {
        let grouped = Quantisation { group: Some(2), ..int(Format::Int8, false) };
        let x = array![[127.0, 1.0, 1.0, 0.5, 254.0], [0.0, 0.0, 1.0, 1.0, 1.0]];
        let codes = quantise(&x, grouped).unwrap();
        assert_eq!(codes.scale, array![[1.0, 1.0 / 127.0, 2.0], [0.0, 1.0 / 127.0, 1.0 / 127.0]]);
        assert_eq!(codes.codes.row(0), array![127, 1, 127, 64, 127]);
    }

    #[test]
    fn floats_are_cast() {
        let x = array![1.0 + 2.0_f32.powi(-11), f32::INFINITY, -0.0];
        assert_eq!(
            restored(&quantise(&x, float(Format::F16)).unwrap()),
            array![1.0, f32::INFINITY, 0.0]
        );
        assert_eq!(quantise(&x, float(Format::Bf16)).unwrap().codes[1], 0x3f);
        assert_eq!(restored(&quantise(&x, float(Format::Fp8E4m3)).unwrap())[1], 448.0);
    }

    #[test]
    fn faults() {
        let code = |x: Array1<f32>, quantisation| quantise(&x, quantisation).unwrap_err().code();
        for bad in [f32::NAN, f32::INFINITY] {
            assert_eq!(code(array![1.0, bad], int(Format::Int8, false)), "invalid_config");
            assert_eq!(code(array![1.0, bad], int(Format::Int4, true)), "invalid_config");
        }
        assert_eq!(code(array![f32::MAX, f32::MIN], int(Format::Int8, true)), "invalid_config");
        assert_eq!(code(array![1.0], int(Format::F16, true)), "invalid_config");
        let none = Quantisation { group: Some(0), ..int(Format::Int8, false) };
        assert_eq!(code(array![1.0], none), "invalid_config");
        assert_eq!("int2".parse::<Format>().unwrap_err().code(), "invalid_config");
    }
}
