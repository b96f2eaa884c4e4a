//! All tests from outside the library, one module a file: as one program they share what they compile and link.
//!
//! `cargo test --test main simd::` runs those of one module.

mod cache_properties;
mod caches;
mod common;
mod eviction;
mod eviction_properties;
mod family;
mod fixtures;
mod kv_cache;
mod layers;
mod linear;
mod mha;
mod properties;
mod quantise;
mod sdpa;
mod simd;
mod simd_caches;
mod sparse;
mod threads;

/// A file that is no module would be passed over in silence.
#[test]
fn every_file_is_a_module() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for entry in folder.read_dir().expect("a folder").map(|entry| entry.expect("one")) {
        let path = entry.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("a name");
        let found = include_str!("main.rs").lines().any(|line| line == format!("mod {stem};"));
        assert!(found || stem == "main", "{}", path.display());
    }
}
