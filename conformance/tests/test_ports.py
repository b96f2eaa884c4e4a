"""Port files: read, refused with a clear message, narrowed."""

from pathlib import Path

import pytest

from conformance.errors import UsageError
from conformance.ports import PORTS, Port, check_commands, check_names, choose_ports, read_port, read_ports

GOOD = """
name = "mine"
language = "Zig"
kind = "port"
command = ["zig-out/port"]
"""


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_port_file_is_read(tmp_path: Path) -> None:
    port = read_port(write(tmp_path, GOOD + 'build = ["zig", "build"]\nhomepage = "x"\n[env]\nA = "1"\n'))
    assert port == Port("mine", "Zig", "port", ["zig-out/port"], ["zig", "build"], {"A": "1"}, "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "no port file"),
        (GOOD.replace('"port"', '"pier"'), r"Invalid enum value 'pier' - at `\$.kind`"),
        (GOOD.replace('language = "Zig"\n', ""), "missing required field `language`"),
        (
            GOOD.replace('["zig-out/port"]', '"zig-out/port"'),
            r"Expected `array`, got `str` - at `\$.command`",
        ),
        (GOOD.replace('["zig-out/port"]', "[]"), "expected a list of at least one string"),
        (GOOD + "comand = []\n", "unknown field `comand`"),
        (GOOD.replace('"mine"', '"yours"'), "expected 'mine' as the file is called, got 'yours'"),
    ],
)
def test_a_broken_port_file_is_named_with_its_fault(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError, match=message) as caught:
        read_port(path)
    assert str(path) in str(caught.value)


def test_a_folder_without_a_port_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least one port file"):
        read_ports(tmp_path)


def port(name: str, kind: str = "port") -> Port:
    return Port(name, "X", kind, ["x"])  # type: ignore[arg-type]


def test_narrowing_keeps_the_order_and_leaves_peers_out_unless_named() -> None:
    ports = [port("python"), port("julia"), port("rust"), port("onnx", "peer")]
    assert [p.name for p in choose_ports(ports)] == ["python", "julia", "rust"]
    assert [p.name for p in choose_ports(ports, " rust , julia")] == ["julia", "rust"]
    assert [p.name for p in choose_ports(ports, "onnx")] == ["onnx"]


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match=r"no port is called 'jula' \(did you mean 'julia'\?\); known: julia, rust"
    ):
        choose_ports([port("julia"), port("rust")], "rust,jula")
    with pytest.raises(UsageError, match="no op is called 'x'; known: a, b"):
        check_names("op", ["x"], ["a", "b"])


def test_programs_that_are_not_there_are_all_named(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    ports = [
        Port(f"p{n}", "X", "port", [c]) for n, c in enumerate(["./here", "./gone", "no-such-program", "sh"])
    ]
    with pytest.raises(UsageError, match=r"not there: p1: \./gone, p2: no-such-program; `make build"):
        check_commands(ports, tmp_path)
    check_commands(ports[::3], tmp_path)


def test_the_projects_own_port_files_are_good() -> None:
    ports = read_ports()
    assert ports[0].name == "python"
    assert all(p.kind in ("port", "peer") for p in ports)


def test_a_forced_tier_is_its_port_in_all_but_its_kernels() -> None:
    known = {port.name: port for port in read_ports()}
    forced = read_ports(PORTS / "forced")
    variables = {
        "rust": "ROSETTA_SIMD_TIER",
        "julia": "ROSETTA_SIMD_LANES",
        "typescript": "ROSETTA_WASM",
    }
    assert {port.name for port in forced} == {
        "rust-avx2",
        "rust-portable",
        "julia-8",
        "julia-4",
        "typescript-plain",
    }
    for port in forced:
        own = known[port.name.partition("-")[0]]
        assert (port.language, port.kind, port.command) == (own.language, own.kind, own.command)
        added = set(port.env.items()) - set(own.env.items())
        assert [name for name, _ in added] == [variables[own.name]]
        assert port.env.items() >= own.env.items()
