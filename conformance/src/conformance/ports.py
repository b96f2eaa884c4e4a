"""Port files: one small toml per port or peer, which says how to build it and how to start it."""

import difflib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from .errors import UsageError
from .repository import ROOT

PORTS = ROOT / "conformance/ports"


class Port(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How to start one port. Commands are relative to the repository root.

    kind: `port` is one of the project's own texts; a `peer` is another library under the same protocol.
    ops: those that it is meant to have, where it is not all. lacks: by op, the features that it is not meant to have.
    What needs more than is meant is not asked unless it is claimed, and not missed. decode: the program of
    docs/decode.md, where there is one. fixed_order: the readable text adds up in the order of the slots, so that a
    sequence in chunks gives the bits of the whole (docs/semantics.md).
    """

    name: str
    language: str
    kind: Literal["port", "peer"]
    command: list[str]
    build: list[str] = []
    env: dict[str, str] = {}
    homepage: str = ""
    ops: list[str] | None = None
    lacks: dict[str, list[str]] = {}
    decode: list[str] = []
    fixed_order: bool = False


def read_port(path: Path) -> Port:
    """One port file. Raises UsageError that says which field of which file is wrong."""
    try:
        port = msgspec.toml.decode(path.read_bytes(), type=Port)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: no port file: {error}") from None
    if not port.command:
        raise UsageError(f"{path}: command: expected a list of at least one string, got an empty one")
    if port.name != path.stem:
        raise UsageError(f"{path}: name: expected {path.stem!r} as the file is called, got {port.name!r}")
    return port


def read_ports(folder: Path = PORTS) -> list[Port]:
    """Every port file of the folder: the project's own ports first, then peers; the NumPy reference leads."""
    ports = [read_port(path) for path in sorted(folder.glob("*.toml"))]
    if not ports:
        raise UsageError(f"{folder}: expected at least one port file, NAME.toml, got none")
    return sorted(ports, key=lambda port: (port.kind != "port", port.name != "python", port.name))


def is_meant(port: Port, op: str, features: Sequence[str]) -> bool:
    """Whether the port is meant to have the op with all of these features."""
    return (port.ops is None or op in port.ops) and not set(port.lacks.get(op, ())) & set(features)


def choose_ports(ports: Sequence[Port], names: str = "") -> list[Port]:
    """The ports of a comma list, in the order of `ports`; without a list all but the peers."""
    wanted = split_names(names)
    if not wanted:
        return [port for port in ports if port.kind == "port"] or list(ports)
    check_names("port", wanted, [port.name for port in ports])
    return [port for port in ports if port.name in wanted]


def check_commands(ports: Sequence[Port], root: Path = ROOT) -> None:
    """Raises UsageError that names every port whose program is not there, before anything is started."""
    missing = [
        f"{port.name}: {port.command[0]}"
        for port in ports
        if not (
            (root / port.command[0]).is_file() if "/" in port.command[0] else shutil.which(port.command[0])
        )
    ]
    if missing:
        raise UsageError(
            f"not there: {', '.join(missing)}; `make build PORTS=...` installs and builds what a port needs,"
            " --ports leaves a port out"
        )


def split_names(names: str) -> list[str]:
    """The parts of a comma list; blanks around them do not count."""
    return [name.strip() for name in names.split(",") if name.strip()]


def check_names(what: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    """Raises UsageError for a name that is not known, with the names that are."""
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise UsageError(f"no {what} is called {name!r}{hint}; known: {', '.join(known)}")
