"""Formatters, linters and type checkers of every language: `make lint` looks, `make fmt` (--fix) repairs.

Every check runs, whatever the others say; the last line counts them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from steps import ROOT, TOOLS, VENV, SetupError, log_path, relative, run_logged, say

# Rust's peers, a workspace of their own.
RUST_PEERS = ROOT / "rust/peers"


@dataclass(frozen=True)
class Check:
    """One check: a command, or a function that raises SetupError with what is wrong."""

    name: str
    run: list[str] | Callable[[], None]
    folder: Path = ROOT


def main() -> int:
    """Runs the checks of the chosen languages; the status is 1 when one failed."""
    parser = argparse.ArgumentParser(description="Checks (or with --fix repairs) the form of the sources.")
    parser.add_argument("--ports", default="", metavar="A,B", help="only the languages of these ports")
    parser.add_argument("--fix", action="store_true", help="format, and repair what a linter can repair")
    arguments = parser.parse_args()
    ports = [name.strip() for name in arguments.ports.split(",") if name.strip()]
    checks = repairs(ports) if arguments.fix else all_checks(ports)
    log_path("lint").unlink(missing_ok=True)
    failed = [check.name for check in checks if not passes(check)]
    if failed:
        say(f"failed: {', '.join(failed)}")
    say(f"{len(checks) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def chosen(ports: list[str], *names: str) -> bool:
    """Whether a language is looked at: all are, unless ports are named."""
    return not ports or any(name in ports for name in names)


def all_checks(ports: list[str]) -> list[Check]:
    """What `make lint` looks at. Python always, since the harness is written in it."""
    ruff = str(VENV / "bin/ruff")
    # Without torch its own types are not there to check against.
    without_torch = [] if chosen(ports, "torch") else ["--exclude", "/torch/|torch_port"]
    checks = [
        Check("requirements agree", check_requirements),
        Check("no registry address in npm's files", check_lock_files),
        Check("no host of a registry anywhere", check_hosts),
        Check("ruff format", [ruff, "format", "--check"]),
        Check("ruff check", [ruff, "check"]),
        Check("mypy", [str(VENV / "bin/mypy"), *without_torch]),
    ]
    if chosen(ports, "rust"):
        clippy = ["cargo", "clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]
        checks += [
            Check("cargo fmt", ["cargo", "fmt", "--all", "--check"], ROOT / "rust"),
            Check("cargo clippy", clippy, ROOT / "rust"),
            Check("cargo fmt (peers)", ["cargo", "fmt", "--check"], RUST_PEERS),
        ]
        if (RUST_PEERS / "target").is_dir():  # elsewhere their libraries would be fetched and built for it
            checks += [Check("cargo clippy (peers)", [*clippy[:2], *clippy[3:]], RUST_PEERS)]
    if chosen(ports, "typescript"):
        checks += [
            Check("biome and tsc (npm run lint)", [npm(), "run", "lint"], ROOT / "typescript"),
            Check("biome (peers)", [biome(), "ci"], ROOT / "conformance/peers"),
        ]
    if chosen(ports, "julia"):
        julia = [str(TOOLS / "bin/julia"), "--startup-file=no", "scripts/check_julia.jl"]
        checks += [Check("julia form", [*julia, "julia", "scripts"])]
    return checks


def repairs(ports: list[str]) -> list[Check]:
    """What `make fmt` runs."""
    ruff = str(VENV / "bin/ruff")
    steps = [
        Check("ruff check --fix", [ruff, "check", "--fix", "--exit-zero"]),
        Check("ruff format", [ruff, "format"]),
    ]
    if chosen(ports, "rust"):
        steps += [Check("cargo fmt", ["cargo", "fmt", "--all"], ROOT / "rust")]
        steps += [Check("cargo fmt (peers)", ["cargo", "fmt"], RUST_PEERS)]
    if chosen(ports, "typescript"):
        steps += [
            Check("biome (npm run fmt)", [npm(), "run", "fmt"], ROOT / "typescript"),
            Check("biome (peers)", [biome(), "check", "--write"], ROOT / "conformance/peers"),
        ]
    return steps


def npm() -> str:
    """The npm of the checkout."""
    return str(TOOLS / "bin/npm")


def biome() -> str:
    """The formatter and linter of TypeScript, which looks after the peers in JavaScript as well."""
    return str(ROOT / "typescript/node_modules/.bin/biome")


def passes(check: Check) -> bool:
    """Runs one check and prints one line about it, or the end of what it said."""
    started = time.monotonic()
    problem = ""
    try:
        if callable(check.run):
            check.run()
        else:
            run_logged(check.run, "lint", cwd=check.folder)
    except SetupError as error:
        problem = str(error)
    say(f"  {check.name:<40} {'FAILED' if problem else 'ok':<6} {time.monotonic() - started:6.1f} s")
    if problem:
        say(problem)
    return not problem


def check_requirements() -> None:
    """Every requirement is one exact version, the same in all files, and no file names an index."""
    pins: dict[str, tuple[str, str]] = {}
    problems = []
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        for line in path.read_text().splitlines():
            text = line.split("#")[0].strip()
            if not text:
                continue
            match = re.fullmatch(r"([a-z0-9-]+)==([\w.]+)", text)
            if match is None:
                problems.append(f"{relative(path)}: not of the form name==version: {text}")
                continue
            name, version = match.groups()
            first = pins.setdefault(name, (version, relative(path)))
            if first[0] != version:
                problems.append(f"{name}: {version} in {relative(path)}, {first[0]} in {first[1]}")
    if problems:
        raise SetupError("\n".join(problems))


def check_lock_files() -> None:
    """A lock file with addresses in it cannot be used behind another registry."""
    folders = ("*", "conformance/peers/*")
    files = [
        path
        for folder in folders
        for kind in ("package-lock.json", ".npmrc")
        for path in ROOT.glob(f"{folder}/{kind}")
    ]
    named = [relative(path) for path in files if re.search(r'"resolved"|^registry', path.read_text(), re.M)]
    if named:
        raise SetupError(f"names the address of a registry: {', '.join(named)}")


def check_hosts() -> None:
    """No committed file names the host of a package registry: behind another one it would be wrong."""
    # The brackets keep this file from finding itself.
    hosts = r"npm[j]s\.(com|org)|yarn[p]kg\.com|py[p]i\.org|python[h]osted\.org|static\.cr[a]tes\.io"
    found = subprocess.run(
        ["git", "grep", "-InE", hosts], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if found.returncode != 1:  # git grep's "nothing found"
        raise SetupError(f"names the host of a registry:\n{found.stdout}{found.stderr}")


if __name__ == "__main__":
    sys.exit(main())
