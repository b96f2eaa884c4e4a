#!/bin/sh
# Names every toolchain that this machine lacks, all at once, with the command that installs it.
#
#   sh scripts/toolchains.sh python rust rust-lint julia
#
# A shell script, because it must also be able to say that Python is missing. Only looks; changes nothing.
# Status 0: all there. Status 1: something is missing.

python=${PYTHON:-python3}
missing=0

need() { # need WHAT COMMAND: one missing thing and the command that installs it
    if [ "$missing" -eq 0 ]; then
        echo "Missing on this machine:" >&2
    fi
    missing=$((missing + 1))
    printf '  %s\n      %s\n' "$1" "$2" >&2
}

has() {
    command -v "$1" >/dev/null 2>&1
}

check_python() {
    if ! has "$python"; then
        need "Python 3.11 or later ($python)" "sudo apt-get install python3 python3-venv"
    elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        need "Python 3.11 or later ($python is $("$python" --version 2>&1))" \
            "sudo apt-get install python3 python3-venv   (or name another one: make PYTHON=python3.12 ...)"
    elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        need "Python's venv module with pip (ensurepip)" "sudo apt-get install python3-venv"
    fi
}

check_rust() {
    minimum=89 # AVX-512 intrinsics
    minor=$(cargo --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\)\..*/\1/p')
    rustup="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh   (then open a new shell)"
    if [ -z "$minor" ]; then
        need "Rust 1.$minimum or later with cargo" "$rustup"
    elif [ "$minor" -lt "$minimum" ]; then
        need "Rust 1.$minimum or later (cargo is 1.$minor)" "rustup update stable   (no rustup: $rustup)"
    fi
    if ! has cc; then
        need "a C compiler (cc), which Rust links with" "sudo apt-get install gcc libc6-dev"
    fi
}

check_rust_lint() {
    if has cargo && ! { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1; then
        need "rustfmt and clippy" "rustup component add rustfmt clippy"
    fi
}

check_rust_aarch64() {
    target=aarch64-unknown-linux-gnu
    if has rustc && [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]; then
        need "Rust's standard library for $target" \
            "rustup target add $target   (Debian's Rust: sudo dpkg --add-architecture arm64 && sudo apt-get update && \
sudo apt-get install libstd-rust-dev:arm64)"
    fi
}

check_julia() {
    here=$(cd "$(dirname "$0")/.." && pwd)
    version=$(julia --version 2>/dev/null | sed -n 's/^julia version 1\.\([0-9]*\)\..*/\1/p')
    if [ "${version:-0}" -ge 6 ] || [ -x "$here/.tools/bin/julia" ]; then
        return
    fi
    # Without one, set-up unpacks Debian's packages. That takes apt, dpkg and the keyring that checks signatures.
    if has apt-get && has dpkg && [ -f /usr/share/keyrings/debian-archive-keyring.gpg ]; then
        return
    fi
    need "Julia 1.6 or later (and this is no Debian whose packages could serve)" \
        "curl -fsSL https://install.julialang.org | sh   (then open a new shell)"
}

for what in "$@"; do
    case $what in
    python) check_python ;;
    rust) check_rust ;;
    rust-lint) check_rust_lint ;;
    rust-aarch64) check_rust_aarch64 ;;
    julia) check_julia ;;
    *)
        echo "toolchains.sh: unknown toolchain '$what'" >&2
        exit 2
        ;;
    esac
done
[ "$missing" -eq 0 ]
