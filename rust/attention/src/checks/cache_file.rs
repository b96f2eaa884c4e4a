//! What the file of a cache must be before anything of it is believed.

use std::collections::HashMap;

use safetensors::Dtype;

use super::caches::LAST_POSITION;
use super::require;
use crate::cache_content::Description;
use crate::errors::AttentionError::{DtypeMismatch, InvalidConfig, InvalidFile};
use crate::errors::Result;
use crate::rows::Rows;

/// Types that a file may name.
const DTYPES: [&str; 4] = ["f16", "bf16", "f32", "f64"];

/// The file of a cache, and of a version that is known.
pub(crate) fn check_file(
    name: &'static str,
    said: &HashMap<String, String>,
    signature: &[(&'static str, &str)],
) -> Result<()> {
    for &(field, value) in signature {
        let got = said.get(field).map_or("nothing", String::as_str);
        require(got == value, InvalidFile, name, field, value, got)?;
    }
    Ok(())
}

/// What the file says of itself against what the cache says, of which a few need not agree, and a few are absent
/// where they are the default.
pub(crate) fn check_described(
    name: &'static str,
    said: &HashMap<String, String>,
    own: &Description,
    free: &[&str],
    optional: &[&str],
) -> Result<()> {
    let text = |field: &str| said.get(field).map(String::as_str);
    for field in ["kind", "batch", "dtype"] {
        require(text(field).is_some(), InvalidFile, name, "metadata", field, "nothing")?;
    }
    let dtype = text("dtype").unwrap_or_default();
    require(DTYPES.contains(&dtype), InvalidFile, name, "dtype", "a float type", dtype)?;
    let compared = |(field, _): &&(&str, String)| !free.contains(field) && *field != "dtype";
    for (field, value) in own.0.iter().filter(compared) {
        let absent = text(field).is_none() && !optional.contains(field);
        let error = if absent { InvalidFile } else { InvalidConfig };
        let got = text(field).unwrap_or("nothing");
        require(got == value, error, name, field, value, got)?;
    }
    for field in optional.iter().filter(|field| own.0.iter().all(|(own, _)| own != *field)) {
        let got = text(field).unwrap_or_default();
        require(
            text(field).is_none(),
            InvalidConfig,
            name,
            "metadata",
            format_args!("no {field}"),
            got,
        )?;
    }
    let own_dtype = own.0.iter().find(|(field, _)| *field == "dtype");
    let own_dtype = own_dtype.map_or("none", |(_, dtype)| dtype);
    require(dtype == own_dtype, DtypeMismatch, name, "dtype", own_dtype, dtype)
}

/// One tensor of the file, where there is one, in type and shape.
pub(crate) fn check_tensor(
    name: &'static str,
    argument: &'static str,
    (dtype, shape): (Dtype, &[usize]),
    got: Option<(Dtype, &[usize])>,
) -> Result<()> {
    let expected = format!("{dtype} {shape:?}");
    let found = got.map_or("nothing".into(), |(dtype, shape)| format!("{dtype} {shape:?}"));
    require(found == expected, InvalidFile, name, argument, &expected, &found)
}

/// Lengths from 0 to L, and that many positions in each row, ascending from 0 and below what comes next.
pub(crate) fn check_file_rows(
    name: &'static str,
    (lengths, next): (&[i64], &[i64]),
    positions: &[&[i64]],
    longest: usize,
) -> Result<()> {
    for ((&length, &next), row) in lengths.iter().zip(next).zip(positions) {
        let good = (0..=longest as i64).contains(&length);
        let expected = format_args!("values from 0 to {longest}");
        require(good, InvalidFile, name, "lengths", expected, length)?;
        let (held, beyond) = row.split_at(length as usize);
        let ascends = held.is_sorted_by(|before, after| before < after);
        let bounded = held.first().is_none_or(|&first| first >= 0);
        let good = ascends && bounded && beyond.iter().all(|&position| position == -1);
        let expected = "ascending positions from 0 on, and -1 beyond a row";
        require(good, InvalidFile, name, "positions", expected, format_args!("{row:?}"))?;
        let good =
            (held.last().map_or(0, |last| last.saturating_add(1))..=LAST_POSITION).contains(&next);
        require(good, InvalidFile, name, "next", "a position after the last one", next)?;
    }
    Ok(())
}

/// Rows of a kind that forgets from the end only.
pub(crate) fn check_whole_rows(name: &'static str, rows: &Rows) -> Result<()> {
    let expected = "positions without a gap";
    require(rows.is_whole(), InvalidFile, name, "positions", expected, rows.positions())
}
