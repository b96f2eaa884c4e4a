//! Tells the module which compiler built it.

use std::env::var;
use std::process::Command;

fn main() {
    let rustc = var("RUSTC").expect("cargo sets it");
    let said = Command::new(rustc).arg("--version").output().expect("a compiler that runs").stdout;
    let said = String::from_utf8(said).expect("a version in UTF-8");
    let words: Vec<&str> = said.split_whitespace().take(2).collect(); // "rustc 1.95.0 (hash date)"
    println!("cargo::rustc-env=RUSTC_VERSION={}", words.join(" "));
    println!("cargo::rerun-if-changed=build.rs");
}
