"""Julia for machines that have none: Debian's own packages, unpacked into a private folder of the checkout.

Debian 12 and later carry no Julia; Debian 11 "bullseye" has 1.5.3. Its packages run on later Debians as
long as they bring their own libunwind and LLVM along, so they are unpacked into `.tools/julia/` and never
installed: no root is needed and nothing of the system changes. The mirror is the one that this machine's apt
uses already, and the signatures are checked against the keyring that Debian ships.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from steps import TOOLS, SetupError, relative, run_logged, write_executable

SUITE = "bullseye"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PREFIX = TOOLS / "julia"
LOG = "julia"

# Julia and every library it needs that a minimal Debian 12 lacks, or has in a version that breaks it:
# libunwind 1.6 crashes on the first exception thrown inside compiled code.
PACKAGES = """
    julia julia-common libjulia1 libbsd0 libcurl3-gnutls libdsfmt-19937-1 libedit2 libffi7 libgfortran5
    libgit2-1.1 libgmp10 libhttp-parser2.9 libldap-2.4-2 libllvm9 libmbedcrypto3 libmbedtls12 libmbedx509-0
    libmd0 libmpfr6 libopenlibm3 libpcre2-8-0 libpcre3 libquadmath0 libsasl2-2 libssh2-1 libunwind8
    libutf8proc2 libz3-4
"""

WAYS = """  - the official build through juliaup: see https://julialang.org/install
  - or any Julia 1.6 or later unpacked by hand, with its bin folder on PATH
  - or leave the port out, for example: make compare PORTS=python,rust,typescript"""

# An OpenBLAS older than the processor falls back to its slowest kernel, so the kernel is named by what the
# processor can do. Compiled Julia code goes into a depot inside the prefix, not into the user's own.
WRAPPER = """#!/bin/sh
# Made by scripts/setup.py. Starts the private Julia; its libraries are visible to this process only.
here=$(cd "$(dirname "$0")/../julia" && pwd) || exit 1
lib="$here/usr/lib/{triplet}"
export LD_LIBRARY_PATH="$lib:$lib/julia:$here/lib/{triplet}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
export JULIA_DEPOT_PATH="${{JULIA_DEPOT_PATH:-$here/depot}}"
if [ -z "${{OPENBLAS_CORETYPE:-}}" ]; then
    if grep -qw avx512vl /proc/cpuinfo; then
        export OPENBLAS_CORETYPE=SKYLAKEX
    elif grep -qw avx2 /proc/cpuinfo; then
        export OPENBLAS_CORETYPE=HASWELL
    fi
fi
exec "$here/usr/bin/julia" "$@"
"""


def install() -> None:
    """Downloads, verifies and unpacks Julia, and writes the wrapper `.tools/bin/julia` that starts it."""
    mirror = find_mirror()
    work = TOOLS / "julia-download"
    for folder in (work, PREFIX):
        shutil.rmtree(folder, ignore_errors=True)
    options = private_apt(work, mirror)
    try:
        run_logged(["apt-get", *options, "update"], LOG)
        run_logged(["apt-get", *options, "download", *PACKAGES.split()], LOG, cwd=work / "debs")
        for package in sorted((work / "debs").glob("*.deb")):
            run_logged(["dpkg", "-x", str(package), str(PREFIX)], LOG)
    except SetupError as error:
        raise SetupError(
            f"{error}\nNo Julia from Debian's suite {SUITE!r}. Ways to get one:\n{WAYS}"
        ) from None
    write_wrapper()
    prove()
    shutil.rmtree(work)


def find_mirror() -> str:
    """The Debian mirror that apt uses here. apt is asked, since its files may hold entries that are off."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    mirrors = [uri for uri in listed if uri.endswith("/debian/")]
    if not mirrors:
        raise SetupError(
            f"apt names no Debian mirror here, so there is no Julia package. Ways to get one:\n{WAYS}"
        )
    return mirrors[0]


def private_apt(work: Path, mirror: str) -> list[str]:
    """apt's options for a configuration of its own under `work`; the system's state is left alone."""
    for folder in ("lists/partial", "cache/archives/partial", "etc/preferences.d", "debs"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    (work / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror} {SUITE} main\n")
    settings = {
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferences": "-",
        "Dir::Etc::preferencesparts": work / "etc/preferences.d",
        "Dir::State::status": work / "status",
        "Dir::State::lists": work / "lists",
        "Dir::Cache": work / "cache",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Acquire::Retries": 3,
    }
    return ["-q", *(f"-o{name}={value}" for name, value in settings.items())]


def write_wrapper() -> bool:
    """Writes `.tools/bin/julia`; false when it is there already."""
    libraries = sorted((PREFIX / "usr/lib").glob("*-linux-gnu*"))
    if not libraries:
        raise SetupError(f"the unpacked packages have no libraries in {relative(PREFIX)}/usr/lib")
    return write_executable(TOOLS / "bin/julia", WRAPPER.format(triplet=libraries[0].name))


def prove() -> None:
    """Has Julia catch an exception from compiled code, which is what a wrong libunwind breaks."""
    probe = 'f(x) = x > 0 ? x : error("caught"); try f(-1) catch; print(VERSION) end'
    run_logged([str(TOOLS / "bin/julia"), "--startup-file=no", "-e", probe], LOG)
