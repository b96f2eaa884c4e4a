#!/bin/sh
# Checks the Rust library for AArch64, whose NEON kernels no test on another processor reaches.
#
#   sh scripts/aarch64.sh
#
# Compiles the library and its tests. Runs them where the machine is an AArch64 itself, or has what emulates one: an
# emulator (qemu-aarch64), a linker, and a C library for the target. Without these it says what it left out.
# Status 0: what could be done passed. Other: something failed, or the target's standard library is missing.
# CARGO_FLAGS is handed to cargo: CARGO_FLAGS=--offline

set -e
cd "$(dirname "$0")/../rust"
target=aarch64-unknown-linux-gnu
emulator=qemu-aarch64
linker=aarch64-linux-gnu-gcc
libraries=/usr/aarch64-linux-gnu
what="-p rosetta-attention --target $target --lib --tests"

sh ../scripts/toolchains.sh rust rust-aarch64
# Words of their own: CARGO_FLAGS and `what` are lists.
# shellcheck disable=SC2086
cargo check --locked $CARGO_FLAGS $what

if [ "$(uname -m)" != aarch64 ]; then
    for command in "$emulator" "$linker"; do
        if ! command -v "$command" >/dev/null 2>&1; then
            echo "aarch64: it compiles; the tests were not run, there is no $command" >&2
            echo "    sudo apt-get install qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross" >&2
            exit 0
        fi
    done
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER="$linker"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$emulator -L $libraries"
fi
# shellcheck disable=SC2086
cargo test --locked $CARGO_FLAGS $what
