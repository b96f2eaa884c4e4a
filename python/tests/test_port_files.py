"""Tensors in files: what a port reads and writes."""

import struct

import numpy as np
import pytest
from ports import APPEND, CACHE, load, raw_file

from rosetta_port.tensors import Unreadable, read_tensors, write_tensors

INF, NAN = np.inf, np.nan


def test_a_header_of_an_odd_length(tmp_path):
    """FileLayout: also a scalar, an empty tensor, an unreadable type, and names out of order."""
    content = raw_file(
        {
            "z": ("F32", [], struct.pack("<f", 1.5)),
            "half": ("BF16", [1], b"\x80\x3f"),
            "eighth": ("F8_E4M3", [1], b"\0"),
            "a": ("I64", [2], struct.pack("<qq", -1, 2**62)),
            "empty": ("F64", [0, 3], b""),
            "flag": ("BOOL", [2], b"\1\0"),
        },
        header_size=301,
    )
    (tmp_path / "f").write_bytes(content)
    tensors = read_tensors(str(tmp_path / "f"))
    assert tensors["z"].shape == ()
    assert tensors["z"] == 1.5
    assert tensors["a"].tolist() == [-1, 2**62]
    assert tensors["empty"].shape == (0, 3)
    assert tensors["flag"].tolist() == [True, False]
    assert tensors["half"] == 1
    assert tensors["eighth"] == Unreadable("f8_e4m3")
    assert read_tensors(str(tmp_path / "f"), ["f32", "f64"])["half"] == Unreadable("bf16")


def test_every_layout_is_written_by_value(tmp_path):
    """AxisOrder."""
    matrix = np.float64([[1, 2, 3], [4, 5, 6]])
    arrays = {
        "fortran": np.asfortranarray(matrix),
        "every other": np.arange(12.0).reshape(3, 4)[:, ::2],
        "reversed": matrix[::-1, ::-1],
        "scalar": np.array(7.0),
        "broadcast": np.broadcast_to(np.float64([1, 2]), (3, 2)),
    }
    write_tensors(str(tmp_path / "f"), arrays)
    for name, x in load(tmp_path / "f").items():
        np.testing.assert_array_equal(x, arrays[name], err_msg=name, strict=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_written_as_they_are(tmp_path, dtype):
    every = np.arange(2**16, dtype=np.uint16).view(dtype).reshape(256, 256)
    write_tensors(str(tmp_path / "f"), {"every": every, "transposed": every.T})
    read = load(tmp_path / "f")
    assert read["every"].dtype == dtype
    assert read["every"].tobytes() == every.tobytes()
    assert read["transposed"].tobytes() == every.T.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_special_values_pass_bit_by_bit(driver, dtype):
    """Through a file, a cache and a file."""
    kind = np.finfo(dtype)
    values = np.array([NAN, INF, -INF, -0.0, kind.smallest_subnormal, kind.max, 0.1], dtype)
    arrays = {"k": values.reshape(1, 1, -1, 1), "v": values.reshape(1, 1, -1, 1)}
    steps = [APPEND, {"do": "read", "out": "r"}]
    driver.ok("kv_cache", arrays, config=CACHE | {"steps": steps})
    assert load(driver.outputs)["r.k"].tobytes() == values.tobytes()


def test_a_file_that_cannot_be_written_leaves_nothing(driver):
    (driver.folder / "folder").mkdir()
    answer = driver.ask(
        cmd="run", op="softmax", inputs=driver.inputs(x=[0.0]), outputs=str(driver.folder / "folder")
    )
    driver.refused(answer, "invalid_request")
    assert sorted(path.name for path in driver.folder.iterdir()) == ["folder", "in1.safetensors"]


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"nonsense" * 9], ids=len)
def test_a_file_that_is_none(driver, content):
    path = driver.folder / "broken.safetensors"
    path.write_bytes(content)
    answer = driver.ask(cmd="run", op="softmax", inputs=str(path), outputs=str(driver.outputs))
    driver.refused(answer, "invalid_request")
