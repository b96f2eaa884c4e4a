//! Codes that a caller has put together: what does not fit is refused.

use ndarray::{Array2, Ix2, arr0, array, s};
use rosetta_attention::{Codes, Format, Quantisation, quantise, restore};

const INT4: Quantisation = Quantisation { format: Format::Int4, group: None, zero_point: true };
const F16: Quantisation = Quantisation { format: Format::F16, group: None, zero_point: false };

/// 15 steps of 1 between the smallest and the largest of each row, so nothing is rounded.
fn numbers() -> Array2<f32> {
    array![[1.0, 16.0, 3.0], [4.0, 19.0, 6.0]]
}

/// Codes (2, 2), scales and zeros (2, 1) of 3 channels.
fn whole() -> Codes<Ix2> {
    quantise(&numbers(), INT4).unwrap()
}

#[test]
fn codes_that_fit_are_restored() {
    assert_eq!(restore(&whole()).unwrap(), numbers());
}

#[test]
fn parts_that_do_not_fit_together() {
    let whole = whole();
    let int8 = Quantisation { format: Format::Int8, ..INT4 };
    for inconsistent in [
        Codes { channels: 5, ..whole.clone() },
        Codes { channels: usize::MAX, ..whole.clone() },
        Codes { codes: whole.codes.slice(s![.., ..1]).to_owned(), ..whole.clone() },
        Codes { scale: whole.scale.slice(s![.., ..0]).to_owned(), ..whole.clone() },
        Codes { scale: whole.scale.slice(s![..1, ..]).to_owned(), ..whole.clone() },
        Codes { zero: whole.zero.slice(s![.., ..0]).to_owned(), ..whole.clone() },
        Codes { quantisation: F16, ..whole.clone() },
        Codes { quantisation: int8, ..whole.clone() },
    ] {
        assert_eq!(restore(&inconsistent).unwrap_err().code(), "shape_mismatch");
    }
    let (scale, zero) = (arr0(0.0), arr0(0.0));
    let rank_0 = Codes { quantisation: F16, channels: 0, codes: arr0(0), scale, zero };
    assert_eq!(restore(&rank_0).unwrap_err().code(), "shape_mismatch");
    let groupless = Quantisation { group: Some(0), ..INT4 };
    let error = restore(&Codes { quantisation: groupless, ..whole }).unwrap_err();
    assert_eq!(error.code(), "invalid_config");
}
